"""Verification: all values of an upload are checked before any of them is added to a sum.

An iterator yields the values in blocks, whatever their encoding. One pass checks and hashes them.
For coded uploads it also writes the decoded values to a file, which will be summed.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ssfl.codec import values_only
from ssfl.codec.errors import DigestMismatch
from ssfl.method import norm_clip
from ssfl.method.exact_sum import VALUE_BOUND
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import Vector
from ssfl.server.errors import BadValues
from ssfl.server.storage.upload_files import Block, PartialUpload, StagedValues, StoredValues
from ssfl.strategies.contract import ClientId


@dataclass(frozen=True, slots=True)
class VerifiedUpload:
    """An upload that may be summed: its digest matches and every value is in bounds."""

    values: StoredValues  # the file to sum
    digest: bytes  # SHA-256 of `values`
    largest: float  # the largest |value|, as sent
    report: Mapping[str, float] = field(default_factory=dict)  # for the history
    own_mask: bytes = b""  # digest of the mask that came with it
    numbers: tuple[float, ...] = ()  # further numbers, which the strategy asks for


@dataclass(frozen=True, slots=True)
class ScoreCheck:
    """Scores must be finite and, unless `signed`, not negative."""

    client: ClientId
    manifest: Manifest
    signed: bool = False

    def largest(self, start: int, block: Vector) -> float:
        """Return the largest |value| of the block at `start`; raise BadValues for a bad one."""
        magnitudes = np.abs(block) if self.signed else block
        bad = ~((magnitudes >= 0) & (magnitudes < np.inf))
        if bad.any():
            at = int(np.argmax(bad))
            rule = "finite" if self.signed else "finite and not negative"
            raise BadValues(
                f"{self.client} sent a score of {block[at]} in "
                f"{self.manifest.tensor_at(start + at)}: scores must be {rule}"
            )
        return float(magnitudes.max(initial=0.0))


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """Values must be finite and small enough to be summed exactly."""

    client: ClientId
    manifest: Manifest
    mask: Mask

    def largest(self, start: int, block: Vector) -> float:
        """Return the largest |value| of the block at `start`; raise BadValues for a bad one."""
        magnitudes = np.abs(block)
        bad = ~(magnitudes <= VALUE_BOUND)
        if bad.any():
            at = int(np.argmax(bad))
            raise BadValues(
                f"{self.client} sent a value of size {magnitudes[at]} in "
                f"{self._tensor_at(start + at)}: "
                f"values must be finite and at most {VALUE_BOUND:g}; are the inputs scaled, and is "
                "--learning-rate small enough?"
            )
        return float(magnitudes.max(initial=0.0))

    def _tensor_at(self, index: int) -> str:
        """Return the name of the tensor that holds the value at an index of the upload."""
        manifest, kept = self.manifest, self.mask.num_kept
        index %= kept + manifest.num_unmasked  # further vectors follow the values
        if index < kept:
            return manifest.tensor_at(int(np.flatnonzero(self.mask.bools())[index]))
        return manifest.tensor_at(manifest.num_masked + index - kept)


BlockCheck = ScoreCheck | ValueCheck


def largest_of(blocks: Iterable[Block], check: BlockCheck) -> float:
    """Return the largest |value| of all blocks; raise BadValues if `check` does."""
    return max((check.largest(start, block) for start, block in blocks), default=0.0)


def verify_plain(
    part: PartialUpload, sent_digest: bytes, count: int, check: BlockCheck
) -> VerifiedUpload:
    """Verify an upload whose bytes are its values; its own file will be summed."""
    try:
        verified = _read_once(part.values, part.values.blocks(count), check)
    except BadValues:
        part.check_digest(sent_digest)  # raises if the bytes were damaged in transit
        raise
    if verified.digest != sent_digest:
        raise DigestMismatch(sent_digest, verified.digest)
    return verified


def verify_coded(
    part: PartialUpload, sent_digest: bytes, blocks: Iterable[Block], check: BlockCheck
) -> VerifiedUpload:
    """Verify an upload while decoding its `blocks`; write them to a file of values."""
    part.check_digest(sent_digest)
    with part.stage() as staged:
        return _read_once(staged.values, blocks, check, staged)


def verify_parts(
    part: PartialUpload,
    blocks: Iterable[Block],
    check: "ValueCheck",
    bits: bytes,
    numbers: tuple[float, ...],
) -> VerifiedUpload:
    """Verify an update of several parts; write its decoded values, then the bits of its mask."""
    with part.stage() as staged:
        found = _read_once(staged.values, blocks, check, staged, tail=bits)
    own_mask = check.mask.digest if bits else b""
    return replace(found, own_mask=own_mask, numbers=numbers)


def _read_once(
    values: StoredValues,
    blocks: Iterable[Block],
    check: BlockCheck,
    staged: StagedValues | None = None,
    tail: bytes = b"",
) -> VerifiedUpload:
    largest, hashed = 0.0, hashlib.sha256()
    for start, block in blocks:
        largest = max(largest, check.largest(start, block))
        hashed.update(values_only.encode(block))
        if staged is not None:
            staged.write(block)
    if staged is not None and tail:
        hashed.update(tail)
        staged.write_bytes(tail)
    return VerifiedUpload(values, hashed.digest(), largest)


def clip_update(
    part: PartialUpload, verified: VerifiedUpload, base: Vector, limit: float
) -> VerifiedUpload:
    """Return the update, with the norm of its difference from `base` clipped to `limit`.

    A `limit` of 0 means no limit.
    """
    if not limit:
        return verified
    norm = norm_clip.change_norm(verified.values.blocks(base.size), base)
    if norm <= limit:
        return verified
    clipped = norm_clip.scale_change(verified.values.blocks(base.size), base, limit / norm)
    hashed = hashlib.sha256()
    with part.stage() as staged:
        for _, block in clipped:
            hashed.update(values_only.encode(block))
            staged.write(block)
    if verified.values != part.values:
        verified.values.drop()
    return replace(verified, values=staged.values, digest=hashed.digest(), report={"clipped": norm})
