"""The model in the state directory: written whole, synced, then named by the journal.

manifest-<digest>.json  the run's manifest
initial-<digest>.f32    initial vector, only if it does not follow from the seed
mask-<epoch>.bin        packed mask bits
scored-<epoch>.f32      the whole model a mask was agreed on, if it is not the initial one
values-<step>.f32       kept values after the step
best-<step>.f32         the same, of the best model so far

Several clients may describe a model at once and the journal decides for one: files named by
digest cannot overwrite each other.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.codec import values_only
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, values_digest
from ssfl.program.files import write_atomic
from ssfl.server.errors import StateError
from ssfl.server.state import Best


class Store:
    """The model files of one run."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.seed = seed

    def save_initial(self, manifest: Manifest, initial: npt.NDArray[np.float32]) -> None:
        """Store what every later step starts from."""
        write_atomic(self.root / _manifest(manifest.digest.hex()), manifest.json)
        if not manifest.rebuildable:
            name = _initial(values_digest(initial).hex())
            write_atomic(self.root / name, values_only.encode(initial))

    def save_step(self, step: int, state: ModelState) -> None:
        """Store the mask and values after a step."""
        assert state.mask is not None and state.values is not None
        mask = self.root / f"mask-{state.mask_epoch}.bin"
        if not mask.exists():
            write_atomic(mask, state.mask.bits)
        scored = self.root / f"scored-{state.mask_epoch}.f32"
        if state.scored is not None and not scored.exists():
            write_atomic(scored, values_only.encode(state.scored))
        write_atomic(self.root / f"values-{step}.f32", values_only.encode(state.values))

    def keep_best(self, step: int) -> None:
        """Keep the values of a step, as the best so far, from being dropped."""
        best = self.root / f"best-{step}.f32"
        if not best.exists():  # else it was kept before a crash
            write_atomic(best, (self.root / f"values-{step}.f32").read_bytes())
        _drop_below(self.root, "best", step)

    def holds_best(self, best: Best) -> bool:
        """Tell whether the values of the best model are here."""
        return (self.root / f"best-{best.step}.f32").exists()

    def load_best(self, best: Best, state: ModelState) -> ModelState:
        """Return `state` with the mask and values of the best model."""
        return self._with_values(
            f"best-{best.step}.f32", state, best.mask_epoch, best.mask_digest, best.base_digest
        )

    def holds_something(self) -> bool:
        """Tell whether model files are here: then there must be a journal that names them."""
        patterns = ("manifest-*.json", "*-*.f32", "mask-*.bin")
        return any(True for pattern in patterns for _ in self.root.glob(pattern))

    def drop_older(self, step: int, epoch: int) -> None:
        """Forget the values of earlier steps; call it when the journal names a newer one."""
        _drop_below(self.root, "values", step)
        _drop_below(self.root, "scored", epoch)

    def load_manifest(self, digest: str) -> Manifest:
        """Return the manifest the journal names."""
        return Manifest.from_json(self._read(_manifest(digest), digest))

    def load_initial(self, manifest: Manifest, digest: str) -> npt.NDArray[np.float32]:
        """Return the initial vector, rebuilt from the seed where that is possible."""
        if not manifest.rebuildable:
            return values_only.decode(self._read(_initial(digest), digest), manifest.size)
        initial = initial_vector(manifest, self.seed)
        if values_digest(initial).hex() != digest:
            raise StateError(
                "this version builds other initial weights from the seed than the run has: "
                "use the version that began it, or --fresh to begin again"
            )
        return initial

    def load_step(
        self, step: int, state: ModelState, epoch: int, mask_digest: str, base_digest: str
    ) -> ModelState:
        """Return `state` with the mask and values the journal names."""
        return self._with_values(f"values-{step}.f32", state, epoch, mask_digest, base_digest)

    def load_scored(self, manifest: Manifest, epoch: int, digest: str) -> npt.NDArray[np.float32]:
        """Return the whole model that the mask was agreed on."""
        return values_only.decode(self._read(f"scored-{epoch}.f32", digest), manifest.size)

    def load_mask(self, manifest: Manifest, epoch: int, digest: str) -> Mask:
        """Return the mask of an epoch."""
        size = manifest.num_masked
        bits = self._read(f"mask-{epoch}.bin", digest, prefix=size.to_bytes(8, "little"))
        return Mask(bits, size)

    def _with_values(
        self, name: str, state: ModelState, epoch: int, mask_digest: str, base_digest: str
    ) -> ModelState:
        mask = self.load_mask(state.manifest, epoch, mask_digest)
        data = self._read(name, base_digest)
        values = values_only.decode(data, mask.num_kept + state.manifest.num_unmasked)
        return replace(state, mask=mask, mask_epoch=epoch, values=values)

    def _read(self, name: str, digest: str, prefix: bytes = b"") -> bytes:
        """Return the file whose SHA-256, behind `prefix`, is the one the journal names."""
        try:
            data = (self.root / name).read_bytes()
        except FileNotFoundError:
            raise StateError(
                f"{self.root / name} is missing: restore the state directory from a backup, "
                "or use --fresh to begin again"
            ) from None
        hashed = hashlib.sha256(prefix)
        hashed.update(data)
        if hashed.hexdigest() != digest:
            raise StateError(
                f"{self.root / name} does not match the journal: restore the state directory "
                "from a backup, or use --fresh to begin again"
            )
        return data


def _drop_below(root: Path, kind: str, number: int) -> None:
    for path in root.glob(f"{kind}-*.f32"):
        if int(path.stem.split("-")[1]) < number:
            path.unlink()


def _manifest(digest: str) -> str:
    return f"manifest-{digest[:16]}.json"


def _initial(digest: str) -> str:
    return f"initial-{digest[:16]}.f32"
