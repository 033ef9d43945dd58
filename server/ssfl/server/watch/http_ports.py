"""The HTTP ports of a coordinator: health probes, metrics and the status page.

The probe port opens first, so that probes succeed while the coordinator reads a large state. Ports
on loopback use plain HTTP. On other addresses, metrics and the page use the coordinator's
certificate. With mutual TLS, the certificate of the caller must be for one of WATCHERS, so that a
site cannot read about other sites.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from ssfl.program.addresses import is_loopback
from ssfl.program.monitor.log_buffer import LogBuffer
from ssfl.program.monitor.web import Route, TlsFiles, WebServer
from ssfl.server.config import CoordinatorConfig
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.uploads.receive import UploadReceiver
from ssfl.server.watch.health import Health

WATCHERS = ("admin", "prometheus")


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
        """Show the run; raise ProgramError(PORT_IN_USE) if a port is taken."""
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

            documents = Documents(coordinator, self._recent, config.out_dir)
            routes = page_routes(documents)
            self._open("status", routes, config.status_host, config.status_port)

    async def stop(self) -> None:
        """Close all ports."""
        self._recent.end()
        for server in self._servers:
            await asyncio.to_thread(server.stop)

    def _open(
        self, name: str, routes: Mapping[str, Route], host: str, port: int, *, plain: bool = False
    ) -> None:
        tls = None if plain or is_loopback(host) else self._tls()
        server = WebServer(routes, host, port, flag=f"--{name}-port", tls=tls)
        self._servers.append(server)
        print(f"ssfl-coordinator {name} on {host}:{server.port}", flush=True)

    def _tls(self) -> TlsFiles | None:
        files = self._config.tls_files
        return replace(files, names=WATCHERS) if files and files.authorities else files
