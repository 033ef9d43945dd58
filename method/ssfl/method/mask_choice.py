"""Which weights a mask keeps: global Top-k, and what may be asked of it besides.

A layer guard leaves every tensor some of its weights; scores may be signed; a mask may have to
keep all of an older one. Every choice is exact, and of equal scores the lowest coordinate is
kept, as `top_k` has it.
"""

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, Scores, top_k


def choose_mask(scores: Scores, k: int, manifest: Manifest, guard: float) -> Mask:
    """Return the mask of the k largest scores, be they signed or not.

    With a guard above 0 every masked tensor first gets max(1, floor(guard * size)) of its own
    largest; what is left of k goes to the largest of all others.
    """
    if not guard:
        return top_k_signed(scores, k)
    kept = np.zeros(scores.size, dtype=np.bool_)
    for place, quota in guard_quotas(manifest, k, guard):
        kept[place] = top_k_signed(scores[place], quota).bools()
    return _filled(kept, scores, k)


def guard_quotas(manifest: Manifest, k: int, guard: float) -> list[tuple[slice, int]]:
    """Return where each masked tensor lies and how many of its weights a guard keeps.

    Raises DensityError if these alone are more than k.
    """
    share = Fraction(str(guard))  # as it was written: 0.29 of 100 are 29, with floats 28
    quotas = [(place, max(1, int(share * tensor.size))) for tensor, place in manifest.masked()]
    needed = sum(quota for _, quota in quotas)
    if needed > k:
        raise DensityError(
            f"--layer-guard {guard:g} alone keeps {needed} of {manifest.num_masked} weights, but "
            f"only {k} may be kept: use a smaller guard or a lower sparsity"
        )
    return quotas


def top_k_signed(scores: Scores, k: int) -> Mask:
    """Return the mask of the k largest of scores that may be negative, but not NaN.

    Among positive scores `top_k` finds what is kept. Among negative ones it finds what is
    dropped: the largest without their sign, from the end, so that of equal ones the last go.

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
    kept = scores > 0  # and as many of those that are zero as are missing
    kept[np.flatnonzero(scores == 0)[: k - num_positive]] = True
    return Mask.from_bools(kept)


def grow_mask(mask: Mask, scores: Scores, k: int) -> Mask:
    """Return a mask of k weights: all of `mask`, and the largest scores of the others."""
    if scores.size != mask.size:
        raise ValueError(f"{scores.size} scores for a mask of {mask.size} weights")
    if k < mask.num_kept:
        raise ValueError(f"a mask that keeps {mask.num_kept} cannot grow to {k}")
    return _filled(mask.bools(), scores, k)


def _filled(kept: npt.NDArray[np.bool_], scores: Scores, k: int) -> Mask:
    """Return the mask that keeps these and the largest of the others, k in all."""
    others = ~kept
    missing = k - int(np.count_nonzero(kept))
    kept[others] = top_k_signed(scores[others], missing).bools()
    return Mask.from_bools(kept)
