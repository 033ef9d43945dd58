"""The parts of a Grafana dashboard as JSON values: panels, rows, variables, links.

A panel has a `title`, a description (`text`), a unit, and a text for the case of no data, because
an empty panel raises questions. Colours are those of Okabe and Ito, which colour-blind readers can
distinguish; no state is shown by colour alone. Expressions select coordinators by SELECTED, from
the variables of the dashboard, and the time of means by WINDOW: by default a sixth of the shown
time, so that a day suits rounds of an hour and an hour suits rounds of a second.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

DOCS = "http://localhost:8000"  # `make docs-serve`; other addresses: monitoring.build --docs URL
SELECTED = 'job=~"$job", instance=~"$instance"'
WINDOW = "$window"  # of means and counts; must be longer than a round
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Okabe and Ito, "Color Universal Design" (2008).
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#999999"
PHASES = {
    "broadcast": SKY,
    "training": GREEN,
    "collection": ORANGE,
    "aggregation": PURPLE,
    "commit": BLUE,
    "upload": YELLOW,
}
DIRECTIONS = {"up": ORANGE, "down": BLUE}

UIDS = {
    "Round latency": "ssfl-round-latency",
    "Bytes on the wire": "ssfl-bytes-on-the-wire",
    "Clients and reliability": "ssfl-clients-and-reliability",
}


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression, and the legend of its series."""

    expr: str
    legend: str = ""
    instant: bool = False
    heatmap: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel, without its position."""

    kind: str
    title: str
    text: str
    unit: str
    queries: Sequence[Query]
    no_data: str
    width: int = 8
    height: int = 8
    defaults: Json = field(default_factory=dict)  # further fieldConfig.defaults
    overrides: Sequence[Json] = ()
    options: Json = field(default_factory=dict)
    transformations: Sequence[Json] = ()

    def placed(self, number: int, x: int, y: int) -> Json:
        """Return the panel's JSON."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.text,
            "datasource": SOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "fieldConfig": {
                "defaults": {"unit": self.unit, "noValue": self.no_data, **self.defaults},
                "overrides": list(self.overrides),
            },
            "options": self.options,
            "targets": [_target(query, "ABCDEFGH"[n]) for n, query in enumerate(self.queries)],
            "transformations": list(self.transformations),
        }


def stat(
    title: str,
    text: str,
    expr: str,
    *,
    unit: str = "short",
    no_data: str,
    bad: float | None = None,
    words: dict[str, str] | None = None,
    legend: str = "",
    width: int = 4,
) -> Panel:
    """One number; from `bad` on it is red, with a word."""
    steps: list[Json] = [{"color": BLUE, "value": None}]
    if bad is not None:
        steps.append({"color": RED, "value": bad})
    defaults: Json = {
        "color": {"mode": "thresholds"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": _words(words or {}),
    }
    options = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": "name" if legend else "auto",
        "wideLayout": True,
    }
    queries = [Query(expr, legend, instant=True)]
    return Panel("stat", title, text, unit, queries, no_data, width, 4, defaults, (), options)


