"""What other sparsities would cost. The masks of one score vector are nested, so this is free."""

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
    """Return for every sparsity the values that would travel and the thinnest layer.

    `update_bytes` is one client's update (or base) as plain values: the most it can take.
    """
    rows = []
    for sparsity in SPARSITIES:
        try:
            num_kept = kept_for_sparsity(sparsity, manifest.num_masked)
        except DensityError:  # a model so small that nothing would be kept
            continue
        layers = top_k(scores, num_kept).kept_by_tensor(manifest)
        name, (kept, size) = min(layers.items(), key=lambda one: one[1][0] / one[1][1])
        rows.append(
            {
                "sparsity": sparsity,
                "num_kept": num_kept,
                "update_bytes": encoded_bytes(num_kept + manifest.num_unmasked),
                "thinnest": {"name": name, "kept": kept, "size": size},
            }
        )
    return rows
