"""What a study raises itself; everything else is raised by the parts it calls."""


class StudyError(Exception):
    """A study cannot be run or compared so; the message says what is wrong with it."""
