"""The global model as the coordinator holds it between steps."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask


def values_digest(values: npt.NDArray[np.float32]) -> bytes:
    """Return the SHA-256 of the values as little-endian float32."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").data).digest()


@dataclass(frozen=True)
class ModelState:
    """A manifest, the initial vector, and, once agreed, the mask and the kept values."""

    manifest: Manifest
    initial: npt.NDArray[np.float32]  # (manifest.size,) the vector before any training
    mask: Mask | None = None
    mask_epoch: int = 0  # counts agreed masks: 0 is "none yet"
    values: npt.NDArray[np.float32] | None = None  # (num_kept + num_unmasked,)
    # Of a lossy run: the values as a coded change from those of the state before. Not stored:
    # after a restart, who lacks the values is sent all of them.
    change: memoryview | None = None
    initial_digest: bytes = b""  # of `initial`: computed once, since it may take a while

    def __post_init__(self) -> None:
        if not self.initial_digest:
            object.__setattr__(self, "initial_digest", values_digest(self.initial))

    @cached_property
    def base_digest(self) -> bytes:
        """Digest of the kept values; empty while there are none."""
        return b"" if self.values is None else values_digest(self.values)
