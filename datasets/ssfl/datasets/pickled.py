"""The only pickles that are read: CIFAR's python batches, which are published as such.

Unpickling runs what a file says, so it is the exception here and kept as narrow as these files
are. Three locks, one behind the other:

1. Before anything is loaded, the file is read as a list of instructions, and only those that the
   published files consist of are let through, with few containers, small memo numbers and no tuple
   used twice (so that a few bytes can neither ask for gigabytes nor for an endless hash).
2. The only names that can be looked up are the three of a numpy array: _reconstruct, ndarray and
   dtype. Any other is refused, whatever it is.
3. Even those three do not reach numpy: stand-ins take their place, which note a shape and some
   bytes. An array is made from them afterwards, if they fit each other.
"""

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError

_INSTRUCTIONS = frozenset(
    (
        *("PROTO", "STOP", "MARK", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
        *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2"),
        *("SHORT_BINSTRING", "BINSTRING", "BINUNICODE"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "GLOBAL", "REDUCE", "BUILD"),
    )
)
_TUPLES = frozenset(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"))
_CONTAINERS = _TUPLES | {"EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "REDUCE"}
_MOST_CONTAINERS = 24  # a batch: one dictionary, up to three lists, six tuples, two calls
_PUTS = ("BINPUT", "LONG_BINPUT")
_GETS = ("BINGET", "LONG_BINGET")
_BYTE_TYPES = (b"u1", "u1", b"|u1", "|u1")


def read_pickle(data: bytes) -> dict[str, Any]:
    """Return the dictionary in a published pickle: numbers, bytes, lists and uint8 arrays.

    Raise SourceError if the file holds anything else; nothing of it has run then.
    """
    _check_instructions(data)
    try:
        loaded = _Reader(io.BytesIO(data), encoding="bytes").load()
    except SourceError:
        raise
    except Exception as error:  # a damaged pickle raises almost anything
        raise SourceError(f"it is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, dict):
        raise SourceError(f"it holds a {type(loaded).__name__}, not a dictionary")
    return {
        _text(key): value.array() if isinstance(value, _Array) else value
        for key, value in loaded.items()
    }


def _check_instructions(data: bytes) -> None:
    containers = 0
    tuples: set[int] = set()  # memo numbers of tuples
    previous = ""
    try:
        for instruction, argument, _ in pickletools.genops(data):
            name = instruction.name
            if name not in _INSTRUCTIONS:
                raise SourceError(f"a published batch has no {name} in it")
            containers += name in _CONTAINERS
            if containers > _MOST_CONTAINERS:
                raise SourceError("it nests more than any published batch")
            if name in _PUTS:
                number = _memo_number(argument, len(data))
                tuples |= {number} if previous in _TUPLES else set()
            if name in _GETS and argument in tuples:
                raise SourceError("it uses a tuple twice, which no published batch does")
            if name == "GLOBAL":
                _check_name(*str(argument).split(" ", 1))
            previous = name
    except (ValueError, IndexError, TypeError) as error:
        raise SourceError(f"it is no pickle, or it is cut short: {error}") from error


def _memo_number(argument: object, most: int) -> int:
    number = argument if isinstance(argument, int) else -1
    if not 0 <= number <= most:
        raise SourceError(f"it asks for a memo of {number:,} entries")
    return number


def _check_name(module: str, name: str) -> None:
    if (module, name) not in (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    ):
        raise SourceError(
            f"it wants to run {f'{module}.{name}'!r}, which no published batch does: refused"
        )


class _Reader(pickle.Unpickler):
    """Looks up stand-ins only."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        _check_name(module_name, global_name)
        return {"_reconstruct": _Reconstruct(), "ndarray": _Marker(), "dtype": _MakeType()}[
            global_name
        ]


class _Marker:
    """Stands for the class ndarray, which is only ever passed on."""

    __slots__ = ()


class _Reconstruct:
    """Stands for numpy's _reconstruct: begins an array."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> "_Array":
        if not isinstance(kind, _Marker) or shape != (0,) or code not in (b"b", "b"):
            raise SourceError("it begins an array in a way no published batch does")
        return _Array()


class _MakeType:
    """Stands for numpy's dtype: only unsigned bytes."""

    __slots__ = ()

    def __call__(self, code: object, align: object, copy: object) -> "_Type":
        if code not in _BYTE_TYPES or align not in (0, 1) or copy not in (0, 1):
            raise SourceError("it holds an array of something else than unsigned bytes")
        return _Type()


class _Type:
    """Unsigned bytes; how they are stored has no variants."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Notes what an array will be made from."""

    __slots__ = ("_data", "_order", "_shape")

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise SourceError("its array has no shape, type and bytes")
        _, shape, kind, is_fortran, data = state
        if isinstance(data, str):
            data = data.encode("latin-1")
        fits = (
            isinstance(shape, tuple)
            and all(isinstance(axis, int) and axis >= 0 for axis in shape)
            and len(shape) <= 4
            and isinstance(kind, _Type)
            and isinstance(data, bytes)
            and math.prod(shape) == len(data)
        )
        if not fits:
            raise SourceError("the shape of its array does not fit the bytes of it")
        self._shape: tuple[int, ...] = shape
        self._order: bool = bool(is_fortran)
        self._data: bytes = data

    def array(self) -> npt.NDArray[np.uint8]:
        """Return the array noted."""
        if not hasattr(self, "_data"):
            raise SourceError("its array has no bytes")
        flat = np.frombuffer(self._data, dtype=np.uint8)
        return flat.reshape(self._shape, order="F" if self._order else "C")


def _text(key: object) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
