"""A coordinator and its clients in one process: the service without sockets, clock and disk.

The run itself is the service's own: `advance` decides the steps, `task_for` what each client is
asked and sent, `StepSum` adds up, the strategy makes the next model, `History` keeps the story.
Clients work one after another, and the next model does not depend on the order. Time stands still
for the run, so no deadline ever passes.

Bytes are those of the encoded tensors, as over loopback; what carries them is not simulated.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ssfl.api.client import Answer, SimulatedClient
from ssfl.client.site import Site
from ssfl.codec.values_only import encoded_bytes
from ssfl.datasets.shards import Shard
from ssfl.learning.errors import ModelError
from ssfl.learning.load_task import LoadedTask
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.nested import density_rows
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import strategy_for
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server import events, facts
from ssfl.server.aggregate import StepSum
from ssfl.server.broadcast import Broadcast, NotBuilt
from ssfl.server.coded_uploads import score_blocks, update_blocks
from ssfl.server.coding import Reader
from ssfl.server.first_model import begin_model, initialized
from ssfl.server.history import History
from ssfl.server.ledger import Direction, Ledger, encoding_word
from ssfl.server.outputs import run_document
from ssfl.server.run import advance
from ssfl.server.state import RunState, Step
from ssfl.server.tasks import Ready, task_for
from ssfl.server.verify import largest_score, largest_value
from ssfl.v1 import transfer_pb2

Vector = npt.NDArray[np.float32]

NOW_S = 0.0
READER = Reader(frozenset(transfer_pb2.Encoding.values()))


class Federation:
    """A run among clients, one step at a time."""

    def __init__(
        self, task: LoadedTask, shards: Mapping[str, Shard], settings: RunSettings
    ) -> None:
        """Build every client's model; the first one's is the run's."""
        self.settings = settings
        self.history = History()
        self.scores: Vector | None = None  # the clients' mean, once they have scored
        self._strategy = strategy_for(settings)
        self._ledger = Ledger()
        self._clients: dict[ClientId, SimulatedClient] = {}
        for name, shard in shards.items():
            self._build(ClientId(name), task, shard)
        first = next(iter(self._clients.values()))
        self.model = begin_model(settings, first.site.manifest, first.site.initial)
        self._broadcast = Broadcast(self.model, settings)
        self._received: dict[ClientId, Vector] = {}  # of the open step
        self._sum: StepSum | None = None
        self._began_s = 0.0
        self.state = RunState(settings, run_id="simulated")
        self._begin(first)

    @property
    def next_work(self) -> Work | None:
        """What the coming step is; None when the run is over."""
        return self.state.step.work if self.state.step else None

    def take_step(self) -> None:
        """Let every client of the open step work, and make the next model of it."""
        step = self.state.step
        assert step is not None
        self._began_s = time.perf_counter()
        for name in sorted(step.cohort):
            self._ask(self._clients[name], step)
        if self.state.finished:
            for client in self._clients.values():
                self._give(client)

    def document(self) -> dict[str, Any]:
        """Return what the coordinator would write into history.json."""
        return run_document(self.state, self.model, self.history, self._rows())

    def read(self, _step: int, client: ClientId, _digest: bytes, start: int, count: int) -> Vector:
        """Return values of an upload, for the sum."""
        return self._received[client][start : start + count]

    def _build(self, name: ClientId, task: LoadedTask, shard: Shard) -> None:
        first = next(iter(self._clients.values()), None)
        known = first.site.manifest if first else None
        site = Site(task, shard, self.settings, name, torch.device("cpu"), known)
        if first and known and site.manifest.digest != known.digest:
            difference = known.first_difference(site.manifest)
            raise ModelError(f"{name} builds another model than {first.name}: {difference}")
        self._clients[name] = SimulatedClient(name, site, shard.num_samples, self.settings)

    def _begin(self, author: SimulatedClient) -> None:
        manifest = self.model.manifest
        if not manifest.rebuildable:
            _check_initial(self.model.initial, author.name, manifest)
            self._count(author.name, "initial", Direction.UP, encoded_bytes(manifest.size), "dense")
        for name, client in self._clients.items():
            digest = manifest.digest.hex()
            self._post(events.Joined(name, "", client.num_samples, digest, "simulated"))
        self._post(initialized(author.name, self.model))

    def _ask(self, client: SimulatedClient, step: Step) -> None:
        answer = self._give(client)
        digest, largest = "", 0.0
        if answer.coded is not None:
            values = self._decode(answer, step)
            largest = self._check(values, client.name, step)
            self._received[client.name] = values
            digest = answer.coded.payload.digest.hex()
            word, size = encoding_word(answer.coded.payload.encoding), len(answer.coded.data)
            phase = "scores" if step.work is Work.SCORE else "values"
            self._count(client.name, phase, Direction.UP, size, word)
        self._post(events.UploadReceived(step.number, client.name, digest, largest, answer.report))

    def _give(self, client: SimulatedClient) -> Answer:
        """Hand a client its task and what it lacks for it; return its answer."""
        ready = self._task(client)
        offset = 0
        for part in ready.parts:
            phase, word = ready.phase_at(offset), ready.encoding_at(offset)
            self._count(client.name, phase, Direction.DOWN, len(part.data), word)
            offset += len(part.data)
        return client.answer(ready.task, self.model)

    def _task(self, client: SimulatedClient) -> Ready:
        while True:
            try:
                ready = task_for(
                    self.state, self._broadcast, client.name, client.request,
                    len(self._clients), READER,
                )  # fmt: skip
            except NotBuilt as needed:
                self._broadcast.build(needed.form)
            else:
                assert ready is not None
                return ready

    def _decode(self, answer: Answer, step: Step) -> Vector:
        assert answer.coded is not None
        data, payload = answer.coded.data, answer.coded.payload
        if step.work is Work.SCORE:
            blocks = score_blocks(data, payload, self.model.manifest.num_masked)
        else:
            assert self.model.values is not None
            blocks = update_blocks(data, payload, self.model.values, self.settings)
        return np.concatenate([block for _, block in blocks])

    def _check(self, values: Vector, client: ClientId, step: Step) -> float:
        manifest, mask = self.model.manifest, self.model.mask
        if step.work is Work.SCORE:
            return largest_score([(0, values)], client, manifest)
        assert mask is not None
        return largest_value([(0, values)], client, manifest, mask)

    def _post(self, event: events.Event, model: ModelState | None = None) -> None:
        """Do what the service's conductor does with an event."""
        self.state, actions, _ = advance(self.state, event, NOW_S)
        if model is not None:
            self.model = model
            self._broadcast = Broadcast(model, self.settings, self._broadcast)
        for action in actions:
            match action:
                case events.Persist():
                    self.history.add(self._accounted(action.fact))
                case events.OpenStep():
                    self._sum = StepSum(action.step, self.model, self)
                case events.Fold():
                    self._fold(action)
                case events.Reduce():
                    self._reduce(action.step)

    def _accounted(self, fact: facts.Fact) -> facts.Fact:
        """Return a fact with what the pure core does not know."""
        if isinstance(fact, facts.StepCommitted):
            seconds = time.perf_counter() - self._began_s
            report = {**fact.report, "seconds": seconds, "ledger": self._rows()}
            return replace(fact, report=report)
        return fact

    def _fold(self, action: events.Fold) -> None:
        assert self._sum is not None
        self._sum.fold(action.client, action.digest)
        if self._sum.step.work is Work.TRAIN:  # scores wait for the largest of all
            del self._received[action.client]

    def _reduce(self, step: Step) -> None:
        assert self._sum is not None
        reduced = self._sum.reduce(step)
        self._sum = None
        self._received.clear()
        report: dict[str, Any] = {}
        if step.work is Work.SCORE:
            self.scores = reduced
            report = {"densities": density_rows(reduced, self.model.manifest)}
        model = self._strategy.finish(step.work, self.model, reduced)
        assert model.mask is not None
        self._post(
            events.StepReduced(
                step.number, model.mask_epoch, model.mask.digest.hex(), model.mask.num_kept,
                model.base_digest.hex(), report,
            ),
            model,
        )  # fmt: skip

    def _count(
        self, client: ClientId, phase: str, direction: Direction, num_bytes: int, encoding: str
    ) -> None:
        self._ledger.count(phase, direction, 0, num_bytes, client=client, encoding=encoding)
        self._ledger.take()  # detail by client is for a file that nobody writes

    def _rows(self) -> list[dict[str, Any]]:
        return [{**row, "message_bytes": None} for row in self._ledger.rows()]


def _check_initial(initial: Vector, client: ClientId, manifest: Manifest) -> None:
    largest_value([(0, initial)], client, manifest, Mask.full(manifest.num_masked))
