"""Read CIFAR's python batches, which are published as pickles, without unpickling them.

Unpickling executes what a file asks for, so Python's unpickler is not used. A pickle is a list of
instructions, and the published files use only a few. This module interprets those few, on numbers,
bytes, text, lists, tuples and dictionaries:

1. Any other instruction is refused, and so are more containers than a published batch has.
2. The only names that can be looked up are those of a numpy array: _reconstruct, ndarray and
   dtype. They resolve to stand-ins that make an array from a shape and some bytes, if these match.
   Nothing else can be called.
3. The time of an instruction does not depend on earlier ones: keys are bytes or text, so nested
   tuples are never hashed, and an array is filled only once.
"""

import math
import pickletools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import SourceError

_CONTAINERS = frozenset(
    ["EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "REDUCE"]
)
_MAX_CONTAINERS = 24  # a batch has one dictionary, up to three lists, six tuples, two calls
_BYTE_TYPES = (b"u1", "u1", b"|u1", "|u1")
_NDARRAY = object()  # stand-in for the class ndarray, which is only passed as an argument
_BYTES = object()  # stand-in for the type of unsigned bytes


def read_pickle(data: bytes) -> dict[str, Any]:
    """Return the dictionary in a published pickle: numbers, bytes, lists and uint8 arrays.

    Raise SourceError if the file holds anything else; none of it is executed.
    """
    loaded = _interpret(data)
    if not isinstance(loaded, dict):
        raise SourceError(f"it holds a {type(loaded).__name__}, not a dictionary")
    return {
        _text(key): value.array() if isinstance(value, _Array) else value
        for key, value in loaded.items()
    }


def _text(key: bytes | str) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key


def _interpret(data: bytes) -> Any:
    """Return the object that the instructions build."""
    machine, containers = _Machine(), 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the parser warns of invalid escapes in text
            for instruction, argument, _ in pickletools.genops(data):
                name = instruction.name
                if name not in _INSTRUCTIONS:
                    raise SourceError(f"a published batch has no {name} in it")
                containers += name in _CONTAINERS
                if containers > _MAX_CONTAINERS:
                    raise SourceError("it has more containers than any published batch")
                _INSTRUCTIONS[name](machine, argument)
    except (ValueError, IndexError, TypeError, Warning) as error:
        raise SourceError(f"it is not a pickle, or it is cut short: {error}") from error
    return machine.pop()


class _Machine:
    """The state of the interpreter: a stack, its marks, and a memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}

    def push(self, item: Any) -> None:
        self.stack.append(item)

    def pop(self) -> Any:
        self._need(1)
        return self.stack.pop()

    def pop_several(self, count: int) -> list[Any]:
        """Pop the top `count` items and return them in the order they were pushed."""
        self._need(count)
        return self._pop_from(len(self.stack) - count)

    def pop_to_mark(self) -> list[Any]:
        if not self.marks:
            raise SourceError("it is damaged: a mark is missing")
        return self._pop_from(self.marks.pop())

    def _pop_from(self, height: int) -> list[Any]:
        items = self.stack[height:]
        del self.stack[height:]
        return items

    def put(self, number: int) -> None:
        self._need(1)
        self.memo[number] = self.stack[-1]

    def get(self, number: int) -> None:
        if number not in self.memo:
            raise SourceError(f"it is damaged: memo entry {number:,} is missing")
        self.push(self.memo[number])

    def append(self, items: list[Any]) -> None:
        self._need(1)
        if not isinstance(self.stack[-1], list):
            raise SourceError("it appends to something other than a list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        self._need(1)
        keys, values = items[::2], items[1::2]
        if not isinstance(self.stack[-1], dict) or len(keys) != len(values):
            raise SourceError("it sets items of something other than a dictionary")
        if not all(isinstance(key, bytes | str) for key in keys):
            raise SourceError("a key is neither bytes nor text")
        self.stack[-1].update(zip(keys, values, strict=True))

    def look_up(self, name: str) -> None:
        if name not in _STAND_INS:
            wanted = name.replace(" ", ".", 1)
            raise SourceError(f"it wants to run {wanted!r}, which no published batch does: refused")
        self.push(_STAND_INS[name])

    def call(self) -> None:
        function, arguments = self.pop_several(2)
        is_allowed = function is _reconstruct or function is _dtype
        if not is_allowed or not isinstance(arguments, tuple) or len(arguments) != 3:
            raise SourceError("it makes a call that no published batch makes")
        self.push(function(*arguments))

    def fill(self) -> None:
        state = self.pop()
        self._need(1)
        if isinstance(self.stack[-1], _Array):
            self.stack[-1].fill(state)
        elif self.stack[-1] is not _BYTES:  # the state of a uint8 dtype is ignored
            raise SourceError("it fills something other than an array")

    def _need(self, count: int) -> None:
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise SourceError("it is damaged: an instruction lacks an operand")


def _reconstruct(kind: object, shape: object, code: object) -> "_Array":
    """Stand in for numpy's _reconstruct, which creates an empty array."""
    if kind is not _NDARRAY or shape != (0,) or code not in (b"b", "b"):
        raise SourceError("it creates an array in a way no published batch does")
    return _Array()


def _dtype(code: object, align: object, copy: object) -> object:
    """Stand in for numpy's dtype; accept only unsigned bytes."""
    if code not in _BYTE_TYPES or align not in (0, 1) or copy not in (0, 1):
        raise SourceError("it holds an array of something other than unsigned bytes")
    return _BYTES


class _Array:
    """An array, once its shape and bytes are known."""

    def __init__(self) -> None:
        self._filled: npt.NDArray[np.uint8] | None = None

    def fill(self, state: object) -> None:
        """Record shape and bytes."""
        if self._filled is not None:
            raise SourceError("it fills an array twice")
        if not isinstance(state, tuple) or len(state) != 5:
            raise SourceError("its array has no shape, type and bytes")
        _, shape, kind, is_fortran, data = state
        if isinstance(data, str):
            data = data.encode("latin-1")
        fits = (
            isinstance(shape, tuple)
            and len(shape) <= 4
            and all(isinstance(axis, int) and axis >= 0 for axis in shape)
            and kind is _BYTES
            and isinstance(data, bytes)
            and math.prod(shape) == len(data)
        )
        if not fits:
            raise SourceError("the shape of its array does not match its bytes")
        flat = np.frombuffer(data, dtype=np.uint8)
        self._filled = flat.reshape(shape, order="F" if is_fortran else "C")

    def array(self) -> npt.NDArray[np.uint8]:
        """Return the recorded array."""
        if self._filled is None:
            raise SourceError("its array has no bytes")
        return self._filled


_STAND_INS: dict[str, Any] = {
    "numpy.core.multiarray _reconstruct": _reconstruct,
    "numpy ndarray": _NDARRAY,
    "numpy dtype": _dtype,
}
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda _machine, _version: None,
    "STOP": lambda _machine, _: None,
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "BININT": _Machine.push,
    "BININT1": _Machine.push,
    "BININT2": _Machine.push,
    "SHORT_BINSTRING": lambda machine, text: machine.push(text.encode("latin-1")),
    "BINSTRING": lambda machine, text: machine.push(text.encode("latin-1")),
    "BINUNICODE": _Machine.push,
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "APPEND": lambda machine, _: machine.append(machine.pop_several(1)),
    "APPENDS": lambda machine, _: machine.append(machine.pop_to_mark()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop_several(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_to_mark()),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine, _: machine.push(tuple(machine.pop_several(1))),
    "TUPLE2": lambda machine, _: machine.push(tuple(machine.pop_several(2))),
    "TUPLE3": lambda machine, _: machine.push(tuple(machine.pop_several(3))),
    "GLOBAL": lambda machine, name: machine.look_up(name),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.fill(),
}
