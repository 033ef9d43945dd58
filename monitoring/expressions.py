"""PromQL expressions of the dashboards: their variables, and the series they may use."""

import functools
from pathlib import Path
from string import Template

import promql_parser
import yaml

from ssfl.program.monitor import series

RULES = Path(__file__).resolve().parent / "rules.yml"
SELECTED = 'job=~"$job", instance=~"$instance"'
# Values for the variables of Grafana.
VARIABLES = {"job": ".*", "instance": ".*", "__rate_interval": "1m", "window": "10m"}
# Series of every process, and of Prometheus itself.
OTHERS = {"process_resident_memory_bytes", "process_start_time_seconds", "up", "ALERTS"}


def expression(text: str) -> str:
    """Return an expression of a YAML file with SELECTED filled in.

    Raises ValueError if it does not parse or uses an unknown series.
    """
    expr = text.replace("SELECTED", SELECTED)
    try:
        unknown = used_series(filled(expr)) - declared_series()
    except ValueError as error:
        raise ValueError(f"{error}, in {text}") from error
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"neither series.py nor rules.yml declares {names}, in {text}")
    return expr


def filled(expr: str) -> str:
    """Return an expression as Grafana sends it, for all coordinators."""
    try:
        return Template(expr).substitute(VARIABLES)
    except KeyError as error:
        raise ValueError(f"{error} is not a variable of the dashboards") from error


def used_series(expr: str) -> set[str]:
    """Return the names of the series; raise ValueError if the expression does not parse."""
    names: set[str] = set()

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            names.add(node.name or str(node.matchers))

    promql_parser.walk(promql_parser.parse(expr), visit)
    return names


@functools.cache
def declared_series() -> frozenset[str]:
    """Return the names of all series in Prometheus, including those of recording rules."""
    names = set(OTHERS)
    for metric in (*series.COORDINATOR, *series.CLIENT):
        ends = ("_bucket", "_sum", "_count") if metric.kind is series.Kind.HISTOGRAM else ("",)
        names |= {f"{metric.shown}{end}" for end in ends}
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    rules = (rule for group in groups for rule in group["rules"])
    return frozenset(names | {rule["record"] for rule in rules if "record" in rule})
