"""The pictures of the paper's experiments: from plain results, as JSON holds them, to PNG files.

Each function says what its result looks like; what is missing in one is left out of the picture,
and StudyError is raised if nothing is left.
"""

from ssfl.study.charts.accuracy import (
    convergence_picture,
    differences_picture,
    partition_picture,
    sparsity_picture,
)
from ssfl.study.charts.masks import layer_density_picture, mask_error_picture
from ssfl.study.charts.runs import client_accuracy_picture, ood_picture

__all__ = [
    "client_accuracy_picture",
    "convergence_picture",
    "differences_picture",
    "layer_density_picture",
    "mask_error_picture",
    "ood_picture",
    "partition_picture",
    "sparsity_picture",
]
