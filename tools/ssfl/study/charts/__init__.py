"""Charts of the paper's experiments: PNG files from results in JSON types.

The docstring of each function shows the form of its result. Missing parts are left out of the
chart; StudyError is raised if nothing is left.
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
