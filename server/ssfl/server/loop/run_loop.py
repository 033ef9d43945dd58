"""Drives the run: one queue of events; facts are journalled before they take effect.

The loop handles all queued events as one batch:
  1. advance the state with each event (run/machine.py, without I/O);
  2. write the facts of the batch to disk with one fsync (fact_writer.py);
  3. publish the new state, wake clients blocked in NextTask, then answer the senders;
  4. start the other actions, which run in order on a single worker thread (step_jobs.py). The
     result of Reduce is posted as a new event.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState
from ssfl.server.history.live_entries import LiveEntries
from ssfl.server.history.run_history import Newest
from ssfl.server.history.run_log import log_fact, log_mask
from ssfl.server.loop.fact_writer import Clock, FactWriter
from ssfl.server.loop.refusals import OUTLIER, Refusals
from ssfl.server.loop.step_jobs import StepJobs
from ssfl.server.run import events, facts
from ssfl.server.run.events import Action, Event, Persist, Reply
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState, Step, initializer
from ssfl.server.run.waiting import waiting_for
from ssfl.server.storage.disk_full import DiskSpaceWaiter


@dataclass(slots=True)
class _Posted:
    event: Event
    model: ModelState | None
    reply: asyncio.Future[Reply]


class Recorder:
    """Records published facts in the history, in the log and for the status page."""

    def __init__(self, history: Newest, live_entries: LiveEntries, refusals: Refusals) -> None:
        self.history = history
        self._live_entries = live_entries
        self._refusals = refusals

    def add(
        self, fact: facts.Fact, state: RunState, model: ModelState | None, journal_bytes: int
    ) -> None:
        """Record a fact; `state` and `model` are those after it."""
        history = self.history
        history.add(fact)
        log_fact(fact, state, history)
        if not isinstance(fact, facts.StepCommitted):
            return
        if entry := history.newest_entry:
            self._live_entries.add(entry, journal_bytes)
        if model and model.mask and history.newest_mask.get("step") == fact.step:
            log_mask(model.mask, model.manifest, history)
        for client in fact.report.get("outliers", []):
            self._refusals.count(client, OUTLIER, f"the scores of {client} did not count")


class RunLoop:
    """Handles the events of the run; holds its published state and model."""

    def __init__(
        self,
        state: RunState,
        writer: FactWriter,
        jobs: StepJobs,
        recorder: Recorder,
        disk_space: DiskSpaceWaiter,
        clock: Clock,
    ) -> None:
        self.state = state
        self.model: ModelState | None = None
        # Length of the journal that state and history reflect.
        self.published_journal_bytes = writer.journal_bytes
        self.model_written = asyncio.Event()
        self.clock = clock
        self._writer = writer
        self._jobs = jobs
        self._recorder = recorder
        self._disk_space = disk_space
        self._manifest: Manifest | None = None  # while the model is being read
        self._earlier: Sequence[ModelState] = ()
        self._model_read = asyncio.Event()
        self._model_read.set()
        self._queue: asyncio.Queue[_Posted] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="sum")
        self._background: set[asyncio.Future[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def post(self, event: Event, model: ModelState | None = None) -> Reply:
        """Give an event to the run; return its reply when the facts are on disk.

        `model` becomes the current model if the event is accepted (Initialized, StepReduced).
        """
        posted = _Posted(event, model, asyncio.get_running_loop().create_future())
        await self._queue.put(posted)
        return await posted.reply

    async def check_ours(self) -> None:
        """Raise Fenced if another coordinator has taken over the run."""
        await self._writer.check_ours()

    def waiting_for(self) -> str:
        """Return what the run waits for, as text; empty if nothing."""
        if self.is_reading:
            return "the coordinator, which has restarted and is reading its model"
        now_s = self.clock()
        return self._disk_space.blocked_at(now_s) or waiting_for(self.state, now_s)

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the run's model; None until the model is known."""
        return self.model.manifest if self.model else self._manifest

    def take_up(self, manifest: Manifest, read: Callable[[], Sequence[ModelState]]) -> None:
        """Resume with a model of the state directory.

        `read` returns the models of `load_models`. It runs on the worker thread, before any sum.
        Calls that need the model wait for it; all others are answered at once.
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
        """True while the model is being read."""
        return not self._model_read.is_set()

    def take_earlier(self) -> Sequence[ModelState]:
        """Return the earlier models that clients may hold after a restart.

        Only the first call returns them; later calls return an empty sequence.
        """
        earlier, self._earlier = self._earlier, ()
        return earlier

    def tasks_changed(self) -> asyncio.Event:
        """Return the event that is set at the next change of tasks.

        Get it *before* looking for a task, so that no change in between is missed.
        """
        return self._changed

    async def serve(self) -> None:
        """Handle events until cancelled; raise the error of a failed job or event."""
        handling = asyncio.ensure_future(self._handle())
        try:
            await first_of([self._failure, handling])
        except asyncio.CancelledError:
            handling.cancel()
            full = bool(self._disk_space.blocked_on)
            self._disk_space.close()  # a job that waits for disk space would never end
            await asyncio.wait({handling})
            if self._writer.has_unwritten_bytes and not full:
                for fact in await self._write([facts.BytesCounted({})]):
                    self._recorder.history.add(fact)
            raise
        finally:
            handling.cancel()
            if self._failure.done():
                self._failure.exception()  # mark it as retrieved: a job may fail during the stop
            self._disk_space.close()
            while not self._queue.empty():  # these will not be answered
                self._queue.get_nowait().reply.cancel()
            self._worker.shutdown(wait=True, cancel_futures=True)
            self._writer.close()

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
        self.state, self.published_journal_bytes = state, self._writer.journal_bytes
        for posted, reply in zip(batch, replies, strict=True):
            if posted.model is not None and reply in (Reply.ACCEPTED, Reply.DONE):
                self.model = posted.model
        for fact in new_facts:
            self._recorder.add(fact, state, self.model, self.published_journal_bytes)
        if _tasks_key(state) != tasks_before:
            self._wake()
        for posted, reply in zip(batch, replies, strict=True):
            if not posted.reply.done():
                posted.reply.set_result(reply)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _write(self, new_facts: list[facts.Fact]) -> list[facts.Fact]:
        num_values = self.manifest.size if self.manifest else 0
        return await self._writer.write(new_facts, self.state, num_values)

    def _do(self, action: Action) -> None:
        """Start an action. Jobs read the model when they run: it may not be loaded earlier."""
        match action:
            case Persist():
                pass
            case events.OpenStep():
                self._work(lambda: self._jobs.open_step(action.step, self.model))
            case events.Fold():
                self._work(lambda: self._jobs.fold(action))
            case events.Reduce():
                self._reduce(action.step)
            case events.DropSpool():
                self._work(lambda: self._jobs.drop(action.step, self.state))
            case events.KeepBest():
                self._work(lambda: self._jobs.keep_best(action.best.step))
            case events.WriteModel():
                self._work(self._jobs.write_model, then=self.model_written.set)

    def _reduce(self, step: Step) -> None:
        loop = asyncio.get_running_loop()

        def job() -> None:
            event, model = self._jobs.reduce(step, self.model)
            asyncio.run_coroutine_threadsafe(self.post(event, model), loop)

        self._work(job)

    def _work(self, job: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Run `job` on the worker thread; a failure ends the coordinator with the error."""
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


async def first_of(jobs: Sequence[asyncio.Future[Any]]) -> None:
    """Return when one job is done; raise the error of the first failed job in the list."""
    await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
    for job in jobs:
        if job.done():
            job.result()


def _tasks_key(state: RunState) -> tuple[object, ...]:
    """Return a key that changes when the task of any client may have changed."""
    step = state.step
    describer = None if state.manifest_digest else initializer(state)  # changes as clients join
    return (
        step and (step.number, step.closed, len(step.cohort)),
        state.finished,
        state.manifest_digest,
        state.removed,
        describer and describer.client,
    )
