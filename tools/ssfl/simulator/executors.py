"""Executors: how the clients' work of a simulated run is computed.

Mode `exact` runs one client after the other with the code of the service, on one thread of the CPU
or on a GPU. It gives the same digest as the service. Mode `fast` is in batched_executor.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch

from ssfl.client.local_work import GlobalEvaluation, ScoringRequest, Site, SiteModel, Vector
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.errors import ModelError
from ssfl.learning.evaluate import Evaluation
from ssfl.learning.first_batch import try_first_batch
from ssfl.learning.load_task import LoadedTask
from ssfl.learning.trained import LocalResult
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import ClientId

CPU = torch.device("cpu")


class ClientExecutor(Protocol):
    """Computes the work of clients; results come in the order of the clients."""

    model: SiteModel

    def score(self, asked: Sequence[tuple[ClientId, ScoringRequest]]) -> Iterator[Vector]: ...

    def train(
        self, seen: Sequence[tuple[ClientId, ModelState]], round_number: int
    ) -> Iterator[LocalResult]: ...

    def evaluate(
        self, clients: Sequence[ClientId], model: ModelState
    ) -> Iterator[GlobalEvaluation]: ...

    def personalize(
        self, clients: Sequence[ClientId], model: ModelState, rounds_done: int
    ) -> Iterator[
        tuple[Evaluation, Evaluation]
    ]: ...  # of the global model and of the personal model

    def close(self) -> None: ...


class ExactExecutor:
    """Runs one client at a time; all clients share one network, which each one loads."""

    def __init__(
        self,
        task: LoadedTask,
        shards: Mapping[ClientId, Shard],
        settings: RunSettings,
        device: torch.device = CPU,
    ) -> None:
        """Build the first client's model; raise ModelError if another client builds another."""
        (first, shard), *others = shards.items()
        self.model = SiteModel.build(task, shard, settings, device)
        try_first_batch(self.model.network, task, shard, settings.batch_size)
        for name, other in others:
            if not task.builds_same_model(shard, other):
                self._compare(task, settings, first, name, other)
        self._sites = {
            name: Site(task, data, settings, name, self.model) for name, data in shards.items()
        }

    def _compare(
        self, task: LoadedTask, settings: RunSettings, first: str, name: str, shard: Shard
    ) -> None:
        theirs = SiteModel.build(task, shard, settings, CPU, self.model.manifest).manifest
        if theirs.digest != self.model.manifest.digest:
            difference = self.model.manifest.first_difference(theirs)
            raise ModelError(f"{name} does not build the model of {first}: {difference}")

    def score(self, asked: Sequence[tuple[ClientId, ScoringRequest]]) -> Iterator[Vector]:
        for name, scoring in asked:
            yield self._sites[name].score(scoring)

    def train(
        self, seen: Sequence[tuple[ClientId, ModelState]], round_number: int
    ) -> Iterator[LocalResult]:
        for name, model in seen:
            assert model.mask is not None and model.values is not None
            yield self._sites[name].train(model.mask, model.values, round_number, ignore)

    def evaluate(
        self, clients: Sequence[ClientId], model: ModelState
    ) -> Iterator[GlobalEvaluation]:
        assert model.mask is not None and model.values is not None
        for name in clients:
            yield self._sites[name].evaluate(model.mask, model.values)

    def personalize(
        self, clients: Sequence[ClientId], model: ModelState, rounds_done: int
    ) -> Iterator[tuple[Evaluation, Evaluation]]:
        assert model.mask is not None and model.values is not None
        for name in clients:
            own = self._sites[name].personalize(model.mask, model.values, rounds_done, ignore)
            yield own.base, own.personal

    def site(self, name: ClientId) -> Site:
        """Return a client's site."""
        return self._sites[name]

    def close(self) -> None:
        """Release nothing."""


def ignore(_step: int, _steps: int) -> None:
    """Ignore the progress of a round."""
