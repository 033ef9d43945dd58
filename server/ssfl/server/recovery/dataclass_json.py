"""Convert dataclasses to JSON values and back, by their type hints.

`from_plain(type(x), to_plain(x)) == x` for dataclasses of numbers, strings, enums, tuples,
frozensets, lists, mappings and each other. Fields hinted as `Any` must already be JSON values.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints


def to_plain(value: Any) -> Any:
    """Return a value that json.dumps can write."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def from_plain(hint: Any, value: Any) -> Any:
    """Return a value of a type; raise ValueError, KeyError or TypeError if it does not fit."""
    if isinstance(hint, NewType):
        hint = hint.__supertype__
    inner = get_args(hint)
    match get_origin(hint) or hint:
        case one if is_dataclass(one) and isinstance(one, type):
            hints = _hints(one)
            return one(**{name: from_plain(hints[name], found) for name, found in value.items()})
        case one if one is Union or one is UnionType:
            (some,) = (arm for arm in inner if arm is not NoneType)
            return None if value is None else from_plain(some, value)
        case one if one is tuple and len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(from_plain(inner[0], found) for found in value)
        case one if one is tuple:
            pairs = zip(inner, value, strict=True)
            return tuple(from_plain(kind, found) for kind, found in pairs)
        case one if one in (frozenset, list):
            return one(from_plain(inner[0], found) for found in value)
        case one if isinstance(one, type) and issubclass(one, Mapping):
            return {key: from_plain(inner[1], found) for key, found in value.items()}
        case one if isinstance(one, type) and issubclass(one, Enum):
            return one(value)
        case one if one in (int, float, str, bool, Any):
            return value
    raise TypeError(f"{hint} cannot be read back")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
