"""The global model as the coordinator holds it between steps."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask

Vector = npt.NDArray[np.float32]


def values_digest(values: Vector) -> bytes:
    """Return the SHA-256 of the values as little-endian float32."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").data).digest()


def extra_index(extra: Mapping[str, Vector | Mask]) -> bytes:
    """Return the names, kinds and digests of a strategy's vectors and masks, as JSON."""
    entries = {
        name: ["mask" if isinstance(value, Mask) else "vector", item_digest(value).hex()]
        for name, value in sorted(extra.items())
    }
    return json.dumps(entries, separators=(",", ":")).encode()


def item_digest(value: Vector | Mask) -> bytes:
    """Return the digest of a strategy's vector or mask."""
    return value.digest if isinstance(value, Mask) else values_digest(value)


def extra_digest(extra: Mapping[str, Vector | Mask]) -> str:
    """Return the digest of a strategy's vectors and masks in hex; empty if there are none."""
    return hashlib.sha256(extra_index(extra)).hexdigest() if extra else ""


class StoredVector(ABC):
    """A vector of the model's size that can be dropped from memory and read again."""

    digest: bytes

    @abstractmethod
    def vector(self) -> Vector:
        """Return the vector. It stays in memory until it is released."""

    @abstractmethod
    def copy(self) -> Vector:
        """Return a copy that belongs to the caller. A vector read for this is not kept."""

    @abstractmethod
    def release(self) -> None:
        """Drop the vector from memory. The next call reads it again."""


ModelVector = Vector | StoredVector


def vector_of(vector: ModelVector) -> Vector:
    return vector.vector() if isinstance(vector, StoredVector) else vector


def digest_of(vector: ModelVector) -> bytes:
    return vector.digest if isinstance(vector, StoredVector) else values_digest(vector)


@dataclass(frozen=True)
class ModelState:
    """A manifest, the initial vector, and, once agreed, the mask and the kept values.

    Pruned weights are zero in the network, but each has a resting value from which it starts if a
    later mask keeps it. The *whole* model has the trained values on the mask and the resting
    values off it; clients score it when the mask is refreshed.
    """

    manifest: Manifest
    start: ModelVector  # (manifest.size,) the vector before any training
    mask: Mask | None = None
    mask_epoch: int = 0  # number of the current mask; 0 before the first
    values: Vector | None = None  # (num_kept + num_unmasked,)
    # Lossy runs only: the coded change from the previous state's values to these or, with
    # `downloads` = `values`, these values in the run's code.
    change: memoryview | None = None
    initial_digest: bytes = b""  # of `start`; computed once, since it takes time
    # (manifest.size,) the whole model that was scored for the mask; None: the initial vector.
    scored: ModelVector | None = None
    scored_digest: bytes = b""
    # (manifest.size,) resting values of pruned weights, same as `scored`; None: the initial vector.
    resting: ModelVector | None = None
    first: Vector | None = None  # values at the start of training under this mask, if in memory
    # What a strategy keeps with the model: moments, control variates, the masks of clients.
    extra: Mapping[str, Vector | Mask] = field(default_factory=dict)
    stage: str = ""  # a word of the strategy for methods with phases

    def __post_init__(self) -> None:
        if not self.initial_digest:
            object.__setattr__(self, "initial_digest", digest_of(self.start))
        if not self.scored_digest:
            digest = self.initial_digest if self.scored is None else digest_of(self.scored)
            object.__setattr__(self, "scored_digest", digest)

    @property
    def initial(self) -> Vector:
        """The vector before any training."""
        return vector_of(self.start)

    @cached_property
    def base_digest(self) -> bytes:
        """Digest of the kept values; empty if there are none yet."""
        return b"" if self.values is None else values_digest(self.values)

    @property
    def resting_digest(self) -> bytes:
        """Digest of the resting values; empty if they are the initial vector."""
        return b"" if self.resting is None else self.scored_digest

    def extra_vector(self, name: str) -> Vector:
        """Return a vector that the strategy keeps with the model."""
        found = self.extra[name]
        assert not isinstance(found, Mask)
        return found

    def first_base(self) -> Vector:
        """Return the values at the start of training under this mask."""
        assert self.mask is not None
        if self.first is not None:
            return self.first
        return self.mask.gather(self.initial if self.scored is None else vector_of(self.scored))

    @property
    def is_untrained(self) -> bool:
        """True before the first mask, while the whole model is the initial vector."""
        return self.mask is None or self.values is None

    @cached_property
    def whole(self) -> Vector:
        """The vector to score: trained values on the mask, resting values off it."""
        if self.mask is None or self.values is None:
            return self.initial
        resting = self.start if self.resting is None else self.resting
        return self.mask.put(self.values, resting.copy())

    @cached_property
    def whole_digest(self) -> bytes:
        """Digest of the vector to score."""
        return self.initial_digest if self.is_untrained else values_digest(self.whole)

    def release(self) -> None:
        """Drop vectors of the model's size that can be read or computed again."""
        self.__dict__.pop("whole", None)
        for vector in (self.start, self.scored, self.resting):
            if isinstance(vector, StoredVector):
                vector.release()
