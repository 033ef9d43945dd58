"""Why a site cannot work on its data (what is wrong with data themselves: `ssfl.datasets`).

LearningError
├─ ModelError     this network cannot be built for these inputs, or is not one we can mask
├─ TaskError      the user's task file is missing, incomplete, or raised
├─ DeviceError    the wished device is not on this machine, does not work, or is full
└─ DivergedError  a loss, a weight or a score is no longer a finite number
"""


class LearningError(Exception):
    """Base of everything `ssfl.learning` raises on purpose."""


class ModelError(LearningError):
    """The network does not fit the inputs or the manifest; the message says what would."""


class TaskError(LearningError):
    """The task file must be mended; the message ends with the lines of it that were at fault."""


class DeviceError(LearningError):
    """Choose another --device."""


class DivergedError(LearningError):
    """Training left the finite numbers: usually the learning rate is too high."""

    def __init__(self, what: str, round_number: int) -> None:
        super().__init__(f"round {round_number}: {what}; try a smaller --learning-rate")
        self.what, self.round_number = what, round_number
