"""Executors of mode `fast`: clients stacked in one batch, or in one process per core.

Small networks are stacked (ssfl.learning.stacked.clients): the clients of a round train in one
batched step. So do clients of a strategy whose client half can be stacked (joint_work.py); those of
other strategies train one by one. Other networks, other optimizers than SGD and tasks with their
own loop are trained client by client in `channels_last` order, with several cores in one process
per core. Both sum in another order than `exact`, so the last bits differ; docs/simulate.md compares
the results. On a GPU clients run one after the other, as in `exact`.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch

from ssfl.client.local_work import GlobalEvaluation
from ssfl.client.memory import Items, StepMemory
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.batches import count_steps
from ssfl.learning.device import prepare_torch
from ssfl.learning.load_task import LoadedTask, load_task
from ssfl.learning.stacked.clients import StackedClients
from ssfl.learning.stacked.trial import should_stack
from ssfl.method.evaluation import Evaluation
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.simulator.executors import (
    CPU,
    ClientExecutor,
    ExactExecutor,
    Job,
    Result,
    Trained,
    ignore_step,
    masked,
    without_tests,
)
from ssfl.simulator.joint_work import Ask, Call, JointSite, TrainCall, work_together
from ssfl.simulator.processes import Inherited, keep_freed_memory, worker_context
from ssfl.simulator.work import plain_effort
from ssfl.strategies.contract import Answer, ClientHalf, ClientId, Received
from ssfl.strategies.registry import strategy_for

Shards = Mapping[ClientId, Shard]
MIN_POOLED_WEIGHTS = 10_000  # below this, starting processes takes longer than it saves


def fast_executor(
    task: LoadedTask,
    shards: Shards,
    settings: RunSettings,
    device: torch.device = CPU,
    cores: int = 1,
    *,
    round_tests: bool = True,
) -> ClientExecutor:
    """Return the fastest executor for a model: stacked, pooled or exact."""
    executor = ExactExecutor(task, shards, settings, device, round_tests=round_tests)
    if device != CPU:
        return executor
    if should_stack(executor.model.network, executor.model.manifest, task, settings):
        return StackedExecutor(executor, shards, settings, round_tests=round_tests)
    executor.model.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if cores == 1 or executor.model.manifest.size < MIN_POOLED_WEIGHTS:
        return executor
    return PooledExecutor(executor, task, shards, settings, cores, round_tests=round_tests)


class StackedExecutor(ClientExecutor):
    """Trains and tests the clients of a step in one batch; scores one client at a time."""

    def __init__(
        self,
        exact: ExactExecutor,
        shards: Shards,
        settings: RunSettings,
        *,
        round_tests: bool = True,
    ) -> None:
        self.model = exact.model
        self._exact = exact
        self._shards = shards
        self._training_shards = shards if round_tests else without_tests(shards)
        self._settings = settings
        self._stacked = StackedClients(self.model.network, self.model.manifest, settings)
        self._strategy = strategy_for(settings)
        half = self._strategy.client()
        self._is_plain = not self._strategy.has_client_half
        self._is_joint = half.can_be_stacked
        self._is_personal = type(half).personal is not ClientHalf.personal
        self.order = "in one batch" if self._is_plain or self._is_joint else "one by one"

    def each(self, work: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[Result]:
        return self._exact.each(work, jobs)

    def train(self, asked: Sequence[tuple[ClientId, Received, Items]]) -> Iterator[Trained]:
        if self._is_joint:
            yield from self._train_together(asked)
            return
        if not self._is_plain:
            yield from self._exact.train(asked)
            return
        clients = self._trainers([name for name, _, _ in asked])
        _, received, _ = zip(*asked, strict=True)
        masks, bases = [one.mask for one in received], [one.values for one in received]
        (number,) = {one.round_number for one in received}
        all_trained = self._stacked.train(clients, masks, bases, number)
        for (_, shard), mask, trained in zip(clients, masks, all_trained, strict=True):
            effort = plain_effort(count_steps(shard.num_samples, self._settings), mask)
            yield Answer(trained), {}, effort

    def evaluate(
        self, clients: Sequence[ClientId], model: ModelState
    ) -> Iterator[GlobalEvaluation]:
        shards, plain = [self._shards[name] for name in clients], self._strategy.deployed(model)
        tested = self._stacked.evaluate(shards, *masked(plain))
        validated = self._stacked.validate(shards, *masked(plain))
        yield from map(GlobalEvaluation, tested, validated)

    def personalize(
        self, asked: Sequence[tuple[ClientId, Received, Items]]
    ) -> Iterator[tuple[Evaluation, Evaluation]]:
        strategy = self._strategy
        if self._is_personal or strategy.has_own_masks or strategy.has_other_weights:
            yield from self._exact.personalize(asked)
            return
        clients = [(name, self._shards[name]) for name, _, _ in asked]
        model = asked[0][1]  # the same for all
        for own in self._stacked.personalize(clients, model.mask, model.values, model.round_number):
            yield own.base, own.personal

    def _train_together(self, asked: Sequence[tuple[ClientId, Received, Items]]) -> list[Trained]:
        """Run the client halves together; their trainings form batches."""
        names = [name for name, _, _ in asked]

        def answer(number: int, ask: Ask) -> Trained:
            name, received, items = asked[number]
            memory, site = StepMemory(items), JointSite(self._exact.sites[name], ask)
            reply = self._strategy.client().train(received, site, memory, ignore_step)
            return reply, memory.puts, site.total_effort()

        def serve(calls: Mapping[int, Call]) -> dict[int, Any]:
            results: dict[int, Any] = {}
            batches: dict[tuple[int, range | None], dict[int, TrainCall]] = {}
            for number, call in calls.items():
                if isinstance(call, TrainCall):
                    batches.setdefault((call.round_number, call.epochs), {})[number] = call
                else:
                    results[number] = call.serve()
            for (round_number, epochs), batch in batches.items():
                trained = self._stacked.train(
                    self._trainers([names[number] for number in batch]),
                    [call.mask for call in batch.values()],
                    [call.values for call in batch.values()],
                    round_number,
                    [call.rules for call in batch.values()],
                    epochs,
                )
                results |= zip(batch, trained, strict=True)
            return results

        return work_together([partial(answer, i) for i in range(len(asked))], serve)

    def _trainers(self, names: Sequence[ClientId]) -> list[tuple[str, Shard]]:
        return [(name, self._training_shards[name]) for name in names]


class PooledExecutor(ClientExecutor):
    """Runs the clients of a step in several processes, each on one core."""

    order = "pooled"

    def __init__(
        self,
        exact: ExactExecutor,
        task: LoadedTask,
        shards: Shards,
        settings: RunSettings,
        cores: int,
        *,
        round_tests: bool = True,
    ) -> None:
        self.model = exact.model
        self._pool = ProcessPoolExecutor(
            cores,
            worker_context(),
            _begin_work,
            (Inherited(), task.spec, dict(shards), settings, round_tests),
        )

    def each(self, work: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[Result]:
        return self._pool.map(partial(_run, work), jobs)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


_WORKER: list[ExactExecutor] = []  # the executor of this worker process


def _begin_work(
    inherited: Inherited,
    task: str,
    shards: Shards,
    settings: RunSettings,
    round_tests: bool,
) -> None:
    inherited.apply()
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_torch(1)
    executor = ExactExecutor(load_task(task), shards, settings, round_tests=round_tests)
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
