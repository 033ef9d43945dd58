"""A coordinator and its clients in one process: the service without sockets, clock and disk.

The run uses the parts of the service: `advance` decides the steps, `task_for` builds each client's
task, `StepSum` adds up, the strategy makes the next model, `History` keeps the results. An executor
(executors.py) computes the clients' work; the next model does not depend on its order. The clock
stands still, so no deadline passes. A client that arrives later joins during the round before its
first one.

Bytes are those of the encoded tensors, in the encodings that the service uses over a network. The
messages that carry them are not simulated.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.client.coding import EncodedPayload
from ssfl.client.local_work import ScoringRequest
from ssfl.codec.values_only import encoded_bytes
from ssfl.datasets.shards.shard_file import Shard, class_counts
from ssfl.learning.load_task import LoadedTask
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.norm_clip import clip
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import strategy_for
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server.accounting.ledger import Direction, Ledger, encoding_word
from ssfl.server.aggregate.step_sum import StepSum, step_reduced
from ssfl.server.broadcast.payloads import NotBuilt
from ssfl.server.broadcast.per_client import Broadcasts
from ssfl.server.broadcast.tasks import Ready, task_for
from ssfl.server.history.run_history import History
from ssfl.server.loop.first_model import begin_model, initialized
from ssfl.server.report.outputs import run_document
from ssfl.server.run import events, facts
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState, Step, check_samples
from ssfl.server.uploads.decode import score_blocks, update_blocks
from ssfl.server.uploads.encoding_choice import Reader
from ssfl.server.uploads.verify import ScoreCheck, ValueCheck
from ssfl.simulator.clients import ClientResult, SimulatedClient
from ssfl.simulator.executors import ClientExecutor, ExactExecutor, masked
from ssfl.v1 import transfer_pb2

Vector = npt.NDArray[np.float32]
MakeExecutor = Callable[[LoadedTask, Mapping[ClientId, Shard], RunSettings], ClientExecutor]

NOW_S = 0.0
ENCODINGS = frozenset(transfer_pb2.Encoding.values())


class SimulatedFederation:
    """A run with its clients, one step at a time."""

    def __init__(
        self,
        task: LoadedTask,
        shards: Mapping[str, Shard],
        settings: RunSettings,
        arrivals: Mapping[str, int] | None = None,
        make_executor: MakeExecutor = ExactExecutor,
        *,
        reference_coding: bool = True,
    ) -> None:
        """Build the run's model.

        `arrivals` has the first round of each client that joins later. `reference_coding` encodes
        values as over a network; without it they are encoded as over loopback.
        """
        self.settings = settings
        self.history = History()
        self.scores: Vector | None = None  # the mean over clients, after they have scored
        self.best: ModelState | None = None  # by the evaluations of all clients
        self._reader = Reader(ENCODINGS, coded=reference_coding)
        self._strategy = strategy_for(settings)
        self._ledger = Ledger()
        self._shards = {ClientId(name): shard for name, shard in shards.items()}
        self._arrivals = {ClientId(name): number for name, number in (arrivals or {}).items()}
        self._executor = make_executor(task, self._shards, settings)
        self.model = begin_model(
            settings, self._executor.model.manifest, self._executor.model.initial
        )
        self._clients = {
            name: SimulatedClient(name, shard.num_samples, self.model.initial_digest, settings)
            for name, shard in self._shards.items()
        }
        self._broadcasts = Broadcasts(settings)
        self._received: dict[ClientId, Vector] = {}  # of the open step
        self._sum: StepSum | None = None
        self._began_s = 0.0
        # No client is ever lost, so no extra client is asked.
        self.state = RunState(replace(settings, over_selection=1.0), run_id="simulated")
        self._begin()

    @property
    def next_work(self) -> Work | None:
        """The work of the open step; None when the run is over."""
        return self.state.step.work if self.state.step else None

    def run_step(self) -> None:
        """Compute the work of every client of the open step, and make the next model."""
        step = self.state.step
        assert step is not None
        self._began_s = time.perf_counter()
        self._join_late_clients(step)
        clients = [self._clients[name] for name in sorted(step.cohort)]
        assigned = [(client, *self._send_task(client)) for client in clients]
        for (client, _, model), result in zip(assigned, self._results(step, assigned), strict=True):
            self._accept(client, model, result, step)
        if self.state.finished:
            for client in self._clients.values():
                if client.name in self.state.members:
                    self._send_task(client)

    def close(self) -> None:
        """End the executor."""
        self._executor.close()

    def document(self) -> dict[str, Any]:
        """Return the document that a coordinator writes into history.json."""
        state = replace(self.state, settings=self.settings)
        return run_document(state, self.model, self.history, self._rows())

    def read(self, _step: int, client: ClientId, _digest: bytes, start: int, count: int) -> Vector:
        """Return values of an upload for the sum."""
        return self._received[client][start : start + count]

    def _begin(self) -> None:
        manifest = self.model.manifest
        first = next(iter(self._clients))
        if not manifest.rebuildable:
            whole = Mask.full(manifest.num_masked)
            ValueCheck(first, manifest, whole).largest(0, self.model.initial)
            self._count_bytes(first, "initial", Direction.UP, encoded_bytes(manifest.size), "dense")
        for name in self._clients:
            if name not in self._arrivals:
                self._join(name)
        self._post(initialized(first, self.model))

    def _join_late_clients(self, step: Step) -> None:
        """Join the clients that take part from the next round on."""
        for name, number in sorted(self._arrivals.items()):
            due = step.work is Work.TRAIN and step.round_number + 1 >= number
            if due and name not in self.state.members:
                self._join(name)

    def _join(self, name: ClientId) -> None:
        shard, digest = self._shards[name], self.model.manifest.digest.hex()
        check_samples(name, shard.num_samples, self.settings)
        labels: tuple[int, ...] = ()
        if self.settings.refresh_on_new_labels and shard.num_classes:
            labels = tuple(sorted(class_counts(shard.train_y)))
        joined = events.Joined(name, "", shard.num_samples, digest, "simulated", labels=labels)
        self._post(joined)

    def _send_task(self, client: SimulatedClient) -> tuple[Ready, ModelState]:
        """Send a client its task, with the payloads it lacks."""
        ready = self._task(client)
        for part in ready.parts:
            phase, word = ready.phase_of(part), encoding_word(part.payload.encoding)
            self._count_bytes(client.name, phase, Direction.DOWN, len(part.data), word)
        seen = self._broadcasts.broadcast_for(client.name, self._work(), self.model).model
        client.hold(ready.task, seen)
        return ready, seen

    def _work(self) -> Work:
        return self.next_work or Work.EVALUATE

    def _results(
        self, step: Step, assigned: list[tuple[SimulatedClient, Ready, ModelState]]
    ) -> Iterator[ClientResult]:
        """Yield the results of the clients, in their order."""
        executor, names = self._executor, [client.name for client, _, _ in assigned]
        match step.work:
            case Work.SCORE:
                asked = [
                    (client.name, ScoringRequest.of(ready.task.score, model.whole, model.mask))
                    for client, ready, model in assigned
                ]
                for (client, ready, _), scores in zip(assigned, executor.score(asked), strict=True):
                    yield client.report_scores(ready.task, scores)
            case Work.TRAIN:
                seen = [(client.name, model) for client, _, model in assigned]
                results = executor.train(seen, step.round_number)
                for (client, ready, model), trained in zip(assigned, results, strict=True):
                    yield client.report_update(ready.task, trained, model)
            case Work.EVALUATE:
                tests = executor.evaluate(names, self.model)
                for (client, _, _), tested in zip(assigned, tests, strict=True):
                    yield client.report_evaluation(tested)
            case Work.PERSONALIZE:
                tests_of_both = executor.personalize(names, self.model, self.state.rounds_done)
                for (client, _, _), both in zip(assigned, tests_of_both, strict=True):
                    yield client.report_personal(*both)

    def _accept(
        self, client: SimulatedClient, model: ModelState, result: ClientResult, step: Step
    ) -> None:
        """Check, count and post a result, as the service does with an upload."""
        digest, largest, report = "", 0.0, result.report
        if (coded := result.coded) is not None:
            values, largest, norm = self._decoded(client.name, model, coded, step)
            if norm is not None:
                report = {**report, "clipped": norm}
            self._received[client.name] = values
            digest = coded.payload.digest.hex()
            word, size = encoding_word(coded.payload.encoding), len(coded.data)
            phase = "scores" if step.work is Work.SCORE else "values"
            self._count_bytes(client.name, phase, Direction.UP, size, word)
        self._post(events.UploadReceived(step.number, client.name, digest, largest, report))

    def _decoded(
        self, client: ClientId, model: ModelState, coded: EncodedPayload, step: Step
    ) -> tuple[Vector, float, float | None]:
        """Return the values of an upload, the largest, and the norm of a clipped update."""
        manifest, data, payload = model.manifest, coded.data, coded.payload
        if step.work is Work.SCORE:
            values = _joined(score_blocks(data, payload, manifest.num_masked))
            check = ScoreCheck(client, manifest, signed=step.criterion == "grasp")
            return values, check.largest(0, values), None
        mask, base = masked(model)
        values = _joined(update_blocks(data, payload, base, self.settings))
        largest = ValueCheck(client, manifest, mask).largest(0, values)
        values, norm = clip(values, base, self.settings.max_update_norm)
        return values, largest, norm

    def _task(self, client: SimulatedClient) -> Ready:
        while True:
            broadcast = self._broadcasts.broadcast_for(client.name, self._work(), self.model)
            try:
                ready = task_for(
                    self.state, broadcast, client.name, client.request, len(self._clients),
                    self._reader,
                )  # fmt: skip
                assert ready is not None
                return ready
            except NotBuilt as needed:
                broadcast.build(needed.form)

    def _post(self, event: events.Event, model: ModelState | None = None) -> None:
        """Advance the run and perform the actions, as the run loop of the service does."""
        self.state, actions, _ = advance(self.state, event, NOW_S)
        if model is not None:
            self.model = model
        for action in actions:
            match action:
                case events.Persist():
                    self.history.add(self._with_accounting(action.fact))
                case events.OpenStep():
                    self._sum = StepSum(
                        action.step, self.model, self, self._strategy, self.settings.score_outliers
                    )
                case events.Fold():
                    self._fold(action)
                case events.Reduce():
                    self._reduce(action.step)
                case events.KeepBest():
                    self.best = self.model

    def _with_accounting(self, fact: facts.Fact) -> facts.Fact:
        """Return a fact with the seconds and bytes that the pure core does not know."""
        if isinstance(fact, facts.StepCommitted):
            seconds = time.perf_counter() - self._began_s
            report = {**fact.report, "seconds": seconds, "ledger": self._rows()}
            return replace(fact, report=report)
        return fact

    def _fold(self, action: events.Fold) -> None:
        assert self._sum is not None
        self._sum.fold(action.upload.client, action.upload.digest, action.weight)
        if self._sum.work is Work.TRAIN:  # scores are needed until the largest is known
            del self._received[action.upload.client]

    def _reduce(self, step: Step) -> None:
        assert self._sum is not None
        finished = self._sum.finish(step)
        self._sum = None
        self._received.clear()
        if finished.scores is not None:
            self.scores = finished.scores
        self._post(step_reduced(step.number, finished.model, finished.report), finished.model)

    def _count_bytes(
        self, client: ClientId, phase: str, direction: Direction, num_bytes: int, encoding: str
    ) -> None:
        self._ledger.count(phase, direction, 0, num_bytes, client=client, encoding=encoding)
        self._ledger.take()  # drops the rows by client, which no file needs

    def _rows(self) -> list[dict[str, Any]]:
        return [{**row, "message_bytes": None} for row in self._ledger.rows()]


def _joined(blocks: Iterable[tuple[int, Vector]]) -> Vector:
    return np.concatenate([block for _, block in blocks])
