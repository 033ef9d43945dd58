"""Model files in the state directory. The journal names a file only after it is synced.

manifest-<digest>.json  the run's manifest
initial-<digest>.f32    initial vector, even if it could be rebuilt from the seed (slower)
mask-<epoch>.bin        packed mask bits
scored-<epoch>.f32      the whole model a mask was agreed on, if not the initial one
values-<step>.f32       kept values after the step
change-<step>.bin       lossy runs: the change that led to these values, after its SHA-256
best-<step>.f32         kept values of the best model so far
extra-<digest>.json     names and digests of what a strategy keeps with the model
item-<digest>.bin       one of these: float32 values, or packed mask bits

The values before the newest are kept until the next step: clients hold them, and downloads are
coded against them, even after a restart. These values, older masks and the change are not named by
the journal. If one is missing or damaged, clients are sent more bytes, but the same values.

Several clients may describe a model at once, and the journal decides on one. Files named by
digest cannot overwrite each other.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.codec import values_only
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import (
    ModelState,
    StoredVector,
    Vector,
    extra_digest,
    extra_index,
    item_digest,
    values_digest,
    vector_of,
)
from ssfl.server.errors import StateError
from ssfl.server.run.state import Best
from ssfl.server.storage.blobs import FileBlobs
from ssfl.server.storage.contracts import Blobs
from ssfl.server.storage.lazy_vector import LazyVector

_DIGEST_BYTES = 32


class Store:
    """The model files of one run."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.seed = seed
        self._blobs: Blobs = FileBlobs(root)

    def save_initial(self, manifest: Manifest, initial: npt.NDArray[np.float32]) -> None:
        """Store the manifest and the initial vector."""
        self._blobs.put(_manifest(manifest.digest.hex()), manifest.json)
        self._blobs.put(_initial(values_digest(initial).hex()), values_only.encode(initial))

    def lean(self, state: ModelState) -> ModelState:
        """Return a stored state whose whole vectors can be released from memory.

        Vectors that `state` holds stay in memory until `release()`.
        """
        manifest, digest, epoch = state.manifest, state.initial_digest, state.mask_epoch
        if not isinstance(state.start, StoredVector):
            start = LazyVector(
                digest, lambda: self.load_initial(manifest, digest.hex()), state.start
            )
            state = replace(state, start=start)
        if state.scored is None or isinstance(state.scored, StoredVector):
            return state
        name = state.scored_digest.hex()
        scored = LazyVector(
            state.scored_digest, lambda: self.load_scored(epoch, name), state.scored
        )
        return replace(state, scored=scored, resting=None if state.resting is None else scored)

    def save_step(self, step: int, state: ModelState) -> None:
        """Store the mask and values after a step."""
        assert state.mask is not None and state.values is not None
        mask = f"mask-{state.mask_epoch}.bin"
        if not self._holds(mask):
            self._blobs.put(mask, state.mask.bits)
        scored = f"scored-{state.mask_epoch}.f32"
        if state.scored is not None and not self._holds(scored):
            self._blobs.put(scored, values_only.encode(vector_of(state.scored)))
        if state.change is not None:
            digest = hashlib.sha256(state.change).digest()
            self._blobs.put(f"change-{step}.bin", [digest, state.change])
        self._save_extra(state.extra)
        self._blobs.put(f"values-{step}.f32", values_only.encode(state.values))

    def _save_extra(self, extra: Mapping[str, Vector | Mask]) -> None:
        """Store what a strategy keeps with the model; items that are here are not rewritten."""
        if not extra:
            return
        held = set(self._blobs.names("item-"))
        for value in extra.values():
            name = _item(item_digest(value).hex())
            if name not in held:
                data = value.bits if isinstance(value, Mask) else values_only.encode(value)
                self._blobs.put(name, data)
                held.add(name)
        self._blobs.put(_extra(extra_digest(extra)), extra_index(extra))

    def load_extra(self, digest: str, manifest: Manifest) -> dict[str, Vector | Mask]:
        """Return what a strategy keeps with the model, as the journal names it."""
        size, found = manifest.num_masked, dict[str, Vector | Mask]()
        for name, (kind, item) in json.loads(self._read(_extra(digest), digest)).items():
            if kind == "mask":
                prefix = size.to_bytes(8, "little")
                found[name] = Mask(bytes(self._read(_item(item), item, prefix=prefix)), size)
            else:
                found[name] = self._read_vector(_item(item), item)
        return found

    def _drop_extra_but(self, digest: str) -> None:
        """Delete items that the journal no longer names."""
        kept = set[str]()
        if digest:
            index = json.loads(self._read(_extra(digest), digest))
            kept = {_extra(digest), *(_item(item) for _, item in index.values())}
        for name in [*self._blobs.names("extra-"), *self._blobs.names("item-")]:
            if name not in kept:
                self._blobs.delete(name)

    def keep_best(self, step: int) -> None:
        """Keep the values of a step as the best so far."""
        best = f"best-{step}.f32"
        if not self._holds(best):  # it may have been kept before a crash
            self._blobs.put(best, self._blobs.read(f"values-{step}.f32"))
        self._drop_below("best", step)

    def holds_best(self, best: Best) -> bool:
        """Return True if the values of the best model are here."""
        return self._holds(f"best-{best.step}.f32")

    def mend_best(self, best: Best) -> bool:
        """Copy the values of the best model again if the copy is damaged; return True if copied.

        Raise StateError if the values of its step are no longer here.
        """
        copy, values = f"best-{best.step}.f32", f"values-{best.step}.f32"
        try:
            self._read(copy, best.base_digest)
        except StateError:
            if not self._holds(values):
                raise
            self._blobs.put(copy, self._read(values, best.base_digest))
            return True
        return False

    def load_best(self, best: Best, state: ModelState) -> ModelState:
        """Return `state` with the mask and values of the best model."""
        return self._with_values(
            f"best-{best.step}.f32", state, best.mask_epoch, best.mask_digest, best.base_digest
        )

    def holds_something(self) -> bool:
        """Return True if model files are here, which implies that a journal must exist."""
        patterns = ("manifest-*.json", "*-*.f32", "mask-*.bin", "change-*.bin")
        names = self._blobs.names()
        return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)

    @property
    def newest_step(self) -> int:
        """The newest step whose values are here; 0: none."""
        return max(self._numbers("values"), default=0)

    def drop_older(self, step: int, epoch: int, extra: str = "") -> None:
        """Delete files that are no longer needed; call it AFTER the journal names a newer step.

        `extra` is the digest of what the strategy keeps with the model.
        """
        self._drop_below("values", self._step_before(step) or step)
        self._drop_below("change", step)
        self._drop_below("scored", epoch)
        self._drop_extra_but(extra)

    def load_earlier(self, step: int, model: ModelState, *, renewed: bool) -> list[ModelState]:
        """Return the earlier models that clients may hold, oldest first.

        These are the previous mask and the previous values. With `renewed`, the previous values
        belong to the previous mask.
        """
        assert model.mask is not None
        masks = (self._mask(epoch, model) for epoch in range(model.mask_epoch - 1, 0, -1))
        other = next((mask for mask in masks if mask and mask != model.mask), None)
        of_values = self._mask(model.mask_epoch - 1, model) if renewed else model.mask
        values = self._values_before(step, of_values, model)
        found = [(other, None), (of_values, values)]
        return [
            replace(model, mask=mask, values=values, change=None)
            for mask, values in found
            if mask is not None
        ]

    def load_change(self, step: int) -> memoryview | None:
        """Return the coded change of a lossy step; None if it is missing or damaged."""
        try:
            data = memoryview(self._blobs.read(f"change-{step}.bin"))
        except FileNotFoundError:
            return None
        digest, change = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return change if hashlib.sha256(change).digest() == digest else None

    def _mask(self, epoch: int, model: ModelState) -> Mask | None:
        """Return an older mask; None if it is missing or does not fit the model."""
        try:
            bits = self._blobs.read(f"mask-{epoch}.bin")
            return Mask(bytes(bits), model.manifest.num_masked)
        except (FileNotFoundError, ValueError):
            return None

    def _values_before(
        self, step: int, mask: Mask | None, model: ModelState
    ) -> npt.NDArray[np.float32] | None:
        before = self._step_before(step)
        if not before or mask is None:
            return None
        data = self._blobs.read(f"values-{before}.f32")
        count = mask.num_kept + model.manifest.num_unmasked
        fits = len(data) == values_only.encoded_bytes(count)
        return values_only.decode(data, count) if fits else None

    def _step_before(self, step: int) -> int:
        """Return the newest step before `step` whose values are here; 0 if there is none."""
        return max((n for n in self._numbers("values") if n < step), default=0)

    def load_manifest(self, digest: str) -> Manifest:
        """Return the manifest the journal names."""
        return Manifest.from_json(bytes(self._read(_manifest(digest), digest)))

    def load_initial(self, manifest: Manifest, digest: str) -> npt.NDArray[np.float32]:
        """Return the initial vector; rebuild it from the seed if its file is missing or damaged."""
        try:
            return self._read_vector(_initial(digest), digest)
        except StateError:
            if not manifest.rebuildable:
                raise
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

    def load_scored(self, epoch: int, digest: str) -> npt.NDArray[np.float32]:
        """Return the whole model that the mask was agreed on."""
        return self._read_vector(f"scored-{epoch}.f32", digest)

    def load_mask(self, manifest: Manifest, epoch: int, digest: str) -> Mask:
        """Return the mask of an epoch."""
        size = manifest.num_masked
        bits = self._read(f"mask-{epoch}.bin", digest, prefix=size.to_bytes(8, "little"))
        return Mask(bytes(bits), size)

    def _with_values(
        self, name: str, state: ModelState, epoch: int, mask_digest: str, base_digest: str
    ) -> ModelState:
        mask = self.load_mask(state.manifest, epoch, mask_digest)
        data = self._read(name, base_digest)
        values = values_only.decode(data, mask.num_kept + state.manifest.num_unmasked)
        return replace(state, mask=mask, mask_epoch=epoch, values=values)

    def _read(self, name: str, digest: str, prefix: bytes = b"") -> bytearray:
        """Return a file; its SHA-256, with `prefix` before it, must be the one in the journal."""
        with self._found(name):
            data = self._blobs.read(name)
        hashed = hashlib.sha256(prefix)
        hashed.update(data)
        self._check(name, hashed.hexdigest(), digest)
        return data

    def _read_vector(self, name: str, digest: str) -> npt.NDArray[np.float32]:
        """Return the values of a file; its SHA-256 must be the one in the journal."""
        with self._found(name):
            data = self._blobs.read(name)
        whole = len(data) // 4 * 4  # a truncated file does not match
        vector = np.frombuffer(data, dtype="<f4", count=whole // 4).astype(np.float32, copy=False)
        self._check(name, values_digest(vector).hex() if whole == len(data) else "", digest)
        return vector

    def _holds(self, name: str) -> bool:
        return name in self._blobs.names(name)

    def _numbers(self, kind: str) -> dict[int, str]:
        """Return the file names of a kind by step or epoch."""
        names = self._blobs.names(f"{kind}-")
        return {int(name.split("-")[1].split(".")[0]): name for name in names}

    def _drop_below(self, kind: str, number: int) -> None:
        for found, name in self._numbers(kind).items():
            if found < number:
                self._blobs.delete(name)

    @contextmanager
    def _found(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise StateError(
                f"{self.root / name} is missing: restore the state directory from a backup, "
                "or use --fresh to begin again"
            ) from None

    def _check(self, name: str, found: str, digest: str) -> None:
        if found != digest:
            raise StateError(
                f"{self.root / name} does not match the journal: restore the state directory "
                "from a backup, or use --fresh to begin again"
            )


def _manifest(digest: str) -> str:
    return f"manifest-{digest[:16]}.json"


def _initial(digest: str) -> str:
    return f"initial-{digest[:16]}.f32"


def _extra(digest: str) -> str:
    return f"extra-{digest[:16]}.json"


def _item(digest: str) -> str:
    return f"item-{digest[:32]}.bin"
