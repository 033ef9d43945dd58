"""What a study raises itself, and what its parts raise for people to read."""

from ssfl.datasets.errors import DataError
from ssfl.learning.errors import LearningError
from ssfl.method.errors import MethodError
from ssfl.program.exits import ProgramError
from ssfl.server.errors import Refusal


class StudyError(Exception):
    """A study cannot be run or compared so; the message says what is wrong with it."""


# The message alone says what is wrong and what to do; anything else is a bug.
EXPECTED = (DataError, LearningError, MethodError, ProgramError, Refusal, StudyError)
