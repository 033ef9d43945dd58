"""Health probes: is the coordinator alive, and is it ready?

*Alive* means that its event loop runs. *Ready* means that the state is loaded and calls are
answered. Neither depends on the run: a run that waits for clients or has ended is healthy, and a
restart of the coordinator would not help.
"""

import asyncio
import time
from http import HTTPStatus

from ssfl.program.monitor.web import Request, Response, Route, text_response

BEAT_S = 1.0
STILL_S = 60.0  # without a heartbeat: the loop hangs


class Health:
    """Written by the event loop, read by the threads that answer probes."""

    def __init__(self) -> None:
        self.ready = False
        self._beat_s = time.monotonic()

    async def beat(self) -> None:
        """Record heartbeats of the event loop until cancelled."""
        while True:
            self._beat_s = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def routes(self) -> dict[str, Route]:
        """Return the routes /healthz and /readyz."""
        return {"/healthz": self._alive, "/readyz": self._ready}

    def _alive(self, _request: Request) -> Response:
        still_s = time.monotonic() - self._beat_s
        if still_s > STILL_S:
            return text_response(
                f"the coordinator's event loop has not run for {still_s:.0f} s",
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
        return text_response("alive")

    def _ready(self, _request: Request) -> Response:
        if not self.ready:
            return text_response(
                "not ready: the state is being read, or the coordinator is being stopped",
                HTTPStatus.SERVICE_UNAVAILABLE,
            )
        return text_response("ready")
