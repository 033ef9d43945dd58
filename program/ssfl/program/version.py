"""The version of ssfl; looked up once, because that reads files and takes milliseconds."""

from functools import cache
from importlib.metadata import version


@cache
def ssfl_version() -> str:
    """Return the version of the installed distribution."""
    return version("ssfl")
