"""ssfl in a notebook: find a mask, simulate a few rounds, read a run as arrays.

    from ssfl import api

    shards = api.digits(clients=8)
    found = api.find_mask(shards, sparsity=0.9)
    done = api.simulate(shards, sparsity=0.9, rounds=5)
    run = api.read_run("runs/<run>")

Nothing prints. `ssfl.api.errors` lists the exceptions. Settings are keywords, with the names and
defaults of the flags of `ssfl-coordinator`.
"""

from ssfl.api.data import Shards, cut, digits, read_shards
from ssfl.api.errors import RunError
from ssfl.api.history import Layers, RunHistory, Traffic
from ssfl.api.runs import load_model, read_run
from ssfl.api.simulation import FoundMask, Simulated, find_mask, simulate
from ssfl.datasets.data_set import DataSet
from ssfl.datasets.shards.shard_file import Shard

__all__ = [
    "DataSet",
    "FoundMask",
    "Layers",
    "RunError",
    "RunHistory",
    "Shard",
    "Shards",
    "Simulated",
    "Traffic",
    "cut",
    "digits",
    "find_mask",
    "load_model",
    "read_run",
    "read_shards",
    "simulate",
]
