"""Errors of learning at a site; errors of the data are in `ssfl.datasets.errors`."""


class LearningError(Exception):
    """Base of everything `ssfl.learning` raises on purpose."""


class ModelError(LearningError):
    """The network cannot be built for these inputs, or masked; the message names a remedy."""


class TaskError(LearningError):
    """The task file is missing, incomplete or raised; the message ends with the lines at fault."""


class DeviceError(LearningError):
    """The device is not available, does not work or is full; the message names an alternative."""


class DivergedError(LearningError):
    """A loss, weight or score is not finite, usually because the learning rate is too high."""

    def __init__(self, what: str, round_number: int) -> None:
        super().__init__(f"round {round_number}: {what}; try a smaller --learning-rate")
        self.what, self.round_number = what, round_number
