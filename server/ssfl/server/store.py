"""The model in the state directory: written whole, synced, then named by the journal.

manifest.json     the run's manifest
initial.f32       initial vector, only if it does not follow from the seed
mask-<epoch>.bin  packed mask bits
values-<step>.f32 kept values after the step
"""

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


class Store:
    """The model files of one run."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.seed = seed

    def save_initial(self, manifest: Manifest, initial: npt.NDArray[np.float32]) -> None:
        """Store what every later step starts from."""
        write_atomic(self.root / "manifest.json", manifest.json)
        if not manifest.rebuildable:
            write_atomic(self.root / "initial.f32", values_only.encode(initial))

    def save_step(self, step: int, state: ModelState) -> None:
        """Store the mask and values after a step."""
        assert state.mask is not None and state.values is not None
        mask = self.root / f"mask-{state.mask_epoch}.bin"
        if not mask.exists():
            write_atomic(mask, state.mask.bits)
        write_atomic(self.root / f"values-{step}.f32", values_only.encode(state.values))

    def drop_older(self, step: int) -> None:
        """Forget the values of earlier steps; call it when the journal names a newer one."""
        for path in self.root.glob("values-*.f32"):
            if int(path.stem.split("-")[1]) < step:
                path.unlink()

    def load_manifest(self, digest: str) -> Manifest:
        """Return the manifest the journal names."""
        manifest = Manifest.from_json(self._read("manifest.json"))
        self._check("manifest.json", manifest.digest, digest)
        return manifest

    def load_initial(self, manifest: Manifest, digest: str) -> npt.NDArray[np.float32]:
        """Return the initial vector, rebuilt from the seed where that is possible."""
        if manifest.rebuildable:
            initial = initial_vector(manifest, self.seed)
        else:
            initial = values_only.decode(self._read("initial.f32"), manifest.size)
        self._check("initial.f32", values_digest(initial), digest)
        return initial

    def load_step(
        self, step: int, state: ModelState, epoch: int, mask_digest: str, base_digest: str
    ) -> ModelState:
        """Return `state` with the mask and values the journal names."""
        name = f"mask-{epoch}.bin"
        mask = Mask(self._read(name), state.manifest.num_masked)
        self._check(name, mask.digest, mask_digest)
        name = f"values-{step}.f32"
        count = mask.num_kept + state.manifest.num_unmasked
        values = values_only.decode(self._read(name), count)
        self._check(name, values_digest(values), base_digest)
        return ModelState(state.manifest, state.initial, mask, epoch, values)

    def _read(self, name: str) -> bytes:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            raise StateError(
                f"{self.root / name} is missing: restore the state directory from a backup, "
                "or use --fresh to begin again"
            ) from None

    def _check(self, name: str, actual: bytes, expected: str) -> None:
        if actual.hex() != expected:
            raise StateError(
                f"{self.root / name} does not match the journal: restore the state directory "
                "from a backup, or use --fresh to begin again"
            )
