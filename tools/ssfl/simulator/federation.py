"""A coordinator and its clients in one process: the service without sockets, clock and disk.

The run uses the parts of the service: `advance` decides the steps, `task_for` builds each client's
task, `StepSum` adds up, the strategy makes the next model, `History` keeps the results. An executor
(executors.py) computes the clients' work; the next model does not depend on its order. The clock
stands still, so no deadline passes. A client that arrives later joins during the round before its
first one.

Bytes are those of the encoded tensors, in the encodings that the service uses over a network. The
messages that carry them are not simulated.

Clients of a gossip strategy train models of their own and receive those of others (relay.py). The
run's model, the mean of all, is sent to them only to be tested.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.client.coding import EncodedPayload, EncodedUpdate
from ssfl.client.local_work import scoring_request
from ssfl.codec.values_only import encoded_bytes
from ssfl.datasets.shards.shard_file import Shard, class_counts
from ssfl.learning.load_task import LoadedTask
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.norm_clip import clip
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import RELAY, VALUES, Direction, Ledger, encoding_word
from ssfl.server.aggregate.step_sum import StepSum, step_reduced
from ssfl.server.broadcast.payloads import Broadcast, NotBuilt
from ssfl.server.broadcast.per_client import Broadcasts
from ssfl.server.broadcast.tasks import Ready, task_for
from ssfl.server.history.run_history import History
from ssfl.server.loop.first_model import begin_model, initialized
from ssfl.server.report.outputs import run_document
from ssfl.server.run import events, facts
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState, Step, check_samples
from ssfl.server.uploads.decode import score_blocks
from ssfl.server.uploads.encoding_choice import Reader
from ssfl.server.uploads.update_parts import ReadUpdate, check_parts, sections_of, whole_payload
from ssfl.server.uploads.verify import ScoreCheck, ValueCheck
from ssfl.simulator.checkpoint import Checkpoint, ClientState
from ssfl.simulator.clients import ClientResult, SimulatedClient
from ssfl.simulator.executors import ClientExecutor, ExactExecutor, masked
from ssfl.simulator.relay import Relay
from ssfl.simulator.work import WorkLog, multiplications
from ssfl.strategies.contract import ClientId, PeerModel, Received, Work
from ssfl.strategies.registry import criterion_for, strategy_for
from ssfl.v1 import transfer_pb2

Vector = npt.NDArray[np.float32]
MakeExecutor = Callable[[LoadedTask, Mapping[ClientId, Shard], RunSettings], ClientExecutor]

NOW_S = 0.0
ENCODINGS = frozenset(transfer_pb2.Encoding.values())


@dataclass(frozen=True, eq=False)
class SimulatedUpload:
    """An accepted upload: its values, those of further vectors, and the bits of its own mask."""

    values: Vector
    bits: bytes = b""


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
        tests_apart: bool = False,
    ) -> None:
        """Build the run's model.

        `arrivals` has the first round of each client that joins later. `reference_coding` encodes
        values as over a network; without it they are encoded as over loopback. With `tests_apart`
        clients forget a model that they have tested, so that the bytes of rounds are those of a run
        without tests.
        """
        self.settings = settings
        self.history = History()
        self.scores: Vector | None = None  # the mean over clients, after they have scored
        self.best: ModelState | None = None  # by the evaluations of all clients
        self._reader = Reader(ENCODINGS, coded=reference_coding)
        self._tests_apart = tests_apart
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
        costs = multiplications(
            self._executor.model.network, self.model.manifest, task,
            next(iter(self._shards.values())), settings.batch_size,
        )  # fmt: skip
        self._work_log = WorkLog(self.model.manifest, costs, settings)
        self._broadcasts = Broadcasts(settings)
        self._relay = Relay(self._strategy.rule) if self._strategy.is_gossip else None
        self._first_model = self.model
        self._received: dict[ClientId, SimulatedUpload] = {}  # of the open step
        self._sum: StepSum | None = None
        self._began_s = 0.0
        self._seconds = 0.0  # of all steps so far
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
        if step.work is Work.TRAIN and step.counts_as_round:
            sent = sum(row["payload_bytes"] for row in self._rows())
            self._work_log.first_round_begins(sent, self._seconds)
        self._join_late_clients(step)
        clients = [self._clients[name] for name in sorted(step.cohort)]
        assigned = [(client, *self._send_task(client)) for client in clients]
        for (client, _, model), result in zip(assigned, self._results(step, assigned), strict=True):
            self._accept(client, model, result, step)
        seconds = time.perf_counter() - self._began_s
        self._seconds += seconds
        if step.work is Work.SCORE:
            self._work_log.worked_on_masks(seconds)
        if self.state.finished:
            for client in self._clients.values():
                if client.name in self.state.members:
                    self._send_task(client)

    @property
    def order(self) -> str:
        """How the clients of a step train: in one batch, pooled, or one by one."""
        return self._executor.order

    def close(self) -> None:
        """End the executor."""
        self._executor.close()

    @property
    def can_resume(self) -> bool:
        """True unless clients receive each other's updates, which a checkpoint does not have."""
        return self._relay is None

    def checkpoint(self) -> Checkpoint:
        """Return what the remaining steps and the document depend on; call it between steps."""
        clients = {
            name: ClientState(client.request.SerializeToString(), client.memory)
            for name, client in self._clients.items()
        }
        return Checkpoint(
            self.state, self.history, self._ledger.rows(), self._broadcasts.sent(), self.model,
            clients, self._work_log.sums(), self._seconds,
        )  # fmt: skip

    def resume(self, kept: Checkpoint) -> None:
        """Continue from a checkpoint of the same run; `scores` and `best` start empty."""
        self.state, self.history, self.model = kept.state, kept.history, kept.model
        self._ledger, self._seconds = Ledger(), kept.seconds
        self._ledger.resume(kept.ledger)
        self._work_log.resume(kept.work)
        self._broadcasts = Broadcasts(self.settings, lambda: kept.sent)
        for name, client in self._clients.items():
            client.request.ParseFromString(kept.clients[name].request)
            client.memory = dict(kept.clients[name].memory)
        if self.state.step and not self.state.step.work.is_test:
            self._open_sum(self.state.step)

    def document(self) -> dict[str, Any]:
        """Return the document that a coordinator writes into history.json, and `work`."""
        state = replace(self.state, settings=self.settings)
        document = run_document(state, self.model, self.history, self._rows())
        gossip = {"gossip": self._relay.document()} if self._relay else {}
        work = {**self._work_log.document(), "held_bytes": self._held_bytes()}
        return {**document, **gossip, "work": work}

    def _held_bytes(self) -> int:
        """Return the bytes that clients keep between rounds, and the relay for them."""
        kept: list[Vector | Mask] = [
            item for client in self._clients.values() for item in client.memory.values()
        ]
        kept += [update.model.values for update in self._relay.updates] if self._relay else []
        return sum(len(item.bits) if isinstance(item, Mask) else item.nbytes for item in kept)

    def read(self, _step: int, client: ClientId, _digest: bytes, start: int, count: int) -> Vector:
        """Return values of an upload for the sum."""
        return self._received[client].values[start : start + count]

    def tail(self, _step: int, client: ClientId, _digest: bytes, _num_bytes: int) -> bytes:
        """Return the mask bits of an upload."""
        return self._received[client].bits

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
        apart = self._tests_apart and ready.task.HasField("evaluate")
        for part in ready.parts:
            phase = ready.phase if apart else ready.phase_of(part)
            word = encoding_word(part.payload.encoding)
            self._count_bytes(client.name, phase, Direction.DOWN, len(part.data), word)
        seen = self._broadcast_for(client).model
        if ready.task.HasField("train") and any(part.phase == VALUES for part in ready.parts):
            number, num_kept = ready.task.train.round_number, masked(seen)[0].num_kept
            self._work_log.sent(number, Direction.DOWN, num_kept)
        if not apart:
            client.hold(ready.task, seen)
        return ready, seen

    def _broadcast_for(self, client: SimulatedClient) -> Broadcast:
        """Return what a client is sent for its task."""
        work, model = self._work(), self.model
        if self._relay and work is Work.TRAIN:  # it trains its own model, and codes against this
            model = self._first_model
        return self._broadcasts.broadcast_for(client.name, work, model)

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
                    (client.name, scoring_request(ready.task.score, model.whole, model.mask))
                    for client, ready, model in assigned
                ]
                for (client, ready, _), scores in zip(assigned, executor.score(asked), strict=True):
                    yield client.report_scores(ready.task, scores)
            case Work.TRAIN:
                asked_to_train = [
                    (client.name, self._received_by(client, ready, model), client.memory)
                    for client, ready, model in assigned
                ]
                answers = executor.train(asked_to_train)
                manifest = self.model.manifest
                for (client, ready, _), (_, received, _), (reply, puts, effort) in zip(
                    assigned, asked_to_train, answers, strict=True
                ):
                    self._work_log.trained(client.num_samples, effort)
                    yield client.report_update(ready.task, received, reply, puts, manifest)
            case Work.EVALUATE:
                tests = executor.evaluate(names, self.model)
                for (client, _, _), tested in zip(assigned, tests, strict=True):
                    yield client.report_evaluation(tested)
            case Work.PERSONALIZE:
                final = Received(*masked(self.model), self.state.rounds_done)
                own = [(client.name, final, client.memory) for client, _, _ in assigned]
                tests_of_both = executor.personalize(own)
                for (client, _, _), both in zip(assigned, tests_of_both, strict=True):
                    yield client.report_personal(*both)

    def _received_by(self, client: SimulatedClient, ready: Ready, model: ModelState) -> Received:
        """Return what a client receives with a training task."""
        mask, values = masked(model)
        train, vectors = ready.task.train, self._strategy.vectors(model)
        received = Received(mask, values, train.round_number, train.task, vectors)
        if self._relay is None:
            return received
        updates = self._relay.hand_out(train.round_number, client.name, client.memory)
        for update in updates.values():
            for word, size in update.sizes:
                self._count_bytes(client.name, RELAY, Direction.DOWN, size, word)
        return replace(received, peers={name: update.model for name, update in updates.items()})

    def _accept(
        self, client: SimulatedClient, model: ModelState, result: ClientResult, step: Step
    ) -> None:
        """Check, count and post a result, as the service does with an upload."""
        accepted = events.UploadReceived(step.number, client.name, "", report=result.report)
        if result.scores is not None:
            accepted = self._accept_scores(accepted, model, result.scores, step)
        elif result.update is not None:
            accepted = self._accept_update(accepted, model, result.update, step)
        self._post(accepted)

    def _accept_scores(
        self, accepted: events.UploadReceived, model: ModelState, coded: EncodedPayload, step: Step
    ) -> events.UploadReceived:
        client, manifest, payload = accepted.client, model.manifest, coded.payload
        values = _joined(score_blocks(coded.data, payload, manifest.num_masked))
        check = ScoreCheck(client, manifest, signed=criterion_for(step.criterion).signed)
        self._received[client] = SimulatedUpload(values)
        word = encoding_word(payload.encoding)
        self._count_bytes(client, "scores", Direction.UP, len(coded.data), word)
        return replace(accepted, digest=payload.digest.hex(), largest=check.largest(0, values))

    def _accept_update(
        self, accepted: events.UploadReceived, model: ModelState, coded: EncodedUpdate, step: Step
    ) -> events.UploadReceived:
        client, header, settings = accepted.client, coded.header, self.settings
        check_parts(header, self._strategy.parts(step.task, model.manifest), model, settings)
        update = ReadUpdate(header, model, settings, coded.data)
        (mask, base), bits, own_mask = masked(model), b"", ""
        if header.HasField("own_mask"):
            mask = update.mask()
            bits, own_mask = mask.bits, mask.digest.hex()
        values = _joined(update.blocks(mask))
        largest = ValueCheck(client, model.manifest, mask).largest(0, values)
        if header.HasField("values"):
            self._work_log.sent(step.round_number, Direction.UP, mask.num_kept)
        report = accepted.report
        if not bits and not header.vectors:
            values, norm = clip(values, base, settings.max_update_norm)
            report = report if norm is None else {**report, "clipped": norm}
        self._received[client] = SimulatedUpload(values, bits)
        if self._relay:
            for word, size in self._relay.publish(client, PeerModel(mask, values), header):
                self._count_bytes(client, RELAY, Direction.UP, size, word)
        else:
            for section in sections_of(header, is_round=step.counts_as_round):
                word, size = encoding_word(section.payload.encoding), section.payload.num_bytes
                self._count_bytes(client, section.phase, Direction.UP, size, word)
        return replace(
            accepted, digest=whole_payload(header).digest.hex(), largest=largest, report=report,
            own_mask=own_mask, numbers=tuple(header.numbers),
        )  # fmt: skip

    def _task(self, client: SimulatedClient) -> Ready:
        while True:
            broadcast = self._broadcast_for(client)
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
                    self._open_sum(action.step)
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

    def _open_sum(self, step: Step) -> None:
        outliers = self.settings.score_outliers
        self._sum = StepSum(step, self.model, self, self._strategy, outliers)

    def _fold(self, action: events.Fold) -> None:
        assert self._sum is not None
        self._sum.fold(action.upload, action.weight)
        plain = self._sum.work is Work.TRAIN and self._strategy.is_plain_mean
        # Scores are needed until the largest is known, other updates by the rule, masks to the end.
        if plain and not action.upload.own_mask:
            del self._received[action.upload.client]

    def _reduce(self, step: Step) -> None:
        assert self._sum is not None
        began_s = time.perf_counter()
        finished = self._sum.finish(step)
        if step.work is Work.TRAIN and finished.model.mask != self.model.mask:
            self._work_log.worked_on_masks(time.perf_counter() - began_s)
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
    return np.concatenate([np.empty(0, dtype=np.float32), *(block for _, block in blocks)])
