"""Executors: how the clients' work of a simulated run is computed.

Mode `exact` runs one client after the other with the code of the service, on one thread of the CPU
or on a GPU. On the CPU it gives the same digest as the service. Mode `fast` is in
batched_executor.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ssfl.client.local_work import GlobalEvaluation, Site, SiteModel, Vector
from ssfl.client.memory import Items
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.errors import ModelError
from ssfl.learning.first_batch import try_first_batch
from ssfl.learning.load_task import LoadedTask
from ssfl.method.evaluation import Evaluation
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.simulator.work import CountingSite, Effort
from ssfl.strategies.contract import Answer, ClientId, Received, ScoringRequest

CPU = torch.device("cpu")

Result = TypeVar("Result")
Job = tuple[Any, ...]  # a client, and the arguments of a method of its site
# A client's answer, what it puts into memory, and the work it did.
Trained = tuple[Answer, Mapping[str, Vector | Mask], Effort]


class ClientExecutor(ABC):
    """Computes the work of clients; results come in the order of the clients."""

    model: SiteModel
    order = "one by one"  # how the clients of a step train: in one batch, pooled, or one by one

    @abstractmethod
    def each(self, work: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results of `work`, a method of Site, for every job."""

    def score(self, asked: Sequence[tuple[ClientId, ScoringRequest]]) -> Iterator[Vector]:
        return self.each(Site.score, asked)

    def train(self, asked: Sequence[tuple[ClientId, Received, Items]]) -> Iterator[Trained]:
        """Yield each client's answer to a training step, its puts into memory and its effort."""
        return self.each(CountingSite.counted_answer, asked)

    def evaluate(
        self, clients: Sequence[ClientId], model: ModelState
    ) -> Iterator[GlobalEvaluation]:
        return self.each(Site.evaluate_global, [(name, *masked(model)) for name in clients])

    def personalize(
        self, asked: Sequence[tuple[ClientId, Received, Items]]
    ) -> Iterator[tuple[Evaluation, Evaluation]]:
        """Yield each client's evaluations of the global model and of its personal model."""
        for _, own in self.each(Site.personal_model, [(*one, ignore_step) for one in asked]):
            yield own.base, own.personal

    def close(self) -> None:  # noqa: B027  most executors hold nothing
        """Release what the executor holds."""


class ExactExecutor(ClientExecutor):
    """Runs one client at a time; each client loads its values into one shared network."""

    def __init__(
        self,
        task: LoadedTask,
        shards: Mapping[ClientId, Shard],
        settings: RunSettings,
        device: torch.device = CPU,
        *,
        round_tests: bool = True,
    ) -> None:
        """Build the first client's model; raise ModelError if another client's model differs.

        Without `round_tests` clients train on shards without test samples, so that no round tests
        a model. Evaluations and personal models are tested as always.
        """
        (first, shard), *others = shards.items()
        self.model = SiteModel.build(task, shard, settings, device)
        try_first_batch(self.model.network, task, shard, settings.batch_size)
        for name, other in others:
            if task.builds_same_model(shard, other):
                continue
            theirs = SiteModel.build(task, other, settings, CPU, self.model.manifest).manifest
            if theirs.digest != self.model.manifest.digest:
                difference = self.model.manifest.first_difference(theirs)
                raise ModelError(f"{name} does not build the model of {first}: {difference}")
        self.sites = {
            name: CountingSite(task, data, settings, name, self.model)
            for name, data in shards.items()
        }
        self._training_sites = self.sites
        if not round_tests:
            self._training_sites = {
                name: CountingSite(task, data, settings, name, self.model)
                for name, data in without_tests(shards).items()
            }

    def each(self, work: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[Result]:
        is_training = work is CountingSite.counted_answer
        sites = self._training_sites if is_training else self.sites
        for name, *arguments in jobs:
            yield work(sites[name], *arguments)


def without_tests(shards: Mapping[ClientId, Shard]) -> dict[ClientId, Shard]:
    """Return the shards without their test samples."""
    return {
        name: replace(shard, test_x=shard.test_x[:0], test_y=shard.test_y[:0])
        for name, shard in shards.items()
    }


def masked(model: ModelState) -> tuple[Mask, Vector]:
    """Return the mask of a model and its kept values."""
    assert model.mask is not None and model.values is not None
    return model.mask, model.values


def ignore_step(_step: int, _steps: int) -> None:
    """Ignore the progress of a round."""
