"""The committed dashboards: their panels and expressions."""

import json
import re
from collections.abc import Iterator
from typing import Any

from monitoring.build import HERE

FILES = sorted((HERE / "dashboards").glob("*.json"))
NAMES = [file.stem for file in FILES]
# Values for the variables of Grafana.
VARIABLES = {"$job": ".*", "$instance": ".*", "$__rate_interval": "1m", "$window": "10m"}


def dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard by file name."""
    found: dict[str, Any] = json.loads((HERE / "dashboards" / f"{name}.json").read_text("utf-8"))
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, without row headings."""
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


def expressions(name: str) -> Iterator[tuple[str, str]]:
    """Yield title and expression of every query, variables filled in; annotations last."""
    for panel in panels(name):
        for target in panel["targets"]:
            yield panel["title"], filled(target["expr"])
    for annotation in dashboard(name)["annotations"]["list"]:
        yield annotation["name"], filled(annotation["expr"])


def filled(expr: str) -> str:
    """Return an expression as Grafana would send it."""
    for variable, value in VARIABLES.items():
        expr = expr.replace(variable, value)
    assert "$" not in expr, expr
    return expr


def metric_names(expr: str) -> set[str]:
    """Return the names of series in an expression: words outside braces that are not functions."""
    bare = re.sub(r'"[^"]*"', "", expr)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    bare = re.sub(r"\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    words = re.findall(r"(?<![\w:])[a-zA-Z_:][\w:]*(?!\s*\(|[\w:])", bare)
    return set(words) - {"and", "or", "unless", "offset", "bool"}
