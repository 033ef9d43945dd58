"""The cost of other sparsities, from one score vector."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.codec.values_only import encoded_bytes
from ssfl.method.density import kept_for_sparsity
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import top_k

SPARSITIES = ("0.5", "0.8", "0.9", "0.95", "0.98")


def density_rows(scores: npt.NDArray[np.float32], manifest: Manifest) -> list[dict[str, Any]]:
    """Return, for every sparsity, the number of kept weights, the update size and thinnest layer.

    `update_bytes` is the size of one client's update (or base) as plain values, an upper bound.
    """
    rows = []
    for sparsity in SPARSITIES:
        try:
            num_kept = kept_for_sparsity(sparsity, manifest.num_masked)
        except DensityError:  # the model is too small to keep anything
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
