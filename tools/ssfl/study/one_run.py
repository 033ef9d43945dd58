"""One simulated run from its spec to its history: what every job of a study does."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ssfl.api.data import read_shards
from ssfl.api.federation import Federation
from ssfl.api.quiet_torch import as_at_a_client
from ssfl.datasets.shards import Shard
from ssfl.datasets.source import NAMES
from ssfl.learning.load_task import LoadedTask, load_task
from ssfl.method.settings import RunSettings
from ssfl.study.data import build_shards
from ssfl.study.errors import StudyError
from ssfl.study.run_spec import RunSpec

OnRound = Callable[[int], object]

__all__ = ["OnRound", "RunSpec", "run_one"]


def run_one(spec: RunSpec, on_round: OnRound | None = None) -> dict[str, Any]:
    """Return the history of a run: the document that a coordinator writes into history.json.

    `on_round(rounds_done)` is called after every round. Raises what the parts raise: see
    `ssfl.api.errors`, and StudyError.
    """
    spec.check()
    with as_at_a_client():
        return _simulated(
            load_task(spec.task), _shards(spec), spec.run_settings(), spec.late(), spec.mode,
            on_round or _ignore,
        )  # fmt: skip


def _shards(spec: RunSpec) -> Mapping[str, Shard]:
    if spec.data.source in NAMES:
        return build_shards(spec.data, spec.seed)
    return read_shards(Path(spec.data.source).expanduser(), spec.task)


def _simulated(
    task: LoadedTask,
    shards: Mapping[str, Shard],
    settings: RunSettings,
    late: Mapping[str, int],
    mode: str,
    on_round: OnRound,
) -> dict[str, Any]:
    """Run it. The one place that knows the simulator."""
    if mode != "exact":
        raise StudyError(f"there is no mode {mode} yet: use exact")
    if late:
        raise StudyError(f"clients cannot join later yet, as {next(iter(late))} would")
    federation = Federation(task, shards, settings)
    told = 0
    while federation.next_work is not None:
        federation.take_step()
        for rounds_done in range(told + 1, federation.state.rounds_done + 1):
            on_round(rounds_done)
        told = federation.state.rounds_done
    return federation.document()


def _ignore(_rounds_done: int) -> None:
    """Nobody watches."""
