"""The paper's claims as experiments: what it says, what we got, drawn side by side."""

from ssfl.experiments.contract import Experiment
from ssfl.experiments.controls import LAYERS, STRUCTURE
from ssfl.experiments.newcomers import NEWCOMERS
from ssfl.experiments.others import CLIENTS, MASK_ERROR, PARTITIONS, WARM_UP
from ssfl.experiments.profiles import PROFILES
from ssfl.experiments.sparsity import CONVERGENCE, SPARSITY

__all__ = ["EXPERIMENTS", "Experiment"]

EXPERIMENTS = {
    one.name: one
    for one in (
        SPARSITY, STRUCTURE, LAYERS, NEWCOMERS, MASK_ERROR, WARM_UP, PARTITIONS, CLIENTS,
        CONVERGENCE, PROFILES,
    )
}  # fmt: skip
