"""Writes the results in docs/when-to-use.md from those in benchmarks/results/when-to-use.

    ssfl compare --budget --grid --out runs/budget
    python -m benchmarks.flower_link
    python -m benchmarks.when_to_use_page runs/budget

The first argument is a folder of `ssfl compare --budget`: its numbers and curves are copied first.
Without it, the page is written from the stored results. Text above the mark stays unchanged. The
mean curves become those of the advice of `ssfl plan`.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.comparison_page import write_summary

from ssfl.comparison.comparison import BUDGETS
from ssfl.method.sampling import cohort_size
from ssfl.method.settings import RunSettings
from ssfl.study.tables import Cell, Number, Table, markdown
from ssfl.tools.plan.advice import ADVICE, advice_document
from ssfl.tools.plan.budget import (
    LINKS,
    TARGET,
    Course,
    budget_tables,
    courses_of,
    curve_file,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "when-to-use"
PAGE = ROOT / "docs" / "when-to-use.md"
MARK = "<!-- from here on: python -m benchmarks.when_to_use_page -->"
PARTS = {"sampled": "10 of 100 clients in a round", "all": "All of 20 clients in every round"}
CURVES = ("curves-bytes.png", *map(curve_file, LINKS))
DENSE, INT8 = "dense float32", "dense int8"


def main(arguments: list[str]) -> None:
    """Copy results, if a folder is given, and write the page."""
    if arguments:
        for part, file in zip(PARTS, BUDGETS, strict=True):
            copy_results(Path(arguments[0]) / part, part, file)
        document = advice_document({part: _stored(part) for part in PARTS})
        ADVICE.write_text(json.dumps(document, separators=(",", ":")) + "\n", "utf-8")
    above = PAGE.read_text("utf-8").partition(MARK)[0]
    PAGE.write_text(above + below(), "utf-8")


def copy_results(folder: Path, part: str, methods: Path) -> None:
    """Copy the numbers, the curves and the learning rates of a comparison."""
    summary = json.loads((folder / "summary.json").read_bytes())
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_summary(summary, RESULTS / f"{part}.json")
    for name in CURVES:
        shutil.copyfile(folder / name, RESULTS / f"{part}-{name}")
    if summary.get("rates"):
        text = json.dumps(summary["rates"], indent=1) + "\n"
        methods.with_suffix(".rates.json").write_text(text, "utf-8")


def below() -> str:
    """Return the generated part of the page."""
    found = {part: _stored(part) for part in PARTS if (RESULTS / f"{part}.json").is_file()}
    if not found:
        return f"{MARK}\n\nThe runs have not been made yet.\n"
    lines = [MARK, ""]
    for part, summary in found.items():
        cpu_hours = sum(run["cpu_seconds"] for run in summary["runs"]) / 3600
        lines += [f"## {PARTS[part]}\n", f"{summary['title']}; {cpu_hours:.1f} CPU hours.\n"]
        lines.append(markdown([_ratios(summary), *budget_tables(summary)], level=3))
        lines += [f"![{PARTS[part]}](../benchmarks/results/when-to-use/{part}-{name})\n"
                  for name in CURVES]  # fmt: skip
    return "\n".join(lines)


def _stored(part: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((RESULTS / f"{part}.json").read_text("utf-8"))
    return summary


def _ratios(summary: Mapping[str, Any]) -> Table:
    """Return how many times the bytes and seconds of the best SSFL others need for the target."""
    courses = courses_of(summary)
    target = TARGET * courses[DENSE].final
    costs = {name: cost for name, course in courses.items()
             if (cost := _cost(course, target))}  # fmt: skip
    costs |= _flower(summary, courses[DENSE], target)
    sparse = {name: cost for name, cost in costs.items() if name.startswith("SSFL")}
    rows: list[list[Cell]] = []
    for name in ("Flower, dense", DENSE, INT8):
        if name not in costs:
            continue
        for ours, cost in sparse.items():
            ratios = [theirs / mine for theirs, mine in zip(costs[name], cost, strict=True)]
            rows.append([ours, name, *(Number(ratio, digits=1) for ratio in ratios)])
    return Table(
        "ratios", f"SSFL to {100 * TARGET:g} % of the dense accuracy",
        ["", "than", "x fewer MB", *(f"x faster, {name}" for name in LINKS if LINKS[name])], rows,
        ["Scores and masks are included. Flower's bytes and seconds of a round are measured "
         "(`python -m benchmarks.flower_link`); its rounds are those of dense float32."],
    )  # fmt: skip


def _cost(course: Course, target: float) -> list[float]:
    """Return megabytes, and seconds on each link, to reach an accuracy; empty: never."""
    place = course.reaches(target)
    if place is None:
        return []
    seconds = [course.seconds(link)[place] for link in LINKS.values() if link]
    return [course.megabytes[place], *seconds]


def _flower(summary: Mapping[str, Any], dense: Course, target: float) -> dict[str, list[float]]:
    stored, place = RESULTS / "flower.json", dense.reaches(target)
    if not stored.is_file() or place is None:
        return {}
    measured = [row for row in json.loads(stored.read_text("utf-8"))["rows"] if row["size"] == 1]
    rounds = dense.rounds[place]
    settings = RunSettings(**{
        name: summary["runs"][0]["spec"]["settings"][name] for name in ("client_fraction",)
    })  # fmt: skip
    cohort = cohort_size(settings, summary["runs"][0]["spec"]["data"]["clients"])
    sent = rounds * cohort * (measured[0]["bytes_up"] + measured[0]["bytes_down"])
    seconds = [rounds * (row["median_s"] + dense.train_s) for row in measured]
    return {"Flower, dense": [sent / 1e6, *seconds]}


if __name__ == "__main__":
    main(sys.argv[1:])
