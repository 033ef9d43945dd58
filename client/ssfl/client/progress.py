"""Progress reports during local work, so that the client does not count as lost."""

import threading
from typing import Any

import grpc

from ssfl.client.client_stats import ClientStats
from ssfl.v1 import coordinator_pb2 as pb

PROGRESS_EVERY_S = 10.0
_TIMEOUT_S = 5.0


class StepOver(Exception):
    """The coordinator closed the step during the work; the client asks for the next task."""


class ProgressReporter:
    """Reports progress every 10 s inside a `with` block; a failed report is not repeated."""

    def __init__(
        self, stub: Any, caller: pb.Caller, step: int, stats: ClientStats | None = None
    ) -> None:
        self._stats = stats or ClientStats()
        self._stub = stub
        self._caller = caller
        self._step = step
        self._closed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, name="progress", daemon=True)

    def on_step(self, done: int, total: int) -> None:
        """Record the progress of the work; raise StepOver if the step has been closed."""
        self._stats.steps_done, self._stats.steps_all = done, total
        if self._closed:
            raise StepOver

    def __enter__(self) -> "ProgressReporter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _report(self) -> None:
        while not self._over.wait(PROGRESS_EVERY_S):
            done, total = self._stats.steps_done, self._stats.steps_all
            request = pb.ProgressRequest(
                caller=self._caller, step=self._step, steps_done=done, steps_all=total
            )
            try:
                response = self._stub.Progress(request, timeout=_TIMEOUT_S)
                self._closed = response.step_closed
                self._stats.connected = True
            except grpc.RpcError:
                self._stats.connected = False  # the upload reports the cause
