"""What Prometheus may ask: every series of the coordinator is declared here.

Nothing is counted twice: the values are read from the run's state when they are asked for. Names
follow Prometheus: base units, `_total` for what only grows. Clients are counted, not named: the
log and `ssfl status` name them.
"""

import logging
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ssfl.program.exits import ExitCode, ProgramError
from ssfl.server.conductor import Conductor
from ssfl.server.state import Phase, RunState
from ssfl.server.tls import TlsFiles
from ssfl.server.waiting import client_state

STATES = ("waiting", "working", "reported", "lost", "left", "removed")
log = logging.getLogger(__name__)

TELL_EVERY_S = 60.0
TIMEOUT_S = 10.0  # for a whole question
Rows = Callable[[], list[dict[str, Any]]]


class RunCollector(Collector):
    """The series of a run, as it stands."""

    def __init__(self, conductor: Conductor, refusals: Rows) -> None:
        self._conductor = conductor
        self._refusals = refusals

    def collect(self) -> Iterator[Metric]:
        state, now_s = self._conductor.state, self._conductor.clock()
        stall = state.stall
        phase = GaugeMetricFamily("ssfl_run_phase", "1 for what the run is doing", labels=["phase"])
        for one in Phase:
            phase.add_metric([one.value], float(state.phase is one))
        yield phase
        yield GaugeMetricFamily(
            "ssfl_run_stalled", "1 if too few clients are here to go on", float(stall is not None)
        )
        yield GaugeMetricFamily(
            "ssfl_run_stalled_seconds",
            "for how long the run could not go on",
            now_s - stall.since_s if stall else 0.0,
        )
        yield GaugeMetricFamily(
            "ssfl_run_missing_clients",
            "clients that a stalled run waits for",
            len(stall.missing) if stall else 0,
        )
        yield GaugeMetricFamily(
            "ssfl_disk_full",
            "1 if the coordinator waits for room on its disk",
            float(bool(self._conductor.room.missing)),
        )
        yield CounterMetricFamily("ssfl_rounds", "rounds committed", float(state.rounds_done))
        yield self._clients(state)
        refused = CounterMetricFamily("ssfl_refusals", "calls refused", labels=["reason"])
        by_reason: Counter[str] = Counter()
        for row in self._refusals():
            by_reason[row["reason"]] += row["count"]
        for reason, count in sorted(by_reason.items()):
            refused.add_metric([reason], float(count))
        yield refused

    def _clients(self, state: RunState) -> GaugeMetricFamily:
        series = GaugeMetricFamily("ssfl_clients", "clients by what they do", labels=["state"])
        counts = Counter(client_state(state, client) for client in state.members)
        for one in STATES:
            series.add_metric([one], counts[one])
        return series


class MetricsServer:
    """Answers Prometheus on a port of its own, from a thread of its own."""

    def __init__(self, collector: Collector, host: str, port: int, tls: TlsFiles | None) -> None:
        """Listen; raise ProgramError(PORT_IN_USE) if the port cannot be had."""
        registry = CollectorRegistry()
        registry.register(collector)
        security: dict[str, Any] = {}
        if tls:
            security = {"certfile": str(tls.certificate), "keyfile": str(tls.key)}
        if tls and tls.authorities:
            security |= {"client_cafile": str(tls.authorities), "client_auth_required": True}
        try:
            self._server, self._thread = start_http_server(port, host, registry, **security)
        except OSError as error:
            raise ProgramError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with "
                "--metrics-port, or --metrics-port 0 for a free one",
                ExitCode.PORT_IN_USE,
            ) from error
        self.port = self._server.server_port
        self._told_s = -TELL_EVERY_S
        self._server.handle_error = self._tell  # type: ignore[method-assign, assignment]
        # Who connects and says nothing holds up nobody: the handshake is the handler's thread's.
        if isinstance(self._server.socket, ssl.SSLSocket):
            self._server.socket.do_handshake_on_connect = False  # type: ignore[attr-defined]
        handler: Any = self._server.RequestHandlerClass
        self._server.RequestHandlerClass = type("Handler", (handler,), {"timeout": TIMEOUT_S})

    def _tell(self, _request: object, address: object) -> None:
        """Say that a question failed, but not again and again: anybody may ask."""
        if time.monotonic() - self._told_s >= TELL_EVERY_S:
            self._told_s = time.monotonic()
            host = address[0] if isinstance(address, tuple) else address
            log.warning(
                "a question at the metrics port failed: %s", sys.exception(), extra={"from": host}
            )

    def stop(self) -> None:
        """Answer no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
