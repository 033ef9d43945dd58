"""The clients' work, faster and not bit for bit: stacked, or one process per core.

Small networks are stacked (ssfl.learning.stacked.clients): a round's clients train in one
batched step. Others are trained one by one, but in `channels_last` order and, with several cores,
in a process on each. Either sums in another order than `exact`, so the bits differ, and not by
much: docs/simulate.md has the table. On a GPU clients take turns, as in `exact`.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch

from ssfl.client.local_work import GlobalEvaluation, ScoringRequest, Vector
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.device import prepare_torch
from ssfl.learning.evaluate import Evaluation
from ssfl.learning.load_task import LoadedTask, load_task
from ssfl.learning.stacked.clients import StackedClients
from ssfl.learning.trained import LocalResult
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId
from ssfl.simulator.executors import CPU, Crew, ExactCrew, ignore

Shards = Mapping[ClientId, Shard]
LEAST_POOLED = 10_000  # weights: of fewer, starting processes takes longer than it saves


def fast_crew(
    task: LoadedTask,
    shards: Shards,
    settings: RunSettings,
    device: torch.device = CPU,
    cores: int = 1,
) -> Crew:
    """Return the fastest crew for a model: stacked, on several cores, or one by one."""
    crew = ExactCrew(task, shards, settings, device)
    if device != CPU:
        return crew
    if StackedClients.should_stack(crew.model.network, crew.model.manifest, task):
        return StackedCrew(crew, shards, settings)
    crew.model.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if cores == 1 or crew.model.manifest.size < LEAST_POOLED:
        return crew
    return PooledCrew(crew, task, shards, settings, cores)


class StackedCrew:
    """A step's clients in one batch."""

    def __init__(self, one_by_one: ExactCrew, shards: Shards, settings: RunSettings) -> None:
        self.model = one_by_one.model
        self._one_by_one = one_by_one
        self._shards = shards
        self._stacked = StackedClients(self.model.network, self.model.manifest, settings)

    def score(self, asked: Sequence[tuple[ClientId, ScoringRequest]]) -> Iterator[Vector]:
        return self._one_by_one.score(asked)

    def train(
        self, seen: Sequence[tuple[ClientId, ModelState]], round_number: int
    ) -> Iterator[LocalResult]:
        models = [_masked(model) for _, model in seen]
        yield from self._stacked.train(
            self._clients([name for name, _ in seen]),
            [mask for mask, _ in models],
            [values for _, values in models],
            round_number,
        )

    def evaluate(
        self, clients: Sequence[ClientId], model: ModelState
    ) -> Iterator[GlobalEvaluation]:
        shards = [self._shards[name] for name in clients]
        tested = self._stacked.evaluate(shards, *_masked(model))
        validated = self._stacked.validate(shards, *_masked(model))
        yield from map(GlobalEvaluation, tested, validated)

    def personalize(
        self, clients: Sequence[ClientId], model: ModelState, rounds_done: int
    ) -> Iterator[tuple[Evaluation, Evaluation]]:
        for own in self._stacked.personalize(self._clients(clients), *_masked(model), rounds_done):
            yield own.base, own.personal

    def close(self) -> None:
        """Nothing is held."""

    def _clients(self, names: Sequence[ClientId]) -> list[tuple[str, Shard]]:
        return [(name, self._shards[name]) for name in names]


def _masked(model: ModelState) -> tuple[Mask, Vector]:
    assert model.mask is not None and model.values is not None
    return model.mask, model.values


class PooledCrew:
    """A step's clients in several processes, each on one core."""

    def __init__(
        self,
        one_by_one: ExactCrew,
        task: LoadedTask,
        shards: Shards,
        settings: RunSettings,
        cores: int,
    ) -> None:
        self.model = one_by_one.model
        self._pool = ProcessPoolExecutor(
            cores,
            multiprocessing.get_context("spawn"),
            _begin_work,
            (task.spec, dict(shards), settings),
        )

    def score(self, asked: Sequence[tuple[ClientId, ScoringRequest]]) -> Iterator[Vector]:
        return self._pool.map(_score, asked)

    def train(
        self, seen: Sequence[tuple[ClientId, ModelState]], round_number: int
    ) -> Iterator[LocalResult]:
        jobs = [(name, *_masked(model), round_number) for name, model in seen]
        return self._pool.map(_train, jobs)

    def evaluate(
        self, clients: Sequence[ClientId], model: ModelState
    ) -> Iterator[GlobalEvaluation]:
        return self._pool.map(_evaluate, [(name, *_masked(model)) for name in clients])

    def personalize(
        self, clients: Sequence[ClientId], model: ModelState, rounds_done: int
    ) -> Iterator[tuple[Evaluation, Evaluation]]:
        jobs = [(name, *_masked(model), rounds_done) for name in clients]
        return self._pool.map(_personalize, jobs)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


_WORKER: list[ExactCrew] = []  # of this process


def _begin_work(task: str, shards: Shards, settings: RunSettings) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_torch(1)
    crew = ExactCrew(load_task(task), shards, settings)
    crew.model.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _WORKER.append(crew)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _score(job: tuple[ClientId, ScoringRequest]) -> Vector:
    return _WORKER[0].site(job[0]).score(job[1])


def _train(job: tuple[ClientId, Mask, Vector, int]) -> LocalResult:
    name, mask, values, round_number = job
    return _WORKER[0].site(name).train(mask, values, round_number, ignore)


def _evaluate(job: tuple[ClientId, Mask, Vector]) -> GlobalEvaluation:
    name, mask, values = job
    return _WORKER[0].site(name).evaluate(mask, values)


def _personalize(job: tuple[ClientId, Mask, Vector, int]) -> tuple[Evaluation, Evaluation]:
    name, mask, values, rounds_done = job
    own = _WORKER[0].site(name).personalize(mask, values, rounds_done, ignore)
    return own.evaluation, own.personal
