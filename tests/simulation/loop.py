"""An event loop without sockets, threads or real time: the same seed gives the same run.

Time is a number. When nothing is ready, it jumps to the next timer. Jobs for threads
(`run_in_executor`, `asyncio.to_thread`) run later in virtual time, one complete job at a time. An
executor with one thread keeps the order of its jobs.

A job that pauses (for space on a full disk) runs on a thread of its own. Still, only one thread
runs at a time, and virtual time decides which one is next.

Everything runs on behalf of a process. A dead process does nothing more.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any

STEP_S = 1e-6  # separates events that must stay in order
START_S = 1000.0


class Stuck(AssertionError):
    """Deadlock: nothing is ready and no timer is set."""


class Crash(BaseException):
    """The process is killed here."""


class Process:
    """Something that can be killed: the coordinator, or a client."""

    def __init__(self, name: str, disk: Callable[[], tuple[float, float]] | None = None) -> None:
        self.name = name
        self.alive = True
        self.may_pause = False  # its jobs may pause
        self.disk = disk or (lambda: (0.0, 0.0))  # seconds until a job starts, and until it is done
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.lines: dict[Executor, deque[Callable[[], None]]] = {}  # jobs by executor

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine on behalf of this process."""
        context = copy_context()
        context.run(CURRENT.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def kill(self) -> None:
        """End the process as kill -9 does: it has no further effects."""
        if self.alive:
            self.alive = False
            asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        for task in list(self.tasks):
            task.cancel()


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)


class _PausingJob(threading.Thread):
    """A job that may pause; it and the loop never run at the same time."""

    def __init__(self, job: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.result: Any = None
        self.error: BaseException | None = None
        self.pause_s = 0.0
        self._job = job
        self._go, self._yielded = threading.Semaphore(0), threading.Semaphore(0)
        self._context = copy_context()
        self._is_done = False
        self.start()

    def proceed(self) -> bool:
        """Run the job until it pauses or ends; return True if it has ended."""
        self._go.release()
        self._yielded.acquire()
        return self._is_done

    def pause(self, seconds: float) -> None:
        """Return control to the loop and continue later; called by the job."""
        self.pause_s = seconds
        self._yielded.release()
        self._go.acquire()

    def run(self) -> None:
        self._go.acquire()
        try:
            self.result = self._context.run(self._job)
        except BaseException as error:  # noqa: BLE001 -- raised where the job is awaited
            self.error = error
        self._is_done = True
        self._yielded.release()


def pause(seconds: float) -> None:
    """Wait inside a job; a dead process does not continue."""
    job = threading.current_thread()
    assert isinstance(job, _PausingJob), "only a job of a process that may pause can wait"
    job.pause(seconds)
    process = CURRENT.get()
    if process is not None and not process.alive:
        raise Crash("dead")


class _NoSockets:
    """A selector without sockets, which advances the time."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer runs")
        self._loop.now_s += max(0.0, timeout)
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs everything in one thread, in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S
        self._selector = _NoSockets(self)
        self._clock_resolution = STEP_S / 10
        self.set_task_factory(_task)
        self.set_exception_handler(
            lambda _loop, _context: None
        )  # dead processes may leave unhandled errors

    def time(self) -> float:
        return self.now_s

    def run_in_executor(  # type: ignore[override]  # its own types need a TypeVarTuple
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a job after the delays of the process's disk; a dead process's job never runs."""
        future: asyncio.Future[Any] = self.create_future()
        process = CURRENT.get()
        if process is None or not process.alive:
            future.cancel()
            return future
        before_s, after_s = process.disk()
        # Our executors have one thread each, and so a queue of jobs; others do not.
        line: deque[Callable[[], None]] = deque()
        if executor is not None:
            line = process.lines.setdefault(executor, line)

        def begin() -> None:
            if future.cancelled() or not process.alive:
                deliver(None, None)
            elif process.may_pause:
                proceed(_PausingJob(lambda: func(*args)))
            else:
                try:
                    result, error = func(*args), None
                except BaseException as raised:  # noqa: BLE001 -- raised where the job is awaited
                    result, error = None, raised
                self.call_later(after_s, deliver, result, error)

        def proceed(job: _PausingJob) -> None:
            if job.proceed():
                job.join()
                self.call_later(after_s, deliver, job.result, job.error)
            else:
                self.call_later(job.pause_s, proceed, job)

        def deliver(result: Any, error: BaseException | None) -> None:
            line.popleft()
            if line:
                self.call_later(before_s, line[0])
            if future.done():
                return
            if not process.alive:
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        line.append(begin)
        if len(line) == 1:
            self.call_later(before_s, begin)
        return future

    def _process_events(self, _events: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass  # no other thread could wake the loop up


def _task(
    loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    process = context.get(CURRENT) if context is not None else CURRENT.get()
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop)
    return task
