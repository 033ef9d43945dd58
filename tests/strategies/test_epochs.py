"""Local training in parts."""

import pytest

from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.settings import RunSettings
from ssfl.strategies.epochs import joined, num_epochs
from strategies.scripted_site import ScriptedSite, manifest_of, vector


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        (RunSettings(local_epochs=3), 3),
        (RunSettings(local_epochs=3, local_steps=1, batch_size=4), 1),
        (RunSettings(local_epochs=3, local_steps=3, batch_size=4), 1),
        (RunSettings(local_epochs=3, local_steps=7, batch_size=4), 3),
    ],
)
def test_a_pass_over_the_samples_is_an_epoch(settings: RunSettings, epochs: int) -> None:
    """Ten samples, four at a time: three steps in an epoch."""
    assert num_epochs(ScriptedSite(manifest_of(1), settings)) == epochs


def test_parts_join_to_one_result() -> None:
    tests = [Evaluation(correct, 9, 0.0) for correct in range(4)]
    first = LocalResult(vector(1), 4.0, tests[0], tests[1])
    last = LocalResult(vector(2), 1.0, tests[2], tests[3])
    whole = joined([first, last], [1, 2])
    assert whole.values.tolist() == [2]
    assert (whole.base, whole.personal) == (tests[0], tests[3])
    assert whole.training_loss == 2.0  # (1 * 4 + 2 * 1) / 3


def test_a_part_without_epochs_does_not_count_in_the_loss() -> None:
    test = Evaluation(1, 9, 0.0)
    none, one = LocalResult(vector(1), 0.0, test, test), LocalResult(vector(2), 3.0, test, test)
    assert joined([none, one], [0, 1]).training_loss == 3.0
    assert joined([none], [0]).training_loss == 0.0
