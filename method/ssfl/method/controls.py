"""Control masks, for comparison with the method's mask.

Random masks come from named streams, so every machine computes the same bits.
"""

import numpy as np

from ssfl.method.density import count_kept
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, Scores
from ssfl.method.streams import Stream


def random_mask(size: int, k: int, seed: int, epoch: int) -> Mask:
    """Return a mask of exactly k of `size` coordinates, drawn uniformly."""
    if not 0 <= k <= size:
        raise ValueError(f"cannot keep {k} of {size} coordinates")
    kept = np.zeros(size, dtype=np.bool_)
    kept[Stream(seed, "random mask", epoch).choose(size, k)] = True
    return Mask.from_bools(kept)


def client_random_mask(manifest: Manifest, sparsity: str, seed: int, client_id: str) -> Mask:
    """Return a client's own mask for the whole run, with the given sparsity in every tensor.

    Every tensor keeps at least one weight.
    """
    kept = np.zeros(manifest.num_masked, dtype=np.bool_)
    for tensor, place in manifest.masked():
        stream = Stream(seed, "client mask", client_id, tensor.name)
        count = max(1, count_kept(sparsity, tensor.size))
        kept[place][stream.choose(tensor.size, count)] = True
    return Mask.from_bools(kept)


def shuffled(mask: Mask, manifest: Manifest, seed: int, epoch: int) -> Mask:
    """Return the mask with its bits shuffled within each tensor."""
    if mask.size != manifest.num_masked:
        raise ValueError(f"a mask of {mask.size} weights for a model of {manifest.num_masked}")
    kept = mask.bools()
    for tensor, place in manifest.masked():
        order = Stream(seed, "shuffled mask", epoch, tensor.name).permutation(tensor.size)
        kept[place] = kept[place][order]
    return Mask.from_bools(kept)


def magnitude_scores(vector: Scores, manifest: Manifest) -> Scores:
    """Return |w| of every masked coordinate of a model's flat vector."""
    if vector.shape != (manifest.size,):
        raise ValueError(f"a vector of shape {vector.shape} for a model of {manifest.size} values")
    return np.abs(vector[: manifest.num_masked])
