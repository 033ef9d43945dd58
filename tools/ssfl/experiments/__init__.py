"""The paper's claims as experiments: runs, conclusions and charts for each."""

from ssfl.experiments.contract import Experiment
from ssfl.experiments.measured import (
    CLASS_MIX,
    CLIENT_WEIGHTS,
    DIRICHLET,
    FEW_CLIENTS,
    PRIVACY,
    SALIENCY,
)
from ssfl.experiments.methods import CONVERGENCE, LAYERS, SPARSITY, STRUCTURE
from ssfl.experiments.newcomers import NEWCOMERS
from ssfl.experiments.others import CLIENTS, MASK_ERROR, PARTITIONS, PROFILES, WARM_UP
from ssfl.experiments.overview import OVERVIEW, OVERVIEW_OTHERS
from ssfl.experiments.refresh import DETECTION, REFRESH
from ssfl.experiments.tables import (
    CONVERGENCE_ALL,
    COSTS,
    LARGER_NETWORK,
    METHODS,
    METHODS_PATHOLOGICAL,
    SPARSE_METHODS,
)

__all__ = ["EXPERIMENTS", "Experiment"]

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        OVERVIEW, OVERVIEW_OTHERS, SPARSITY, STRUCTURE, LAYERS, METHODS, METHODS_PATHOLOGICAL,
        SPARSE_METHODS, LARGER_NETWORK, COSTS, NEWCOMERS, REFRESH, DETECTION, MASK_ERROR,
        FEW_CLIENTS, SALIENCY, PRIVACY, WARM_UP, PARTITIONS, DIRICHLET, CLIENTS, CLIENT_WEIGHTS,
        CLASS_MIX, CONVERGENCE, CONVERGENCE_ALL, PROFILES,
    )
}  # fmt: skip