def lines(
    title: str,
    text: str,
    queries: Sequence[Query],
    *,
    unit: str,
    no_data: str,
    stacked: bool = False,
    bars: bool = False,
    colors: dict[str, str] | None = None,
    dashed: Sequence[str] = (),
    logarithmic: bool = False,
    maximum: float | None = None,
    width: int = 12,
) -> Panel:
    """Values over time; `colors` maps names of series to colours."""
    custom: Json = {
        "drawStyle": "bars" if bars else "line",
        "fillOpacity": 60 if stacked or bars else 8,
        "lineWidth": 1 if stacked else 2,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
    }
    if logarithmic:
        custom["scaleDistribution"] = {"type": "log", "log": 10}
    defaults: Json = {"color": {"mode": "palette-classic-by-name"}, "custom": custom, "min": 0}
    if logarithmic:
        del defaults["min"]
    if maximum is not None:
        defaults["max"] = maximum
    overrides = [_color(name, color) for name, color in (colors or {}).items()]
    for name in dashed:
        style = {"fill": "dash", "dash": [8, 8]}
        overrides.append(_override(name, {"custom.lineStyle": style, "custom.fillOpacity": 0}))
    options = {
        "legend": {
            "calcs": ["lastNotNull", "max"],
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(
        "timeseries", title, text, unit, queries, no_data, width, 8, defaults, overrides, options
    )


def heatmap(title: str, text: str, expr: str, *, no_data: str, width: int = 12) -> Panel:
    """A heatmap of durations over time, from the buckets of a histogram."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "short"},
        "color": {
            "exponent": 0.5,
            "fill": BLUE,
            "mode": "scheme",
            "reverse": True,
            "scale": "exponential",
            "scheme": "Cividis",  # made for colour-blind readers
            "steps": 64,
        },
        "exemplars": {"color": ORANGE},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
    }
    queries = [Query(expr, "{{le}}", heatmap=True)]
    return Panel("heatmap", title, text, "s", queries, no_data, width, options=options)


def table(
    title: str,
    text: str,
    columns: dict[str, tuple[str, str]],
    *,
    key: str,
    no_data: str,
    sort: str,
    width: int = 12,
) -> Panel:
    """One row for every value of the label `key`; `columns`: name -> (expression, unit)."""
    letters = "ABCDEFGH"
    names = {f"Value #{letters[n]}": name for n, name in enumerate(columns)}
    overrides = [
        _override(name, {"unit": unit, "custom.align": "right"})
        for name, (_, unit) in columns.items()
    ]
    options = {
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": ["sum"], "countRows": False},
        "frameIndex": 0,
        "showHeader": True,
        "sortBy": [{"displayName": sort, "desc": True}],
    }
    order = {key: 0} | {value: n + 1 for n, value in enumerate(names)}
    transformations = [
        {"id": "joinByField", "options": {"byField": key, "mode": "outer"}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {f"Time {n}": True for n in range(1, 9)} | {"Time": True},
                "indexByName": order,
                "renameByName": names,
            },
        },
    ]
    queries = [Query(expr, instant=True) for expr, _ in columns.values()]
    return Panel(
        *("table", title, text, "short", queries, no_data, width, 8),
        {"custom": {"align": "auto", "filterable": True}},
        overrides,
        options,
        transformations,
    )


def dashboard(title: str, text: str, rows: Sequence[tuple[str, Sequence[Panel]]]) -> Json:
    """Return a dashboard: rows of panels, placed side by side as far as they fit."""
    numbers, y, panels = itertools.count(1), 0, []
    for heading, row in rows:
        panels.append(
            {
                "id": next(numbers),
                "type": "row",
                "title": heading,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                "panels": [],
            }
        )
        y, x, tallest = y + 1, 0, 0
        for panel in row:
            if x + panel.width > 24:
                x, y, tallest = 0, y + tallest, 0
            panels.append(panel.placed(next(numbers), x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return {
        "annotations": {"list": [_mask_refresh(), _recoveries()]},
        "description": text,
        "editable": True,
        "graphTooltip": 1,
        "id": None,
        "links": [*(_to(other) for other in UIDS if other != title), _runbook()],
        "panels": panels,
        "refresh": "10s",
        "schemaVersion": 39,
        "tags": ["ssfl"],
        "templating": {"list": _variables()},
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m"]},
        "timezone": "browser",
        "title": f"ssfl: {title}",
        "uid": UIDS[title],
        "version": 1,
    }


def _target(query: Query, letter: str) -> Json:
    target: Json = {"refId": letter, "datasource": SOURCE, "expr": query.expr}
    target |= {"instant": True, "range": False} if query.instant else {"range": True}
    if query.legend:
        target["legendFormat"] = query.legend
    target["format"] = "heatmap" if query.heatmap else "time_series"
    if query.instant and not query.legend:
        target["format"] = "table"
    return target


def _words(words: dict[str, str]) -> list[Json]:
    if not words:
        return []
    options = {value: {"text": text, "index": n} for n, (value, text) in enumerate(words.items())}
    return [{"type": "value", "options": options}]


def _override(name: str, properties: Json) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def _color(name: str, color: str) -> Json:
    return _override(name, {"color": {"mode": "fixed", "fixedColor": color}})


def _mask_refresh() -> Json:
    """Annotate new masks; they are not problems."""
    return _annotation(
        "new mask",
        PURPLE,
        f"changes(ssfl_mask_epoch{{{SELECTED}}}[2m]) > 0",  # two steps, so that no change is missed
        "{{instance}} has a new mask",
    )


def _recoveries() -> Json:
    return _annotation(
        "coordinator started",
        GREY,
        f"time() - process_start_time_seconds{{{SELECTED}}} < 90",
        "the coordinator {{instance}} was started",
    )


def _annotation(name: str, color: str, expr: str, text: str) -> Json:
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "step": "60s",
        "titleFormat": name,
        "textFormat": text,
    }


def _variables() -> list[Json]:
    return [
        {
            "name": "datasource",
            "label": "Prometheus",
            "type": "datasource",
            "query": "prometheus",
            "current": {"selected": False, "text": "", "value": ""},
            "hide": 0,
            "refresh": 1,
        },
        _choice("job", "job", "label_values(ssfl_run_phase, job)"),
        _choice("instance", "coordinator", 'label_values(ssfl_run_phase{job=~"$job"}, instance)'),
        _window(),
    ]


def _window() -> Json:
    times = ("10m", "1h", "6h", "1d")
    auto = {"selected": True, "text": "auto", "value": "$__auto_interval_window"}
    return {
        "name": "window",
        "label": "means over",
        "type": "interval",
        "query": ",".join(times),
        "current": auto,
        "options": [auto, *({"selected": False, "text": time, "value": time} for time in times)],
        "auto": True,
        "auto_count": 6,
        "auto_min": "10m",
        "refresh": 2,
        "hide": 0,
    }


def _choice(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "current": {"selected": True, "text": "All", "value": "$__all"},
        "includeAll": True,
        "allValue": ".*",
        "multi": False,
        "refresh": 2,
        "sort": 1,
        "hide": 0,
    }


def _to(title: str) -> Json:
    return _link(title, "dashboard", f"/d/{UIDS[title]}", new=False)


def _runbook() -> Json:
    return _link("Runbook", "doc", f"{DOCS}/operations.html", new=True)


def _link(title: str, icon: str, url: str, *, new: bool) -> Json:
    return {
        "title": title,
        "type": "link",
        "icon": icon,
        "url": url,
        "tooltip": title,
        "tags": [],
        "asDropdown": False,
        "includeVars": not new,
        "keepTime": not new,
        "targetBlank": new,
    }
