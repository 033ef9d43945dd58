"""One simulated run, from its spec to its history."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ssfl.api.data import read_shards
from ssfl.datasets.shards.shard_file import Shard
from ssfl.datasets.source import NAMES
from ssfl.learning.device import choose_device, client_torch_settings, working_on
from ssfl.learning.load_task import LoadedTask, load_task
from ssfl.method.settings import RunSettings
from ssfl.simulator.executors import ExactExecutor
from ssfl.simulator.federation import MakeExecutor, SimulatedFederation
from ssfl.study.data import build_shards
from ssfl.study.run_spec import RunSpec

OnRound = Callable[[int], object]

__all__ = ["OnRound", "RunSpec", "run_one", "shards_of"]


def run_one(
    spec: RunSpec,
    on_round: OnRound | None = None,
    shards: Mapping[str, Shard] | None = None,
    cores: int = 1,
) -> dict[str, Any]:
    """Return the history of a run, as a coordinator writes it into history.json.

    `on_round(rounds_done)` is called after every round. `shards` is the result of `shards_of`, if
    the caller has it. `cores` limits the cores of mode fast. Raises StudyError and the exceptions
    of `ssfl.api.errors`.
    """
    spec.check()
    with client_torch_settings():
        device = choose_device(spec.device)
        with working_on(device):
            return _simulated(
                load_task(spec.task), shards or shards_of(spec), spec.run_settings(), spec.late(),
                _executor(spec.mode, device, cores), on_round or _ignore,
            )  # fmt: skip


def shards_of(spec: RunSpec) -> dict[str, Shard]:
    """Return the shards of a run by client."""
    if spec.data.source in NAMES:
        return build_shards(spec.data, spec.seed)
    return read_shards(Path(spec.data.source).expanduser(), spec.task)


def _simulated(
    task: LoadedTask,
    shards: Mapping[str, Shard],
    settings: RunSettings,
    late: Mapping[str, int],
    make_executor: MakeExecutor,
    on_round: OnRound,
) -> dict[str, Any]:
    """Run the simulator to the end and return the history."""
    federation = SimulatedFederation(task, shards, settings, late, make_executor)
    try:
        reported = 0
        while federation.next_work is not None:
            federation.run_step()
            for rounds_done in range(reported + 1, federation.state.rounds_done + 1):
                on_round(rounds_done)
            reported = federation.state.rounds_done
        return federation.document()
    finally:
        federation.close()


def _executor(mode: str, device: torch.device, cores: int) -> MakeExecutor:
    if mode == "exact":
        return partial(ExactExecutor, device=device)
    from ssfl.simulator.batched_executor import fast_executor

    return partial(fast_executor, device=device, cores=cores)


def _ignore(_rounds_done: int) -> None:
    """Ignore the progress."""
