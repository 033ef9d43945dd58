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
from ssfl.learning.load_task import load_task
from ssfl.simulator.executors import ExactExecutor
from ssfl.simulator.federation import MakeExecutor, SimulatedFederation
from ssfl.study.checkpoints import Checkpoints
from ssfl.study.data import build_shards
from ssfl.study.run_spec import RunSpec

OnRound = Callable[[int], object]


def run_one(
    spec: RunSpec,
    on_round: OnRound | None = None,
    shards: Mapping[str, Shard] | None = None,
    cores: int = 1,
    checkpoints: Checkpoints | None = None,
) -> dict[str, Any]:
    """Return the history of a run, as a coordinator writes it into history.json.

    `on_round(rounds_done)` is called after every round. `shards` is the result of `shards_of`, if
    the caller has it. `cores` limits the cores of mode fast. With `checkpoints` the run continues
    from its checkpoint and writes new ones. Raises StudyError and the exceptions of
    `ssfl.api.errors`.
    """
    spec.check()
    with client_torch_settings():
        device = choose_device(spec.device)
        with working_on(device):
            federation = SimulatedFederation(
                load_task(spec.task), shards or shards_of(spec), spec.run_settings(), spec.late(),
                _executor(spec, device, cores), tests_apart=spec.tests_apart,
            )  # fmt: skip
            return _history(federation, on_round, checkpoints)


def shards_of(spec: RunSpec) -> dict[str, Shard]:
    """Return the shards of a run by client."""
    if spec.data.source in NAMES:
        return build_shards(spec.data, spec.seed)
    return read_shards(Path(spec.data.source).expanduser(), spec.task)


def _history(
    federation: SimulatedFederation, on_round: OnRound | None, checkpoints: Checkpoints | None
) -> dict[str, Any]:
    """Run a federation to its end and return the history."""
    try:
        if checkpoints:
            checkpoints.resume(federation)
        reported = federation.state.rounds_done
        while federation.next_work is not None:
            federation.run_step()
            if checkpoints:
                checkpoints.step_done(federation)
            if on_round and federation.state.rounds_done > reported:
                reported = federation.state.rounds_done
                on_round(reported)
        return {**federation.document(), "training": federation.order}
    finally:
        federation.close()


def _executor(spec: RunSpec, device: torch.device, cores: int) -> MakeExecutor:
    if spec.mode == "exact":
        return partial(ExactExecutor, device=device, round_tests=spec.round_tests)
    from ssfl.simulator.batched_executor import fast_executor

    return partial(fast_executor, device=device, cores=cores, round_tests=spec.round_tests)
