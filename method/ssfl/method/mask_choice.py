"""Choosing the kept weights: global Top-k with its options.

A layer guard leaves every tensor some of its weights. Scores may be signed. A mask may have to
contain an older one. Every choice is exact; of equal scores the lowest coordinate is kept, as in
`top_k`.
"""

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.codec.values_only import encoded_bytes
from ssfl.method.density import count_kept
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, Scores, top_k

REPORTED_SPARSITIES = ("0.5", "0.8", "0.9", "0.95", "0.98")


def choose_mask(scores: Scores, k: int, manifest: Manifest, guard: float) -> Mask:
    """Return the mask of the k largest scores, which may be signed.

    With a guard above 0, every masked tensor first keeps its own max(1, floor(guard * size))
    largest. The rest of k goes to the largest of all other scores.
    """
    if not guard:
        return top_k_signed(scores, k)
    kept = np.zeros(scores.size, dtype=np.bool_)
    for place, quota in guard_quotas(manifest, k, guard):
        kept[place] = top_k_signed(scores[place], quota).bools()
    return _fill_up(kept, scores, k)


def guard_quotas(manifest: Manifest, k: int, guard: float) -> list[tuple[slice, int]]:
    """Return the place of each masked tensor and the number of weights that a guard keeps there.

    Raise DensityError if their sum is more than k.
    """
    share = Fraction(str(guard))  # as written: 0.29 of 100 is 29; floats would give 28
    quotas = [(place, max(1, int(share * tensor.size))) for tensor, place in manifest.masked()]
    needed = sum(quota for _, quota in quotas)
    if needed > k:
        raise DensityError(
            f"--layer-guard {guard:g} alone keeps {needed} of {manifest.num_masked} weights, but "
            f"only {k} may be kept: use a smaller guard or a lower sparsity"
        )
    return quotas


def top_k_signed(scores: Scores, k: int) -> Mask:
    """Return the mask of the k largest scores, which may be negative but not NaN.

    Among positive scores `top_k` finds those to keep. Among negative scores it finds those to
    drop: the largest magnitudes, in reverse order, so that of equal scores the last are dropped.

    >>> top_k_signed(np.array([-1, -3, 2, -1], dtype=np.float32), 2).bools().tolist()
    [True, False, True, False]
    """
    if not 0 <= k <= scores.size:
        raise ValueError(f"cannot keep {k} of {scores.size}")
    if np.isnan(scores).any():
        raise ValueError("scores must not be NaN")
    num_positive = int(np.count_nonzero(scores > 0))
    num_negative = int(np.count_nonzero(scores < 0))
    if k <= num_positive or not num_negative:
        return top_k(np.maximum(scores, np.float32(0)) if num_negative else scores, k)
    if scores.size - k <= num_negative:
        dropped = top_k(np.maximum(-scores[::-1], np.float32(0)), scores.size - k).bools()
        return Mask.from_bools(~dropped[::-1])
    kept = scores > 0  # plus the first zeros, up to k
    kept[np.flatnonzero(scores == 0)[: k - num_positive]] = True
    return Mask.from_bools(kept)


def grow_mask(mask: Mask, scores: Scores, k: int) -> Mask:
    """Return a mask of k weights: all of `mask`, and the others with the largest scores."""
    if scores.size != mask.size:
        raise ValueError(f"{scores.size} scores for a mask of {mask.size} weights")
    if k < mask.num_kept:
        raise ValueError(f"a mask that keeps {mask.num_kept} cannot grow to {k}")
    return _fill_up(mask.bools(), scores, k)


def _fill_up(kept: npt.NDArray[np.bool_], scores: Scores, k: int) -> Mask:
    """Return the mask that keeps `kept` and the largest other scores, k in total."""
    others = ~kept
    missing = k - int(np.count_nonzero(kept))
    kept[others] = top_k_signed(scores[others], missing).bools()
    return Mask.from_bools(kept)


def density_rows(scores: Scores, manifest: Manifest) -> list[dict[str, Any]]:
    """Return, for every sparsity, the number of kept weights, the update size and thinnest layer.

    `update_bytes` is the size of one client's update (or base) as plain values, an upper bound.
    """
    rows = []
    for sparsity in REPORTED_SPARSITIES:
        num_kept = count_kept(sparsity, manifest.num_masked)
        if not num_kept:  # the model is too small
            continue
        layers = top_k(scores, num_kept).kept_by_tensor(manifest)
        name, (kept, size) = min(layers.items(), key=lambda layer: layer[1][0] / layer[1][1])
        rows.append(
            {
                "sparsity": sparsity,
                "num_kept": num_kept,
                "update_bytes": encoded_bytes(num_kept + manifest.num_unmasked),
                "thinnest": {"name": name, "kept": kept, "size": size},
            }
        )
    return rows
