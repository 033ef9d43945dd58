"""The committed dashboards: their panels and expressions."""

import json
from collections.abc import Iterator
from typing import Any

from monitoring.build import HERE
from monitoring.expressions import filled

FILES = sorted((HERE / "dashboards").glob("*.json"))
NAMES = [file.stem for file in FILES]


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
