"""Executors of mode `fast`: clients stacked in one batch, or in one process per core.

Small networks are stacked (ssfl.learning.stacked.clients): the clients of a round train in one
batched step. Other networks are trained client by client in `channels_last` order, with several
cores in one process per core. Both sum in another order than `exact`, so the last bits differ;
docs/simulate.md compares the results. On a GPU clients run one after the other, as in `exact`.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch

from ssfl.client.local_work import GlobalEvaluation
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.device import prepare_torch
from ssfl.learning.evaluate import Evaluation
from ssfl.learning.load_task import LoadedTask, load_task
from ssfl.learning.masked_training import LocalResult
from ssfl.learning.stacked.clients import StackedClients
from ssfl.learning.stacked.trial import should_stack
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId
from ssfl.simulator.executors import CPU, ClientExecutor, ExactExecutor, Job, Result, masked
from ssfl.simulator.processes import use_variables, worker_context

Shards = Mapping[ClientId, Shard]
MIN_POOLED_WEIGHTS = 10_000  # below this, starting processes takes longer than it saves


def fast_executor(
    task: LoadedTask,
    shards: Shards,
    settings: RunSettings,
    device: torch.device = CPU,
    cores: int = 1,
) -> ClientExecutor:
    """Return the fastest executor for a model: stacked, pooled or exact."""
    executor = ExactExecutor(task, shards, settings, device)
    if device != CPU:
        return executor
    if should_stack(executor.model.network, executor.model.manifest, task):
        return StackedExecutor(executor, shards, settings)
    executor.model.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if cores == 1 or executor.model.manifest.size < MIN_POOLED_WEIGHTS:
        return executor
    return PooledExecutor(executor, task, shards, settings, cores)


class StackedExecutor(ClientExecutor):
    """Trains and tests the clients of a step in one batch; scores one client at a time."""

    def __init__(self, exact: ExactExecutor, shards: Shards, settings: RunSettings) -> None:
        self.model = exact.model
        self._exact = exact
        self._shards = shards
        self._stacked = StackedClients(self.model.network, self.model.manifest, settings)

    def each(self, work: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[Result]:
        return self._exact.each(work, jobs)

    def train(
        self, seen: Sequence[tuple[ClientId, ModelState]], round_number: int
    ) -> Iterator[LocalResult]:
        masks, bases = zip(*(masked(model) for _, model in seen), strict=True)
        clients = self._clients([name for name, _ in seen])
        yield from self._stacked.train(clients, masks, bases, round_number)

    def evaluate(
        self, clients: Sequence[ClientId], model: ModelState
    ) -> Iterator[GlobalEvaluation]:
        shards = [self._shards[name] for name in clients]
        tested = self._stacked.evaluate(shards, *masked(model))
        validated = self._stacked.validate(shards, *masked(model))
        yield from map(GlobalEvaluation, tested, validated)

    def personalize(
        self, clients: Sequence[ClientId], model: ModelState, rounds_done: int
    ) -> Iterator[tuple[Evaluation, Evaluation]]:
        for own in self._stacked.personalize(self._clients(clients), *masked(model), rounds_done):
            yield own.base, own.personal

    def _clients(self, names: Sequence[ClientId]) -> list[tuple[str, Shard]]:
        return [(name, self._shards[name]) for name in names]


class PooledExecutor(ClientExecutor):
    """Runs the clients of a step in several processes, each on one core."""

    def __init__(
        self,
        exact: ExactExecutor,
        task: LoadedTask,
        shards: Shards,
        settings: RunSettings,
        cores: int,
    ) -> None:
        self.model = exact.model
        self._pool = ProcessPoolExecutor(
            cores,
            worker_context(),
            _begin_work,
            (dict(os.environ), task.spec, dict(shards), settings),
        )

    def each(self, work: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[Result]:
        return self._pool.map(partial(_run, work), jobs)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


_WORKER: list[ExactExecutor] = []  # the executor of this worker process


def _begin_work(
    environment: dict[str, str], task: str, shards: Shards, settings: RunSettings
) -> None:
    use_variables(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_torch(1)
    executor = ExactExecutor(load_task(task), shards, settings)
    executor.model.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _WORKER.append(executor)


def _end_with_parent() -> None:
    """End this process when its parent ends, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(work: Callable[..., Result], job: Job) -> Result:
    return next(_WORKER[0].each(work, [job]))
