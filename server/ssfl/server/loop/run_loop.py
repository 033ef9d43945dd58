"""Moves the run: one queue of events, journal first, then everything that follows.

The caller's duties around the pure core, in order:
  1. advance the state for every event at hand;
  2. journal their facts, one fsync for all, after the bytes they close (ledger_file.py);
  3. publish the new state, wake who waits for a task, answer the senders;
  4. start the other actions: folds and sums run on a single worker thread, in order, and come
     back as events.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ssfl.durable.failpoints import failpoint
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState
from ssfl.method.strategies import strategy_for
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.program.malloc import MemoryReclaimer, trim_heap
from ssfl.server.accounting.kernel_bytes import Connections
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.accounting.ledger_file import LedgerFile
from ssfl.server.aggregate.step_sum import StepSum, reduced
from ssfl.server.broadcast.tasks import initializer
from ssfl.server.history.counters import Tally
from ssfl.server.history.live_entries import Fresh, Told
from ssfl.server.history.run_history import Newest
from ssfl.server.history.run_log import tell, tell_mask
from ssfl.server.history.timing import StepTimes
from ssfl.server.loop.refusals import OUTLIER, Refusals
from ssfl.server.recovery.snapshot import EVERY_BYTES, write_snapshot
from ssfl.server.run import events, facts
from ssfl.server.run.apply import apply, newest_counted
from ssfl.server.run.events import Action, Event, Persist, Reply
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState, Step
from ssfl.server.run.waiting import waiting_for
from ssfl.server.storage.disk_full import Disk, Room
from ssfl.server.storage.journal import Journal
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool, check_stored

log = logging.getLogger(__name__)

Clock = Callable[[], float]
Result = TypeVar("Result")
_TELL_BYTES = (facts.StepCommitted, facts.RunFinished, facts.BytesCounted)
_ENDS = (*_TELL_BYTES, facts.StepStarted, facts.StepVoided)  # of a step, or of a time without one


@dataclass(slots=True)
class _Posted:
    event: Event
    model: ModelState | None
    reply: asyncio.Future[Reply]


class Conductor:
    """Holds the run's published state and model."""

    def __init__(
        self,
        state: RunState,
        model: ModelState | None,
        journal: Journal,
        store: Store,
        spool: Spool,
        history: Newest,
        ledger: Ledger,
        clock: Clock,
        write_model: Callable[["Conductor"], None],
        room: Room | None = None,
        snapshot_bytes: int = 0,
        today: Clock = time.time,
        out_dir: Path | None = None,
    ) -> None:
        self.state = state
        self.model = model
        self.history = history
        self.fresh = Fresh()
        self.told_bytes = journal.num_bytes  # of the journal: what state and history tell
        self.ledger = ledger
        self.ledger_file = LedgerFile(store.root / "ledger.csv", history.account[1])
        self.connections = Connections(ledger)
        self.refusals = Refusals(clock, lambda name: ClientId(name) in self.state.members)
        self.clock = clock
        self.tally = Tally()
        self.tally.begin(state, ledger)
        self._times = StepTimes(clock, today)
        self._garbage = MemoryReclaimer()
        self.store = store
        self.spool = spool
        self.model_written = asyncio.Event()
        self.room = room or Room()
        self._disk = Disk("--state-dir", store.root)
        self._out_disk = Disk("--out-dir", out_dir) if out_dir else self._disk
        self._manifest: Manifest | None = None  # of a model that is being read
        self._earlier: Sequence[ModelState] = ()
        self._model_read = asyncio.Event()
        self._model_read.set()
        self._journal = journal
        self._snapshot_bytes = snapshot_bytes  # of the journal, which the snapshot covers
        self._write_model = write_model
        self._strategy = strategy_for(state.settings)
        self._is_lossy = state.settings.value_type != "float32"
        self._queue: asyncio.Queue[_Posted] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="sum")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._sum: StepSum | None = None
        self._background: set[asyncio.Future[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def post(self, event: Event, model: ModelState | None = None) -> Reply:
        """Give an event to the run; return its word when the facts are on disk.

        `model` is what the event makes current (Initialized, StepReduced).
        """
        posted = _Posted(event, model, asyncio.get_running_loop().create_future())
        await self._queue.put(posted)
        return await posted.reply

    async def check_ours(self) -> None:
        """Raise Fenced if another coordinator has taken the run over: its clients must leave."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._journal.check_ours)

    def waiting_for(self) -> str:
        """Say in a sentence what the run waits for; empty if nothing."""
        if self.is_reading:
            return "the coordinator, which has started again and reads its model"
        now_s = self.clock()
        return self.room.missing_at(now_s) or waiting_for(self.state, now_s)

    @property
    def journal_path(self) -> Path:
        return self._journal.path

    @property
    def manifest(self) -> Manifest | None:
        """What the run's model is made of; None before a client has described it."""
        return self.model.manifest if self.model else self._manifest

    def take_up(self, manifest: Manifest, read: Callable[[], Sequence[ModelState]]) -> None:
        """Go on with a model of the state directory.

        `read` returns the models of `load_models` and runs on the worker thread, before the sums
        that are due; calls that need the model wait for it, all others are answered at once.
        """
        self._manifest = manifest
        self._model_read.clear()

        def job() -> None:
            *self._earlier, self.model = read()

        def done() -> None:
            self._model_read.set()
            self._wake()

        self._work(job, then=done)

    async def current_model(self) -> ModelState | None:
        """Return the model; wait while it is being read."""
        await self._model_read.wait()
        return self.model

    @property
    def is_reading(self) -> bool:
        """Tell whether the model is still being read."""
        return not self._model_read.is_set()

    def take_earlier(self) -> Sequence[ModelState]:
        """Return, once, the models before that clients may hold after a restart."""
        earlier, self._earlier = self._earlier, ()
        return earlier

    def news(self) -> asyncio.Event:
        """Return what will be set when tasks may have changed; take it *before* you look."""
        return self._changed

    async def serve(self) -> None:
        """Handle events until cancelled; raise what a worker raised."""
        handling = asyncio.ensure_future(self._handle())
        try:
            await asyncio.wait({handling, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            for task in (self._failure, handling):
                if task.done():
                    task.result()
        except asyncio.CancelledError:
            handling.cancel()
            full = bool(self.room.missing)
            self.room.close()  # who waits for room would never end
            await asyncio.wait({handling})
            if self.ledger.untaken and not full:
                for fact in await self._write([facts.BytesCounted({})]):
                    self.history.add(fact)
            raise
        finally:
            handling.cancel()
            if self._failure.done():
                self._failure.exception()  # of one that came while we were being stopped
            self.room.close()
            while not self._queue.empty():  # nobody will answer these any more
                self._queue.get_nowait().reply.cancel()
            self._worker.shutdown(wait=True, cancel_futures=True)
            self._writer.shutdown(wait=True)
            self._journal.close()
            self.ledger_file.close()

    async def _handle(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._take(batch)
            except BaseException:
                for posted in batch:
                    posted.reply.cancel()
                raise

    async def _take(self, batch: list[_Posted]) -> None:
        state, actions, replies = self.state, list[Action](), list[Reply]()
        now_s = self.clock()
        for posted in batch:
            state, more, reply = advance(state, posted.event, now_s)
            actions += more
            replies.append(reply)
        new_facts = [action.fact for action in actions if isinstance(action, Persist)]
        if self.state.finished and any(isinstance(fact, facts.ClientLeft) for fact in new_facts):
            new_facts.append(facts.BytesCounted({}))  # its download of the final model
        if any(isinstance(fact, facts.StepCommitted) for fact in new_facts):
            await self.connections.count()
        if new_facts:
            new_facts = await self._write(new_facts)
        self._publish(state, batch, replies, new_facts)
        for action in actions:
            self._do(action)

    def _publish(
        self,
        state: RunState,
        batch: list[_Posted],
        replies: list[Reply],
        new_facts: list[facts.Fact],
    ) -> None:
        tasks_before = _tasks_key(self.state)
        self.state, self.told_bytes = state, self._journal.num_bytes
        for posted, reply in zip(batch, replies, strict=True):
            if posted.model is not None and reply in (Reply.ACCEPTED, Reply.DONE):
                self.model = posted.model
        for fact in new_facts:
            self.history.add(fact)
            tell(fact, state, self.history)
            if isinstance(fact, facts.StepCommitted):
                self._tell_commit(fact)
        if _tasks_key(state) != tasks_before:
            self._wake()
        for posted, reply in zip(batch, replies, strict=True):
            if not posted.reply.done():
                posted.reply.set_result(reply)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _write(self, new_facts: list[facts.Fact]) -> list[facts.Fact]:
        """Put facts on disk, with what history wants to know and the pure core cannot.

        The bytes of the step that ends here go first; a fact that tells the totals tells the
        length of that file, too, so that both are of the same moment.
        """
        told = self._timed(new_facts)
        ends = any(isinstance(fact, _ENDS) for fact in told)
        detail, totals = (self.ledger.take(), self.ledger.rows()) if ends else ([], [])
        run_id, step = self.state.run_id, self.state.step
        where = (step.round_number, step.number) if step else ("", "")

        def write() -> list[facts.Fact]:
            length = self.ledger_file.num_bytes
            if detail:
                self._journal.check_ours()
                length = self._kept(lambda: self.ledger_file.append(detail, run_id, *where))
            account = {"ledger": totals, "ledger_bytes": length}
            facts_now = [
                replace(fact, report={**fact.report, **account})
                if isinstance(fact, _TELL_BYTES)
                else fact
                for fact in told
            ]
            self._kept(lambda: self._append(facts_now))
            return facts_now

        return await asyncio.get_running_loop().run_in_executor(self._writer, write)

    def _append(self, new_facts: list[facts.Fact]) -> None:
        began_s = self.clock()
        self._journal.append([facts.to_json(fact) for fact in new_facts])
        self.tally.syncs.observe(self.clock() - began_s)

    def _timed(self, new_facts: list[facts.Fact]) -> list[facts.Fact]:
        """Return the facts, those that end a step with the times of it; count them all."""
        state, told = self.state, list[facts.Fact]()
        num_values = self.manifest.size if self.manifest else 0
        for fact in new_facts:
            now = fact
            match fact:
                case facts.StepStarted():
                    self._times.begin(fact.step)
                case facts.StepClosed():
                    self._times.close()
                case facts.StepCommitted() if state.step:
                    now = replace(fact, report={**self._times.report(state.step), **fact.report})
            self.tally.take(now, state, self.ledger, num_values)
            state = apply(state, fact)
            told.append(now)
        return told

    def _tell_commit(self, fact: facts.StepCommitted) -> None:
        model, history = self.model, self.history
        if entry := history.newest_entry:
            self.fresh.add(Told(fact.step, *entry), self.told_bytes)
        if model and model.mask and history.newest_mask.get("step") == fact.step:
            tell_mask(model.mask, model.manifest, history)
        for client in fact.report.get("outliers", []):
            self.refusals.count(client, OUTLIER, f"the scores of {client} did not count")

    def _do(self, action: Action) -> None:
        match action:
            case Persist():
                pass
            case events.OpenStep():
                self._open_step(action.step)
            case events.Fold():
                self._work(lambda: self._fold(action))
            case events.Reduce():
                self._reduce(action.step)
            case events.DropSpool():
                self._work(lambda: self._drop(action.step))
            case events.KeepBest():
                self._work(lambda: self._kept(lambda: self.store.keep_best(action.best.step)))
            case events.WriteModel():
                self._work(
                    lambda: self.room.wait_for(lambda: self._write_model(self), self._out_disk),
                    then=self.model_written.set,
                )

    def _work(self, job: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Run `job` on the worker thread; a failure ends the coordinator, loudly."""
        future = asyncio.get_running_loop().run_in_executor(self._worker, job)
        self._background.add(future)

        def done(finished: asyncio.Future[None]) -> None:
            self._background.discard(finished)
            if finished.cancelled():
                return
            error = finished.exception()
            if error is not None and not self._failure.done():
                self._failure.set_exception(error)
            elif then is not None and error is None:
                then()

        future.add_done_callback(done)

    def _kept(self, job: Callable[[], Result]) -> Result:
        """Do a job that writes to the state directory, when there is room for it."""
        return self.room.wait_for(job, self._disk)

    def _open_step(self, step: Step) -> None:
        def job() -> None:
            failpoint("sum.open")
            model = self.model  # looked at here: after a restart, it may have to be read first
            assert model is not None
            policy = self.state.settings.score_outliers
            self._sum = StepSum(step, model, self.spool, self._strategy, policy)
            if step.work is Work.SCORE:
                _ = model.whole_digest  # computed here, not when the first report is checked
                model.release()

        self._work(job)

    def _fold(self, action: events.Fold) -> None:
        failpoint("sum.fold")
        path = self.spool.verified(action.step, action.client, bytes.fromhex(action.digest))
        check_stored(path, action.stored)
        self._current().fold(action.client, action.digest, action.weight)

    def _current(self) -> StepSum:
        assert self._sum is not None
        return self._sum

    def _reduce(self, step: Step) -> None:
        loop = asyncio.get_running_loop()

        def job() -> None:
            failpoint("sum.reduce")
            trim_heap()  # what the uploads took: the sum needs room
            total, before = self._current(), self.model
            finished = total.finish(step)
            self._sum = None
            self._times.sum()
            self._kept(lambda: self.store.save_step(step.number, finished.model))
            result = self.store.lean(finished.model)
            if before is not None:
                before.release()
            result.release()
            failpoint("sum.stored")
            if step.work is Work.TRAIN and self._is_lossy and result.change is None:
                log.warning("the mean's change does not fit the run's value type: kept as it is")
            event = reduced(step.number, result, finished.report)
            asyncio.run_coroutine_threadsafe(self.post(event, result), loop)

        self._work(job)

    def _drop(self, step: int) -> None:
        self._kept(lambda: self.spool.set_aside(*newest_counted(self.state)))
        self.spool.drop_through(step)
        self.store.drop_older(self.state.model_step, self.state.mask_epoch)
        self._garbage.passed(sum(row["payload_bytes"] for row in self.ledger.rows()))
        self._keep_snapshot()

    def _keep_snapshot(self) -> None:
        length = self._journal.num_bytes
        if length - self._snapshot_bytes < EVERY_BYTES:
            return
        self._snapshot_bytes = length
        try:
            write_snapshot(self._journal.path, self.state.settings, length)
        except OSError as error:  # nothing is lost but the time that it saves
            log.warning("no snapshot could be written: %s", error)


def _tasks_key(state: RunState) -> tuple[object, ...]:
    """What decides whether some client may get another task than before."""
    step = state.step
    describes = None if state.manifest_digest else initializer(state)  # changes as clients join
    return (
        step and (step.number, step.closed, len(step.cohort)),
        state.finished,
        state.manifest_digest,
        state.removed,
        describes and describes.client,
    )
