"""Conversion of values to Prometheus metrics; series.py declares every series."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ssfl.program.monitor.series import BUILD_INFO, Histogram, Series
from ssfl.program.monitor.web import Request, Response, Route
from ssfl.program.version import ssfl_version

ByLabels = Mapping[Any, float]  # a label, or a tuple of them


def one(series: Series, value: float) -> Metric:
    """Return a series without labels."""
    return many(series, {(): float(value)})


def maybe(series: Series, value: float | None) -> Iterator[Metric]:
    """Yield a series without labels, unless `value` is None."""
    if value is not None:
        yield one(series, value)


def many(series: Series, values: ByLabels) -> Metric:
    """Return a series by the values of its labels."""
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(
        series.name, series.text, labels=series.labels
    )
    for labels, value in values.items():
        family.add_metric([labels] if isinstance(labels, str) else labels, float(value))
    return family


def histograms(series: Series, by_labels: Mapping[Any, Histogram]) -> Metric:
    """Return histograms by the values of their labels."""
    family = HistogramMetricFamily(series.name, series.text, labels=series.labels)
    for labels, histogram in by_labels.items():
        buckets = [
            ("+Inf" if bound == math.inf else repr(bound), float(n))
            for bound, n in histogram.buckets()
        ]
        family.add_metric([labels] if isinstance(labels, str) else labels, buckets, histogram.total)
    return family


def build_info(program: str) -> Metric:
    """Return the series with version and name of the program."""
    return many(BUILD_INFO, {(ssfl_version(), program): 1.0})


def metrics_route(collector: Collector) -> Route:
    """Return the route /metrics: the series of `collector` and of the process."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)

    def answer(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(content_type, encode(registry))

    return answer
