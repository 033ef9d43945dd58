"""What Prometheus may ask of a client; program/series.py declares every series."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ssfl.client.client_stats import DIRECTIONS, OUTCOMES, STATES, Diary
from ssfl.program.monitor import series
from ssfl.program.monitor.metrics import build_info, histograms, many, maybe, metrics_route, one
from ssfl.program.monitor.web import Answer, Request, WebServer, text_answer


class SiteCollector(Collector):
    """The series of a client."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def collect(self) -> Iterator[Metric]:
        diary = self._diary
        yield build_info("client")
        yield one(series.SITE_CONNECTED, diary.connected)
        yield many(series.SITE_STATE, {word: diary.state == word for word in STATES})
        yield one(series.SITE_SAMPLES, diary.num_samples)
        yield many(series.SITE_RESULTS, {word: diary.results[word] for word in OUTCOMES})
        yield histograms(series.SITE_WORK, diary.works)
        yield histograms(series.SITE_TRANSFER, diary.transfers)
        yield many(series.SITE_BYTES, {way: diary.payload_bytes[way] for way in DIRECTIONS})
        yield one(series.SITE_RETRIES, diary.retries)
        yield many(series.SITE_RESUMES, {way: diary.resumes[way] for way in DIRECTIONS})
        yield one(series.SITE_JOINS, diary.joins)
        yield from maybe(series.SITE_TRAINING_LOSS, diary.training_loss)
        yield one(series.SITE_STEPS_DONE, diary.steps_done)
        yield one(series.SITE_STEPS_ALL, diary.steps_all)


def serve_metrics(diary: Diary, host: str, port: int) -> WebServer:
    """Answer Prometheus and probes; raise ProgramError(PORT_IN_USE) if the port is taken."""
    routes = {"/metrics": metrics_route(SiteCollector(diary)), "/healthz": _alive}
    server = WebServer(routes, host, port, flag="--metrics-port")
    print(f"ssfl-client metrics on {host}:{server.port}", flush=True)
    return server


def _alive(_request: Request) -> Answer:
    """Whether the coordinator is reached is no part of it: starting again would not help."""
    return text_answer("alive")
