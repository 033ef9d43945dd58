"""How worker processes of simulations start."""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext, SpawnContext

_IMPORTED = ("torch._dynamo", "ssfl.study.one_run")  # the first optimizer imports the former


def worker_context() -> ForkServerContext | SpawnContext:
    """Return the start method of workers: on Linux, forks of one process that has imported torch.

    That process starts with the first worker and ends with this one. Workers started later fork
    from it in a tenth of a second. It keeps the variables of its start: see `use_variables`.
    """
    if sys.platform != "linux":  # other systems' libraries do not survive a fork
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    return context


def use_variables(environment: Mapping[str, str]) -> None:
    """Replace the environment of this worker by that of its owner."""
    os.environ.clear()
    os.environ.update(environment)
