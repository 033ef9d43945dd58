"""Errors of learning at a site; errors of the data are in `ssfl.datasets.errors`.

LearningError
├─ ModelError     the network cannot be built for these inputs, or cannot be masked
├─ TaskError      the user's task file is missing, incomplete, or raised
├─ DeviceError    the chosen device is not available, does not work, or is full
└─ DivergedError  a loss, a weight or a score is not a finite number
"""


class LearningError(Exception):
    """Base of everything `ssfl.learning` raises on purpose."""


class ModelError(LearningError):
    """The network does not fit the inputs or the manifest; the message names a remedy."""


class TaskError(LearningError):
    """The task file has an error; the message ends with the lines at fault."""


class DeviceError(LearningError):
    """The device cannot be used; the message names an alternative."""


class DivergedError(LearningError):
    """A value became infinite or NaN, usually because the learning rate is too high."""

    def __init__(self, what: str, round_number: int) -> None:
        super().__init__(f"round {round_number}: {what}; try a smaller --learning-rate")
        self.what, self.round_number = what, round_number

    def __reduce__(self) -> tuple[type["DivergedError"], tuple[str, int]]:
        return DivergedError, (self.what, self.round_number)  # a worker process sends it
