"""Grafana dashboards as JSON values, from dashboards/*.yaml and grafana/shared.yaml.

A dashboard file has a `title`, a `description` and `rows` of `panels`. A panel has a `kind` (stat,
lines, heatmap or table), a `title`, a `description`, `no_data` (the text of an empty panel) and
optionally a `width`; a row is 24 wide. Its other keys are the parameters of the function for its
kind. No state is shown by colour alone. In expressions, SELECTED stands for the coordinators that
the variables of the dashboard select; means are over `$window`.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from monitoring.expressions import expression

Json = dict[str, Any]

SHARED: Json = yaml.safe_load(
    (Path(__file__).resolve().parent / "grafana" / "shared.yaml").read_text("utf-8")
)


def dashboard(file: Path) -> Json:
    """Return the dashboard of a YAML file; raise ValueError for a mistake in it."""
    try:
        return _dashboard(f"ssfl-{file.stem}", **yaml.safe_load(file.read_text("utf-8")))
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file.name}: {error}") from error


def _dashboard(uid: str, *, title: str, description: str, rows: Sequence[Json]) -> Json:
    panels: list[Json] = []
    y = 0
    for row in rows:
        y = _add_row(panels, y, **row)
    shared: Json = copy.deepcopy(SHARED["dashboard"])
    for annotation in shared["annotations"]["list"]:
        annotation["expr"] = expression(annotation["expr"])
    links = [link for link in shared["links"] if link["url"] != f"/d/{uid}"]
    own = {"description": description, "links": links, "panels": panels}
    return shared | own | {"title": f"ssfl: {title}", "uid": uid}


def _add_row(board: list[Json], y: int, *, title: str, panels: Sequence[Json]) -> int:
    """Add a heading, and its panels side by side as far as they fit; return the next free y."""
    heading = {"id": len(board) + 1, "type": "row", "title": title, "collapsed": False}
    board.append(heading | {"gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
    y, x, tallest = y + 1, 0, 0
    for number, source in enumerate(panels, 1):
        try:
            added = make_panel(**source)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"panel {number} of {title!r}: {error}") from error
        place = added["gridPos"]
        if x + place["w"] > 24:
            x, y, tallest = 0, y + tallest, 0
        place |= {"x": x, "y": y}
        x, tallest = x + place["w"], max(tallest, place["h"])
        board.append({"id": len(board) + 1} | added)
    return y + tallest


def make_panel(
    *, kind: str, title: str, description: str, no_data: str, width: int = 0, **others: Any
) -> Json:
    """Return a panel that has no place yet; `others`: the parameters of the function for `kind`."""
    shared = copy.deepcopy(_one_of(SHARED["panels"], kind, "kind"))
    panel = {
        "type": shared["type"],
        "title": title,
        "description": description,
        "datasource": SHARED["datasource"],
        "gridPos": {"h": shared["height"], "w": int(width or shared["width"]), "x": 0, "y": 0},
        "fieldConfig": {"defaults": shared["defaults"] | {"noValue": no_data}, "overrides": []},
        "options": shared["options"],
        "targets": [],
        "transformations": [],
    }
    kinds: dict[str, Callable[..., None]] = {
        "stat": stat,
        "lines": lines,
        "heatmap": heatmap,
        "table": table,
    }
    kinds[kind](panel, **others)
    return panel


def stat(
    panel: Json,
    *,
    query: str,
    unit: str = "short",
    legend: str = "",
    bad: float | None = None,
    words: Mapping[str, str] | None = None,
) -> None:
    """One number, or the `legend`; red from `bad` on; `words` are shown instead of values."""
    defaults = panel["fieldConfig"]["defaults"]
    defaults["unit"] = unit
    if bad is not None:
        step = {"color": SHARED["colors"]["red"], "value": bad}
        defaults["thresholds"]["steps"].append(step)
    if words:
        texts = {value: {"text": text, "index": n} for n, (value, text) in enumerate(words.items())}
        defaults["mappings"] = [{"type": "value", "options": texts}]
    if legend:
        panel["options"]["textMode"] = "name"
    _add_target(panel, query, legend, "time_series" if legend else "table", instant=True)


def lines(
    panel: Json,
    *,
    queries: Mapping[str, str],
    unit: str = "short",
    stacked: bool = False,
    bars: bool = False,
    logarithmic: bool = False,
    maximum: float | None = None,
    colors: Mapping[str, str] | None = None,
    dashed: Sequence[str] = (),
) -> None:
    """Values over time; the keys of `queries` are legends, those of `colors` names of lines."""
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    defaults["unit"] = unit
    if stacked:
        custom |= {"fillOpacity": 60, "lineWidth": 1, "stacking": {"group": "A", "mode": "normal"}}
    if bars:
        custom |= {"drawStyle": "bars", "fillOpacity": 60}
    if logarithmic:
        custom["scaleDistribution"] = {"type": "log", "log": 10}
        del defaults["min"]
    if maximum is not None:
        defaults["max"] = maximum
    for name, color in (colors or {}).items():
        fixed = _one_of(SHARED["colors"], color, "colour")
        _add_override(panel, name, {"color": {"mode": "fixed", "fixedColor": fixed}})
    for name in dashed:
        style = {"fill": "dash", "dash": [8, 8]}
        _add_override(panel, name, {"custom.lineStyle": style, "custom.fillOpacity": 0})
    for legend, query in queries.items():
        _add_target(panel, query, legend)


def heatmap(panel: Json, *, query: str) -> None:
    """Durations over time, from the buckets of a histogram."""
    _add_target(panel, query, "{{le}}", "heatmap")


def table(panel: Json, *, columns: Mapping[str, Mapping[str, str]], key: str, sort: str) -> None:
    """One row for every value of the label `key`; a column has a `unit` and a `query`."""
    for name, column in columns.items():
        if column.keys() != {"unit", "query"}:
            raise ValueError(f"the column {name!r} needs unit and query, and has {list(column)}")
        _add_override(panel, name, {"unit": column["unit"], "custom.align": "right"})
        _add_target(panel, column["query"], "", "table", instant=True)
    panel["options"]["sortBy"] = [{"displayName": sort, "desc": True}]
    values = [f"Value #{target['refId']}" for target in panel["targets"]]
    organize = {
        "excludeByName": {f"Time {n}": True for n in range(1, 9)} | {"Time": True},
        "indexByName": {label: n for n, label in enumerate([key, *values])},
        "renameByName": dict(zip(values, columns, strict=True)),
    }
    panel["transformations"] = [
        {"id": "joinByField", "options": {"byField": key, "mode": "outer"}},
        {"id": "organize", "options": organize},
    ]


def _add_target(
    panel: Json, query: str, legend: str, form: str = "time_series", *, instant: bool = False
) -> None:
    targets = panel["targets"]
    target = {"refId": chr(ord("A") + len(targets)), "datasource": SHARED["datasource"]}
    target["expr"] = expression(query)
    target |= {"instant": True, "range": False} if instant else {"range": True}
    if legend:
        target["legendFormat"] = legend
    targets.append(target | {"format": form})


def _add_override(panel: Json, name: str, properties: Json) -> None:
    override = {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }
    panel["fieldConfig"]["overrides"].append(override)


def _one_of(known: Json, name: str, what: str) -> Any:
    if name not in known:
        raise ValueError(f"{name!r} is not a {what}: {', '.join(known)}")
    return known[name]
