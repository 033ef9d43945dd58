"""The exceptions of a study, and those of its parts whose message is for users."""

from ssfl.datasets.errors import DataError
from ssfl.learning.errors import LearningError
from ssfl.method.errors import MethodError
from ssfl.program.exits import ProgramError
from ssfl.server.errors import Refusal


class StudyError(Exception):
    """A study cannot be run or compared; the message names the fault."""


# The message of these states fault and remedy; any other exception is a bug.
EXPECTED = (DataError, LearningError, MethodError, ProgramError, Refusal, StudyError)
