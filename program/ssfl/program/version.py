"""Which version this is: looked up once, since that reads files and takes milliseconds."""

from functools import cache
from importlib.metadata import version


@cache
def ssfl_version() -> str:
    """Return the version of the installed distribution."""
    return version("ssfl")
