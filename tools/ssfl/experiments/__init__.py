"""The paper's claims as experiments: runs, conclusions and charts for each."""

from ssfl.experiments.contract import Experiment
from ssfl.experiments.methods import CONVERGENCE, LAYERS, SPARSITY, STRUCTURE
from ssfl.experiments.newcomers import NEWCOMERS
from ssfl.experiments.others import CLIENTS, MASK_ERROR, PARTITIONS, PROFILES, WARM_UP

__all__ = ["EXPERIMENTS", "Experiment"]

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        SPARSITY, STRUCTURE, LAYERS, NEWCOMERS, MASK_ERROR, WARM_UP, PARTITIONS, CLIENTS,
        CONVERGENCE, PROFILES,
    )
}  # fmt: skip
