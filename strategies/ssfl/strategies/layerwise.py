"""Masks layer by layer: how many weights each layer keeps, and which.

A layer is a masked tensor. The densities of Erdős-Rényi-kernel (ERK, Evci et al. 2020) are
eps * sum(shape) / prod(shape). A layer that would exceed 1 is dense, and eps is solved again for
the others. They are computed over the masked tensors alone. Code that computes them over all
tensors makes norms and biases dense first; here these are dense anyway and outside the count.

Counts are exact: integers and fractions, so every machine computes the same. They are rounded to
the exact total by largest remainders, or down, as code of other authors does (`run_counts`).
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.method.density import kept_for_sparsity
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Bools, Mask, largest
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import Weights, committed


def filled(
    shares: Sequence[int | Fraction], sizes: Sequence[int], total: int | Fraction
) -> list[Fraction]:
    """Split `total` in proportion to `shares`, at most `sizes` each.

    A part that exceeds its size is cut to it, and the others are solved again. Parts that remain
    without shares are proportional to their sizes.

    >>> [str(part) for part in filled([1, 1, 1], [1, 10, 10], 6)]
    ['1', '5/2', '5/2']
    """
    if not 0 <= total <= sum(sizes):
        raise ValueError(f"cannot spread {total} over {sum(sizes)} places")
    full: set[int] = set()
    while True:
        rest = [i for i in range(len(sizes)) if i not in full]
        left = total - sum(sizes[i] for i in full)
        weights = shares if any(shares[i] for i in rest) else sizes
        factor = Fraction(left, sum(weights[i] for i in rest) or 1)
        over = {i for i in rest if factor * weights[i] > sizes[i]}
        if not over:
            return [Fraction(n) if i in full else factor * weights[i] for i, n in enumerate(sizes)]
        full |= over


def spread(shares: Sequence[int | Fraction], sizes: Sequence[int], total: int) -> list[int]:
    """Split `total` as `filled` does, in whole numbers: the largest remainders are rounded up.

    Of equal remainders, the first is rounded up.

    >>> spread([1, 1, 1], [1, 10, 10], 6)
    [1, 3, 2]
    """
    parts = filled(shares, sizes, total)
    counts = [int(part) for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: counts[i] - parts[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def fractional_growth(shares: Sequence[float], free: Sequence[int], budget: float) -> list[int]:
    """Split a budget as code of sparse momentum (Dettmers and Zettlemoyer 2019) does.

    Parts in proportion to `shares` are rounded up. What exceeds 99 % of a layer's free places is
    split evenly over all layers, in fractions, until it fits. At the end, parts are rounded down.

    >>> fractional_growth([0.6, 0.3, 0.1], [10, 10, 500], 60)
    [9, 9, 40]
    """
    wanted, most = np.ceil(np.array(shares) * budget), 0.99 * np.array(free)
    for _ in range(1000):  # each pass leaves less, but the parts may never fit
        parts = np.minimum(wanted, most)
        excess = np.cumsum(wanted - parts)[-1]
        wanted = parts + excess / len(free)
        if excess <= 0:
            break
    return [max(0, int(part)) for part in parts]


def layer_counts(shares: Sequence[int | Fraction], manifest: Manifest, total: int) -> list[int]:
    """Return how many weights each layer keeps: `spread`, but at least one in each layer.

    The largest layers give up these weights. If `total` is smaller than the number of layers, some
    keep none.
    """
    counts = spread(shares, layer_sizes(manifest), total)
    while 0 in counts and max(counts) > 1:
        counts[counts.index(max(counts))] -= 1
        counts[counts.index(0)] += 1
    return counts


def layer_sizes(manifest: Manifest) -> list[int]:
    """Return the number of weights of each layer."""
    return [tensor.size for tensor, _ in manifest.masked()]


def exact_counts(layers: str, manifest: Manifest, total: int | Fraction) -> list[Fraction]:
    """Split `total` over the layers, as fractions.

    "uniform" has equal densities. "erk" has those of ERK: a layer that is not dense keeps
    eps * sum(shape). "linear" has sparsities proportional to 1 - sum(shape) / prod(shape).
    """
    sizes, sums = layer_sizes(manifest), [sum(shape) for shape in manifest.masked_shapes]
    if layers != "linear":
        return filled(sums if layers == "erk" else sizes, sizes, total)
    shares = [max(0, size - some) for size, some in zip(sizes, sums, strict=True)]
    lost = filled(shares, sizes, sum(sizes) - total)
    return [size - some for size, some in zip(sizes, lost, strict=True)]


def num_kept(settings: RunSettings, manifest: Manifest) -> int:
    """Return how many weights the run's sparsity keeps in total."""
    return kept_for_sparsity(settings.sparsity, manifest.num_masked)


