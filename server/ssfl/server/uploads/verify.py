"""Is an upload fit for the sum? Checked block by block, before a single value is added."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.method.exact_sum import VALUE_BOUND
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.strategies.contract import ClientId
from ssfl.server.errors import BadValues
from ssfl.server.storage.spool import read_values

_BLOCK = 1 << 18  # values

Blocks = Iterable[tuple[int, npt.NDArray[np.float32]]]  # where each begins, and its values


def verify_scores(
    path: Path, client: ClientId, manifest: Manifest, *, signed: bool = False
) -> float:
    """Return the largest score in a file; raise BadValues as `largest_score` does."""
    return largest_score(read_blocks(path, manifest.num_masked), client, manifest, signed=signed)


def verify_values(
    path: Path, client: ClientId, count: int, manifest: Manifest, mask: Mask
) -> float:
    """Return the largest |value| in a file; raise BadValues as `largest_value` does."""
    return largest_value(read_blocks(path, count), client, manifest, mask)


def largest_score(
    blocks: Blocks, client: ClientId, manifest: Manifest, *, signed: bool = False
) -> float:
    """Return the largest |score|; raise BadValues for one that is NaN, infinite or negative.

    With `signed`, scores may be negative.
    """
    largest = 0.0
    for start, block in blocks:
        size = np.abs(block) if signed else block
        bad = ~((size >= 0) & (size < np.inf))
        if bad.any():
            at = start + int(np.argmax(bad))
            rule = "finite" if signed else "finite and not negative"
            raise BadValues(
                f"{client} sent a score of {block[at - start]} in {manifest.tensor_at(at)}: "
                f"scores must be {rule}"
            )
        largest = max(largest, float(size.max(initial=0.0)))
    return largest


def largest_value(blocks: Blocks, client: ClientId, manifest: Manifest, mask: Mask) -> float:
    """Return the largest |value|; raise BadValues for NaN, infinity or one beyond the bound."""
    largest = 0.0
    for start, values in blocks:
        block = np.abs(values)
        bad = ~(block <= VALUE_BOUND)
        if bad.any():
            at = start + int(np.argmax(bad))
            raise BadValues(
                f"{client} sent a value of size {block[at - start]} in "
                f"{_tensor(at, manifest, mask)}: values must be finite and at most "
                f"{VALUE_BOUND:g}; are the inputs scaled, and is --learning-rate small enough?"
            )
        largest = max(largest, float(block.max(initial=0.0)))
    return largest


def read_blocks(
    path: Path, count: int, size: int = _BLOCK
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield the `count` values of a file in blocks, each with its place."""
    for start in range(0, count, size):
        yield start, read_values(path, start, size)


def _tensor(place: int, manifest: Manifest, mask: Mask) -> str:
    """Return the tensor that holds the `place`-th of the values that travel."""
    if place < mask.num_kept:
        return manifest.tensor_at(int(np.flatnonzero(mask.bools())[place]))
    return manifest.tensor_at(manifest.num_masked + place - mask.num_kept)
