"""Prometheus metrics of a client; `ssfl.program.monitor.series` declares every series."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ssfl.client.client_stats import DIRECTIONS, OUTCOMES, STATES, ClientStats
from ssfl.program.monitor import series
from ssfl.program.monitor.metrics import build_info, histograms, many, maybe, metrics_route, one
from ssfl.program.monitor.web import Request, Response, WebServer, text_response


class SiteCollector(Collector):
    """Collects the series of a client."""

    def __init__(self, stats: ClientStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        yield build_info("client")
        yield one(series.SITE_CONNECTED, stats.connected)
        yield many(series.SITE_STATE, {state: stats.state == state for state in STATES})
        yield one(series.SITE_SAMPLES, stats.num_samples)
        yield many(series.SITE_RESULTS, {name: stats.results[name] for name in OUTCOMES})
        yield histograms(series.SITE_WORK, stats.works)
        yield histograms(series.SITE_TRANSFER, stats.transfers)
        yield many(series.SITE_BYTES, {name: stats.payload_bytes[name] for name in DIRECTIONS})
        yield one(series.SITE_RETRIES, stats.retries)
        yield many(series.SITE_RESUMES, {name: stats.resumes[name] for name in DIRECTIONS})
        yield one(series.SITE_JOINS, stats.joins)
        yield from maybe(series.SITE_TRAINING_LOSS, stats.training_loss)
        yield one(series.SITE_STEPS_DONE, stats.steps_done)
        yield one(series.SITE_STEPS_ALL, stats.steps_all)


def serve_metrics(stats: ClientStats, host: str, port: int) -> WebServer:
    """Serve metrics and probes; raise ProgramError(PORT_IN_USE) if the port is in use."""
    routes = {"/metrics": metrics_route(SiteCollector(stats)), "/healthz": _alive}
    server = WebServer(routes, host, port, flag="--metrics-port")
    print(f"ssfl-client metrics on {host}:{server.port}", flush=True)
    return server


def _alive(_request: Request) -> Response:
    """Return 200 even if the coordinator is unreachable: a restart would not help."""
    return text_response("alive")
