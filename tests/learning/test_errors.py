import copy

from ssfl.learning import errors
from ssfl.learning.errors import DivergedError, LearningError


def test_the_tree_in_the_docstring_names_every_error() -> None:
    names = {error.__name__ for error in LearningError.__subclasses__()}
    assert names == {"ModelError", "TaskError", "DeviceError", "DivergedError"}
    assert all(name in (errors.__doc__ or "") for name in names)


def test_a_divergence_names_its_round_and_a_remedy() -> None:
    error = DivergedError("the loss is nan in step 4", round_number=7)
    assert error.round_number == 7
    assert str(error) == ("round 7: the loss is nan in step 4; try a smaller --learning-rate")


def test_an_error_of_a_worker_process_keeps_its_message() -> None:
    error = DivergedError("the loss is nan", 3)
    again = copy.copy(error)  # as pickle does
    assert (str(again), again.round_number) == (str(error), 3)
