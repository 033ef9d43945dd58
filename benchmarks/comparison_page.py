"""Writes the results in docs/method-comparison.md from those in benchmarks/results/comparison.

    ssfl compare --seeds 10 --grid --out runs/compare-10
    python -m benchmarks.comparison_page runs/compare-10

The first argument is a folder of `ssfl compare`: its numbers and curves are copied first, and its
learning rates become those of the built-in comparison. Without it, the page is written from the
stored results. Text above the mark stays unchanged.
"""

import json
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssfl.comparison.comparison import METHODS
from ssfl.study.charts.style import signed
from ssfl.study.costs import value_at
from ssfl.study.intervals import Spread, paired_difference
from ssfl.study.outcome import final
from ssfl.study.result_tables import equal_place, runs_by_name, tables_of
from ssfl.study.tables import Table, markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "comparison"
PAGE = ROOT / "docs" / "method-comparison.md"
MARK = "<!-- from here on: python -m benchmarks.comparison_page -->"
CURVES = {
    "curves-rounds.png": "accuracy by rounds",
    "curves-bytes.png": "accuracy by megabytes",
    "curves-client-updates.png": "accuracy by client-updates",
}
_DROPPED = ("configurations",)
_DROPPED_OF_RUNS = ("file", "model_digest")


def main(arguments: list[str]) -> None:
    """Copy results, if a folder is given, and write the page."""
    if arguments:
        copy_results(Path(arguments[0]))
    above = PAGE.read_text("utf-8").partition(MARK)[0]
    PAGE.write_text(above + below(), "utf-8")


def copy_results(folder: Path) -> None:
    """Copy what the page needs of a folder of `ssfl compare`, and its learning rates."""
    summary = json.loads((folder / "summary.json").read_bytes())
    write_summary(summary, RESULTS / "summary.json")
    for name in CURVES:
        shutil.copyfile(folder / name, RESULTS / name)
    if summary.get("rates"):
        text = json.dumps(summary["rates"], indent=1) + "\n"
        METHODS.with_suffix(".rates.json").write_text(text, "utf-8")


def write_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Write what a page needs of a summary, with a line for each run."""
    kept = {key: value for key, value in summary.items() if key not in _DROPPED}
    runs = [
        {key: _rounded(value) for key, value in run.items() if key not in _DROPPED_OF_RUNS}
        for run in summary["runs"]
    ]
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    head = json.dumps({key: value for key, value in kept.items() if key != "runs"}, indent=1)
    path.write_text(f'{head[:-2]},\n "runs": [\n{lines}\n]}}\n', "utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def below() -> str:
    """Return the generated part of the page."""
    stored = RESULTS / "summary.json"
    expected = tomllib.loads((RESULTS / "expected.toml").read_text("utf-8"))["expect"]
    if not stored.is_file():
        missing = "The run has not been made yet; this is what is expected of it.\n"
        return "\n".join([MARK, "", missing, markdown([expectations(expected, {"runs": []})])])
    summary = json.loads(stored.read_text("utf-8"))
    rates, runs = summary.get("rates") or {}, summary["runs"]
    cpu_hours = sum(run.get("cpu_seconds", 0) for run in [*runs, rates]) / 3600
    took = f"the command took {summary['duration_s'] / 3600:.1f} hours"
    if summary["reused"]:  # the duration is that of the last call
        took = "it was stopped and resumed"
    made = (
        f"Made by ssfl {summary['software']}: {summary['title']}, {len(runs)} reported runs and "
        f"{rates.get('trials', 0)} trials of learning rates, {cpu_hours:.1f} CPU hours on "
        f"{summary['cores']} cores; {took}.\n"
    )
    tables = [expectations(expected, summary), *tables_of(summary)]
    curves = [
        f"![{text}](../benchmarks/results/comparison/{name})\n" for name, text in CURVES.items()
    ]
    return "\n".join([MARK, "", made, markdown(tables), "## Curves\n", *curves])


def expectations(expected: list[dict[str, Any]], summary: Mapping[str, Any]) -> Table:
    """Return what was expected, why, and the measured differences with their intervals."""
    rows = []
    for one in expected:
        found = measured(one, summary)
        about = f"within ±{one['margin']:g}" if one["is"] == "about" else one["is"]
        what = "personal models" if one.get("personal") else f"equal {one['at']}"
        interval = "·" if found is None else f"{signed(found.low)} … {signed(found.high)}"
        mean = "·" if found is None else signed(found.mean)
        pair = f"{one['ours']} − {one['theirs']}"
        rows.append([pair, what, about, mean, interval, verdict(one, found), one["reason"]])
    return Table(
        "expectations", "Expected and found",
        ["difference", "of", "expected", "points", "95 % interval", "", "reason"], rows,
        ["Differences of mean accuracy in points, paired by seed. *undecided*: the interval allows "
         "either result."],
    )  # fmt: skip


def measured(one: Mapping[str, Any], summary: Mapping[str, Any]) -> Spread | None:
    """Return a difference in points; None if a method was not run."""
    groups = runs_by_name(summary)
    if one["ours"] not in groups or one["theirs"] not in groups:
        return None
    place = equal_place(groups, "bytes")

    def value(run: Mapping[str, Any]) -> Any:
        if one.get("personal"):
            return run["personal"] if run["has_personal_models"] else None
        if one["at"] == "bytes":
            return value_at(run["curve"], "bytes", place, "mean")
        return final(run, "mean")

    sides = [
        {run["seed"]: 100 * found for run in groups[name] if (found := value(run)) is not None}
        for name in (one["ours"], one["theirs"])
    ]
    return paired_difference(*sides) if sides[0] and set(sides[0]) == set(sides[1]) else None


def verdict(one: Mapping[str, Any], found: Spread | None) -> str:
    """Return whether the interval agrees with the expectation."""
    if found is None:
        return "·"
    margin = one.get("margin", 0.0)
    if one["is"] == "about":
        agrees = -margin < found.low and found.high < margin
        contradicts = found.low > margin or found.high < -margin
    else:
        above, below = found.low > 0, found.high < 0
        agrees, contradicts = (above, below) if one["is"] == "above" else (below, above)
    return "as expected" if agrees else "**not as expected**" if contradicts else "undecided"


if __name__ == "__main__":
    main(sys.argv[1:])
