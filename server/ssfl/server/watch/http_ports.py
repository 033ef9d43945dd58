"""The HTTP ports of a coordinator: health probes, metrics and the status page.

The probe port opens first, so that probes succeed while the coordinator reads a large state. Ports
on loopback use plain HTTP. On other addresses, metrics and the page use the coordinator's
certificate. With mutual TLS, the certificate of the caller must be for one of WATCHERS, so that a
site cannot read about other sites.

The coordinator is *alive* if its event loop runs. It is *ready* if the state is loaded and calls
are answered. Neither depends on the run: a run that waits for clients or has ended is healthy, and
a restart of the coordinator would not help.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus

from ssfl.program.addresses import is_loopback
from ssfl.program.monitor.log_buffer import LogBuffer
from ssfl.program.monitor.web import Request, Response, Route, WebServer, text_response
from ssfl.server.config import CoordinatorConfig
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.uploads.receive import UploadReceiver

WATCHERS = ("admin", "prometheus")
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
        if still_s <= STILL_S:
            return text_response("alive")
        text = f"the coordinator's event loop has not run for {still_s:.0f} s"
        return text_response(text, HTTPStatus.SERVICE_UNAVAILABLE)

    def _ready(self, _request: Request) -> Response:
        if self.ready:
            return text_response("ready")
        text = "not ready: the state is being read, or the coordinator is being stopped"
        return text_response(text, HTTPStatus.SERVICE_UNAVAILABLE)


class HttpPorts:
    """The configured HTTP ports."""

    def __init__(self, config: CoordinatorConfig) -> None:
        """Answer probes from now on; raise ProgramError(PORT_IN_USE) if the port is taken."""
        self.health = Health()
        self._config = config
        self._servers: list[WebServer] = []
        self._recent = LogBuffer()
        if config.status_port is not None:
            self._recent.begin()
        if config.health_port is not None:
            self._open("health", self.health.routes(), config.host, config.health_port, plain=True)

    def open(self, coordinator: Coordinator, uploads: UploadReceiver) -> None:
        """Open the metrics and status ports; raise ProgramError(PORT_IN_USE) if a port is taken."""
        config = self._config
        if config.metrics_port is not None:
            from ssfl.program.monitor.metrics import metrics_route  # loaded only if needed
            from ssfl.server.watch.metrics import RunCollector

            route = metrics_route(RunCollector(coordinator, uploads, config.out_dir))
            routes = {"/metrics": route, **self.health.routes()}
            self._open("metrics", routes, config.metrics_host, config.metrics_port)
        if config.status_port is not None:
            from ssfl.server.watch.status_documents import Documents
            from ssfl.server.watch.status_page import page_routes

            routes = page_routes(Documents(coordinator, self._recent, config.out_dir))
            self._open("status", routes, config.status_host, config.status_port)

    async def stop(self) -> None:
        """Close all ports."""
        self._recent.end()
        for server in self._servers:
            await asyncio.to_thread(server.stop)

    def _open(
        self, name: str, routes: Mapping[str, Route], host: str, port: int, *, plain: bool = False
    ) -> None:
        tls = None if plain or is_loopback(host) else self._config.tls_files
        if tls and tls.authorities:
            tls = replace(tls, names=WATCHERS)
        server = WebServer(routes, host, port, flag=f"--{name}-port", tls=tls)
        self._servers.append(server)
        print(f"ssfl-coordinator {name} on {host}:{server.port}", flush=True)
