"""The manifest: the tensors of a model, their order and their roles.

The manifest is one JSON text. The same bytes are the file `manifest.json`, the field on the
wire and the input of `manifest_digest` (docs/wire-format.md, section Manifest).

A model's values are one flat float32 vector: the masked tensors in manifest order, then the
dense ones, then the buffers. Coordinates below `num_masked` can be pruned; the others are always
sent.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import ManifestError

FORMAT = 1
MAX_MANIFEST_BYTES = 1 << 20  # a ResNet-152 needs about 60 kB; checked before parsing
MAX_PARAMETERS = 1 << 31  # 8 GiB of float32; coordinates fit 32 bits
MAX_DIMENSIONS = 8  # a 3-d convolution has 5; numpy allows 64
MAX_NAME = 200  # characters
_RESERVED = "__metadata__"  # reserved by safetensors


class Role(StrEnum):
    """Role of a tensor; the members are in the order of the flat vector."""

    MASKED = "masked"  # conv and linear weights: pruned by the mask
    DENSE = "dense"  # norm scale and shift, biases: always sent whole
    BUFFER = "buffer"  # running statistics: sent whole, never trained


@dataclass(frozen=True, slots=True)
class Init:
    """How a tensor starts: computed from the run's seed by `rule`, or `sent`.

    A `sent` tensor is sent once: by the first client, or from the file of --init.
    """

    rule: str  # one of RULES
    scale: float = 0.0  # standard deviation of "normal", bound of "uniform"

    RULES = ("zeros", "ones", "normal", "uniform", "sent")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: float32, row-major."""

    name: str
    shape: tuple[int, ...]
    role: Role
    init: Init

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Manifest:
    """The ordered tensors of one model and how the model was built."""

    tensors: tuple[TensorSpec, ...]
    model: Mapping[str, Any] = field(default_factory=dict)  # name and options, for readers

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            raise ManifestError("two tensors share a name")
        if not any(tensor.role is Role.MASKED for tensor in self.tensors):
            raise ManifestError("the model has no conv or linear weight to mask")
        if self.size > MAX_PARAMETERS:
            raise ManifestError(f"{self.size} values are more than the limit of {MAX_PARAMETERS}")

    @cached_property
    def num_masked(self) -> int:
        """W: the number of coordinates that the mask covers."""
        return sum(tensor.size for tensor in self.tensors if tensor.role is Role.MASKED)

    @cached_property
    def size(self) -> int:
        """Number of values of the flat vector: masked, dense and buffer."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def num_unmasked(self) -> int:
        """Number of dense and buffer values, which every update contains."""
        return self.size - self.num_masked

    @property
    def num_buffers(self) -> int:
        """Number of buffer values, which are the last of the flat vector."""
        return sum(tensor.size for tensor in self.tensors if tensor.role is Role.BUFFER)

    @property
    def rebuildable(self) -> bool:
        """Whether the initial weights follow from the seed alone."""
        return all(tensor.init.rule != "sent" for tensor in self.tensors)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Place of each tensor in the flat vector, by name."""
        out, start = {}, 0
        for tensor in self.in_vector_order():
            out[tensor.name] = slice(start, start + tensor.size)
            start += tensor.size
        return out

    def in_vector_order(self) -> Iterator[TensorSpec]:
        """Yield masked tensors, then dense, then buffers, each in manifest order."""
        for role in Role:
            yield from (tensor for tensor in self.tensors if tensor.role is role)

    @property
    def masked_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the masked tensors, in manifest order."""
        return [tensor.shape for tensor, _ in self.masked()]

    def masked(self) -> Iterator[tuple[TensorSpec, slice]]:
        """Yield the masked tensors with their place among the masked coordinates."""
        for tensor in self.in_vector_order():
            if tensor.role is Role.MASKED:
                yield tensor, self.slices[tensor.name]

    def flatten(self, arrays: Mapping[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        """Return the flat vector of named arrays."""
        vector = np.empty(self.size, dtype=np.float32)
        for tensor in self.tensors:
            array = arrays[tensor.name]
            if array.shape != tensor.shape:
                raise ManifestError(f"{tensor.name} has shape {array.shape}, not {tensor.shape}")
            vector[self.slices[tensor.name]] = array.reshape(-1)
        return vector

    def unflatten(self, vector: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
        """Return the named arrays of a flat vector, as views."""
        if vector.shape != (self.size,):
            raise ManifestError(f"the vector has shape {vector.shape}, not ({self.size},)")
        return {t.name: vector[self.slices[t.name]].reshape(t.shape) for t in self.tensors}

    def tensor_at(self, coordinate: int) -> str:
        """Return the name of the tensor that holds a coordinate of the flat vector."""
        return next(n for n, s in self.slices.items() if s.start <= coordinate < s.stop)

    @cached_property
    def json(self) -> bytes:
        """The canonical text: sorted keys, no spaces, ASCII."""
        document = {
            "format": FORMAT,
            "model": dict(self.model),
            "tensors": [
                {
                    "name": t.name,
                    "shape": list(t.shape),
                    "dtype": "float32",
                    "role": t.role.value,
                    "init": {"rule": t.init.rule, "scale": t.init.scale.hex()},
                }
                for t in self.tensors
            ],
        }
        return _canonical(document)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical text."""
        return hashlib.sha256(self.json).digest()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Parse untrusted bytes; raise ManifestError for anything but a canonical manifest."""
        if len(text) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"{len(text)} bytes are more than {MAX_MANIFEST_BYTES}")
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ManifestError(f"manifest format {document['format']!r}, this is {FORMAT}")
            manifest = cls(
                tuple(_tensor(entry) for entry in document["tensors"]), document["model"]
            )
            canonical = manifest.json
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise ManifestError(f"not a manifest: {type(error).__name__}: {error}") from error
        if canonical != text:
            raise ManifestError("not in canonical form, so its digest would be ambiguous")
        return manifest

    def same_except_init(self, other: "Manifest") -> bool:
        """Return True if `other` has the same tensors and data, whatever their initial values."""
        return not self.first_difference(other, rules=False)

    def first_difference(self, other: "Manifest", *, rules: bool = True) -> str:
        """Return the first difference of `other` from this manifest; empty if there is none.

        A different shape of the data comes first, since it explains every tensor that differs.
        Without `rules`, initial values are not compared.
        """
        if data := self.data_difference(other.model):
            return data
        for index, (mine, theirs) in enumerate(zip(self.tensors, other.tensors, strict=False)):
            if mine != (theirs if rules else replace(theirs, init=mine.init)):
                return f"tensor {index}: {_describe(theirs)} instead of {_describe(mine)}"
        if len(self.tensors) != len(other.tensors):
            longer = max(self, other, key=lambda manifest: len(manifest.tensors))
            tensor = longer.tensors[min(len(self.tensors), len(other.tensors))]
            where = "missing" if longer is self else "extra"
            return f"{where} tensor {_describe(tensor)}"
        if _canonical(dict(self.model)) != _canonical(dict(other.model)):  # as in the digests
            return "the model's description: " + _differences(self.model, other.model)
        return ""

    def data_difference(self, description: Mapping[str, Any]) -> str:
        """Return how the data of another description differ from this run's; empty if not.

        Compares the shape of a sample and the number of classes, where both sides state them.
        """
        mine, theirs = self.model, description
        differences = []
        shapes = _shape(theirs.get("input_shape")), _shape(mine.get("input_shape"))
        if all(shapes) and shapes[0] != shapes[1]:
            differences.append(f"samples of {shapes[0]} here, {shapes[1]} in the run")
        counts = theirs.get("num_classes"), mine.get("num_classes")
        if all(type(count) is int for count in counts) and counts[0] != counts[1]:
            differences.append(f"{counts[0]} classes here, {counts[1]} in the run")
        return "; ".join(differences)


def format_shape(shape: Sequence[int], scalar: str = "scalar") -> str:
    """Return a shape as text; `scalar` is the text for no dimensions.

    >>> format_shape((3, 32, 32)), format_shape(())
    ('3x32x32', 'scalar')
    """
    return "x".join(map(str, shape)) or scalar


def _shape(value: Any) -> str:
    """Return a shape from an untrusted description as text, such as 3x32x32; empty if invalid."""
    if not isinstance(value, list | tuple) or not all(type(number) is int for number in value):
        return ""
    return format_shape(value, scalar="one number")


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    names = [
        name
        for name in sorted({*mine, *theirs})
        if _canonical(mine.get(name)) != _canonical(theirs.get(name))
    ]
    return "; ".join(f"{name} {theirs.get(name)} instead of {mine.get(name)}" for name in names)


def _canonical(document: Any) -> bytes:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _tensor(entry: Any) -> TensorSpec:
    name, shape = entry["name"], tuple(entry["shape"])
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise ManifestError(f"a tensor's name has 1 to {MAX_NAME} printable characters")
    if name == _RESERVED:
        raise ManifestError(f"a tensor cannot be called {name}")
    if entry["dtype"] != "float32":
        raise ManifestError(f"{name}: dtype {entry['dtype']!r} is not float32")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n > 0 for n in shape):
        raise ManifestError(f"{name}: impossible shape")
    if math.prod(shape) > MAX_PARAMETERS:
        raise ManifestError(f"{name}: more values than the limit of {MAX_PARAMETERS}")
    init = Init(str(entry["init"]["rule"]), float.fromhex(entry["init"]["scale"]))
    is_minus_zero = math.copysign(1.0, init.scale) < 0
    if init.rule not in Init.RULES or not 0 <= init.scale < math.inf or is_minus_zero:
        raise ManifestError(f"{name}: unknown initialisation {init}")
    return TensorSpec(name, shape, Role(entry["role"]), init)


def _describe(tensor: TensorSpec) -> str:
    rule = f"{tensor.init.rule} {tensor.init.scale:g}" if tensor.init.scale else tensor.init.rule
    return f"{tensor.name} ({format_shape(tensor.shape)}, {tensor.role.value}, starts {rule})"
