"""The global model as the coordinator holds it between steps."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask

Vector = npt.NDArray[np.float32]


def values_digest(values: Vector) -> bytes:
    """Return the SHA-256 of the values as little-endian float32."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").data).digest()


class StoredVector:
    """A vector as long as the model that need not stay in memory, since it can be read again."""

    def __init__(
        self, digest: bytes, read: Callable[[], Vector], vector: Vector | None = None
    ) -> None:
        """`read` makes a vector with this digest; `vector` is one, if it is at hand."""
        self.digest = digest
        self._read = read
        self._vector = vector
        self._lock = threading.Lock()

    def vector(self) -> Vector:
        """Return the vector; it stays at hand until it is released."""
        with self._lock:
            if self._vector is None:
                self._vector = self._read()
            return self._vector

    def copy(self) -> Vector:
        """Return a vector of the caller's own; one that is not at hand is read, not kept."""
        with self._lock:
            return self._read() if self._vector is None else self._vector.copy()

    def release(self) -> None:
        """Let go of the vector; who asks again waits until it is read."""
        with self._lock:
            self._vector = None


ModelVector = Vector | StoredVector


def vector_of(whole: ModelVector) -> Vector:
    return whole.vector() if isinstance(whole, StoredVector) else whole


def digest_of(whole: ModelVector) -> bytes:
    return whole.digest if isinstance(whole, StoredVector) else values_digest(whole)


@dataclass(frozen=True)
class ModelState:
    """A manifest, the initial vector, and, once agreed, the mask and the kept values.

    Pruned weights are zero in the network, but they are not forgotten: each rests at a value from
    which it starts if a later mask keeps it. The *whole* model has the trained values on the mask
    and the resting ones off it; this is what clients score when the mask is renewed.
    """

    manifest: Manifest
    start: ModelVector  # (manifest.size,) the vector before any training
    mask: Mask | None = None
    mask_epoch: int = 0  # counts agreed masks: 0 is "none yet"
    values: Vector | None = None  # (num_kept + num_unmasked,)
    # Of a lossy run: the values as a coded change from those of the state before.
    change: memoryview | None = None
    initial_digest: bytes = b""  # of `start`: computed once, since it may take a while
    # (manifest.size,) the whole model that the mask was agreed on; None: the initial vector.
    scored: ModelVector | None = None
    scored_digest: bytes = b""
    # (manifest.size,) where pruned weights rest: `scored`, or the initial vector if None.
    resting: ModelVector | None = None
    first: Vector | None = None  # the values that training under this mask began with, if at hand

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
        """Digest of the kept values; empty while there are none."""
        return b"" if self.values is None else values_digest(self.values)

    @property
    def resting_digest(self) -> bytes:
        """Digest of the vector where pruned weights rest; empty: the initial vector."""
        return b"" if self.resting is None else self.scored_digest

    def first_base(self) -> Vector:
        """Return the values that training under this mask began with."""
        assert self.mask is not None
        if self.first is not None:
            return self.first
        return self.mask.gather(self.initial if self.scored is None else vector_of(self.scored))

    @property
    def is_untrained(self) -> bool:
        """Tell whether the whole model is the initial vector."""
        return self.mask is None or self.values is None

    @cached_property
    def whole(self) -> Vector:
        """The vector to score: trained values on the mask, resting ones off it."""
        if self.mask is None or self.values is None:
            return self.initial
        resting = self.start if self.resting is None else self.resting
        return self.mask.put(self.values, resting.copy())

    @cached_property
    def whole_digest(self) -> bytes:
        """Digest of the vector to score."""
        return self.initial_digest if self.is_untrained else values_digest(self.whole)

    def release(self) -> None:
        """Let go of vectors as long as the model that can be read or made again."""
        self.__dict__.pop("whole", None)
        for whole in (self.start, self.scored, self.resting):
            if isinstance(whole, StoredVector):
                whole.release()