def exact_total(settings: RunSettings, manifest: Manifest) -> Fraction:
    """Return what `num_kept` rounds down."""
    return (1 - Fraction(settings.sparsity)) * manifest.num_masked


def run_counts(
    settings: RunSettings, manifest: Manifest, layers: str, rounding: str = "exact"
) -> list[int]:
    """Return how many weights each layer keeps at the run's sparsity.

    "exact" counts add up to `num_kept`, as in `layer_counts`. "floor" rounds the count of every
    layer down: the sum may be lower, and a layer may keep none.
    """
    total = num_kept(settings, manifest)
    if rounding == "exact":
        return layer_counts(exact_counts(layers, manifest, total), manifest, total)
    share = exact_total(settings, manifest)
    counts = [int(count) for count in exact_counts(layers, manifest, share)]
    if not any(counts):
        raise DensityError(
            f"sparsity {settings.sparsity}, rounded down, keeps no weight of any layer"
        )
    return counts


def kept_by_layer(mask: Mask, manifest: Manifest) -> list[int]:
    """Return how many weights of each layer a mask keeps."""
    return [kept for kept, _ in mask.kept_by_tensor(manifest).values()]


def sums_by_layer(votes: Weights, manifest: Manifest) -> list[int]:
    """Return the sum of each layer's votes."""
    return [int(votes[place].sum()) for _, place in manifest.masked()]


def top_by_layer(
    scores: npt.NDArray[np.floating[Any]],
    counts: Sequence[int],
    manifest: Manifest,
    among: Bools | None = None,
    *,
    keep_ties: bool = False,
) -> Mask:
    """Return the mask of each layer's largest scores; of equal scores, the lowest coordinates win.

    `among` limits the choice. A layer with fewer candidates than its count keeps them all. With
    `keep_ties`, scores equal to the smallest that a layer keeps are kept, too.
    """
    kept = np.zeros(manifest.num_masked, dtype=np.bool_)
    for (_, place), count in zip(manifest.masked(), counts, strict=True):
        allowed = np.ones(place.stop - place.start, np.bool_) if among is None else among[place]
        candidates = np.flatnonzero(allowed)
        found = scores[place][candidates]
        chosen = largest(found, min(count, candidates.size))
        if keep_ties and chosen.any():
            chosen = found >= found[chosen].min()
        kept[place][candidates[chosen]] = True
    return Mask.from_bools(kept)


def grow_by_layer(
    mask: Mask,
    scores: npt.NDArray[np.floating[Any]],
    counts: Sequence[int],
    manifest: Manifest,
) -> Mask:
    """Return the mask with `counts` more weights in each layer: those with the largest scores."""
    kept = mask.bools()
    return Mask.from_bools(kept | top_by_layer(scores, counts, manifest, ~kept).bools())


def moved(settings: RunSettings, state: ModelState, mask: Mask, whole: Vector) -> ModelState:
    """Return the state with this mask, and with values from a vector of the model's size."""
    values = mask.gather(whole)
    if mask == state.mask:
        return committed(settings, state, values)
    return replace(state, mask=mask, values=values)
