"""Executors: how the clients' work of a simulated run is computed.

Mode `exact` runs one client after the other with the code of the service, on one thread of the CPU
or on a GPU. On the CPU it gives the same digest as the service. Mode `fast` is in
batched_executor.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ssfl.client.local_work import GlobalEvaluation, ScoringRequest, Site, SiteModel, Vector
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.errors import ModelError
from ssfl.learning.evaluate import Evaluation
from ssfl.learning.first_batch import try_first_batch
from ssfl.learning.load_task import LoadedTask
from ssfl.learning.masked_training import LocalResult
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId

CPU = torch.device("cpu")

Result = TypeVar("Result")
Job = tuple[Any, ...]  # a client, and the arguments of a method of its site


class ClientExecutor(ABC):
    """Computes the work of clients; results come in the order of the clients."""

    model: SiteModel

    @abstractmethod
    def each(self, work: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield the results of `work`, a method of Site, for every job."""

    def score(self, asked: Sequence[tuple[ClientId, ScoringRequest]]) -> Iterator[Vector]:
        return self.each(Site.score, asked)

    def train(
        self, seen: Sequence[tuple[ClientId, ModelState]], round_number: int
    ) -> Iterator[LocalResult]:
        jobs = [(name, *masked(model), round_number, _ignore) for name, model in seen]
        return self.each(Site.train, jobs)

    def evaluate(
        self, clients: Sequence[ClientId], model: ModelState
    ) -> Iterator[GlobalEvaluation]:
        return self.each(Site.evaluate, [(name, *masked(model)) for name in clients])

    def personalize(
        self, clients: Sequence[ClientId], model: ModelState, rounds_done: int
    ) -> Iterator[tuple[Evaluation, Evaluation]]:
        """Yield each client's evaluations of the global model and of its personal model."""
        jobs = [(name, *masked(model), rounds_done, _ignore) for name in clients]
        for own in self.each(Site.personalize, jobs):
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
    ) -> None:
        """Build the first client's model; raise ModelError if another client's model differs."""
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
        self._sites = {
            name: Site(task, data, settings, name, self.model) for name, data in shards.items()
        }

    def each(self, work: Callable[..., Result], jobs: Iterable[Job]) -> Iterator[Result]:
        for name, *arguments in jobs:
            yield work(self._sites[name], *arguments)


def masked(model: ModelState) -> tuple[Mask, Vector]:
    """Return the mask of a model and its kept values."""
    assert model.mask is not None and model.values is not None
    return model.mask, model.values


def _ignore(_step: int, _steps: int) -> None:
    """Ignore the progress of a round."""
