"""Strategies and criteria from other packages and from files.

A package names them in its entry points, in the groups `ssfl.strategies` and `ssfl.criteria`. A
file holds one class: a Rule or a Criterion. It is named after the file, with dashes for
underscores. Both ends of a run must have the same source: they compare its SHA-256 when a client
joins.
"""

import hashlib
import inspect
import sys
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ssfl.method.errors import SettingsError

Kind = TypeVar("Kind")

_DIGESTS: dict[str, str] = {}  # of the files that modules were made from, by module


def class_in(module: ModuleType, kind: type[Kind]) -> type[Kind]:
    """Return the class of a kind that a module defines; raise SettingsError unless it has one."""
    found = {
        one for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, kind) and one.__module__ == module.__name__
    }  # fmt: skip
    if len(found) != 1:
        word = kind.__name__
        raise SettingsError(
            f"{module.__file__} must define one subclass of {word}, but has {len(found)}"
        )
    return found.pop()


def from_file(text: str, kind: type[Kind]) -> tuple[str, type[Kind]]:
    """Import a file; return its path and its class. Raise SettingsError if that fails."""
    path = Path(text).expanduser().absolute()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    digest = hashlib.sha256(data).hexdigest()
    module_name = f"ssfl_outside_{digest[:16]}_{path.stem}"
    if module_name not in sys.modules:
        module = ModuleType(module_name)
        module.__file__ = str(path)
        sys.modules[module_name] = module  # dataclasses look their module up
        try:
            exec(compile(data, path, "exec"), vars(module))
        except Exception as error:
            del sys.modules[module_name]
            raise SettingsError(f"{path} cannot be imported: {error!r}") from error
        _DIGESTS[module_name] = digest
    return str(path), class_in(sys.modules[module_name], kind)


@lru_cache
def installed_names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages add to a group."""
    return tuple(sorted(entry_points(group=group).names))


def installed(group: str, name: str, kind: type[Kind]) -> type[Kind] | None:
    """Return the class that an installed package names; None if there is none."""
    for point in entry_points(group=group, name=name):
        try:
            found = point.load()
        except Exception as error:
            raise SettingsError(f"{name} ({point.value}) cannot be imported: {error!r}") from error
        if not (isinstance(found, type) and issubclass(found, kind)):
            raise SettingsError(f"{name} ({point.value}) is not a subclass of {kind.__name__}")
        return found
    return None


def source_digest(kind: type) -> str:
    """Return the SHA-256 of the file that a class was made from, in hex."""
    if kind.__module__ not in _DIGESTS:
        data = Path(inspect.getfile(kind)).read_bytes()
        _DIGESTS[kind.__module__] = hashlib.sha256(data).hexdigest()
    return _DIGESTS[kind.__module__]
