"""Writes the results in docs/paper.md from those in benchmarks/results/paper.

    ssfl paper --out runs/paper && python -m benchmarks.paper_page runs/paper

The first argument is a folder of `ssfl paper`, whose numbers and figures are copied first. Without
it, the page is written from the stored results. An experiment without results has no section. Text
above the mark stays unchanged.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from ssfl.study.intervals import interval_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "paper"
PAGE = ROOT / "docs" / "paper.md"
MARK = "<!-- from here on: python -m benchmarks.paper_page -->"
ORDER = (
    "sparsity", "controls", "layers", "methods", "methods-pathological", "sparse-methods",
    "larger-network", "costs", "newcomers", "refresh", "detection", "mask-error", "few-clients",
    "saliency", "privacy", "warm-up", "partitions", "dirichlet", "clients", "client-weights",
    "class-mix", "convergence", "convergence-all", "profiles",
)  # fmt: skip


def main(arguments: list[str]) -> None:
    """Copy results, if a folder is given, and write the page."""
    if arguments:
        copy_results(Path(arguments[0]))
    above = PAGE.read_text("utf-8").partition(MARK)[0]
    PAGE.write_text(above + below(), "utf-8")


def copy_results(folder: Path) -> None:
    """Copy the results of `ssfl paper` that are in a folder."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in available(folder):
        for kind in (".json", ".png"):
            shutil.copyfile(folder / f"{name}{kind}", RESULTS / f"{name}{kind}")


def available(folder: Path) -> list[str]:
    """Return the experiments that have results in a folder, in the order of the page."""
    return [name for name in ORDER if (folder / f"{name}.json").is_file()]


def below() -> str:
    """Return the generated part of the page."""
    parts = [MARK, ""]
    for name in available(RESULTS):
        result = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        parts += _section(name, result)
    return "\n".join(parts).rstrip() + "\n"


def _section(name: str, result: dict[str, Any]) -> list[str]:
    lines = [f"## {result['title']}", "", f"*The paper:* {result['paper']}", ""]
    lines += ["*Here*" + (f" ({result['accuracy']})" if "accuracy" in result else "") + ":", ""]
    if "table" in result:
        lines += [*_table(**result["table"]), ""]
    if result["rows"]:
        lines += [
            "| points | mean | 95 % interval | should be at least | |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(row) for row in result["rows"]]
        lines.append("")
    lines += [f"- {sentence}" for sentence in result.get("found", [])]
    lines += [""] if result.get("found") else []
    lines += [f"![{result['title'].lower()}](../benchmarks/results/paper/{name}.png)", ""]
    return lines


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _row(row: dict[str, Any]) -> str:
    bar = f"{100 * row['bar']:+.2f}" if "bar" in row else ""
    word = {True: "reached", False: "**not reached**", None: ""}[row.get("met")]
    mean, interval = f"{100 * row['mean']:+.1f}", interval_text(row["low"], row["high"])
    cells = [row["label"], mean, interval, bar, word]
    return "| " + " | ".join(cells).replace("-", "−") + " |"


if __name__ == "__main__":
    main(sys.argv[1:])
