"""Writes the results in docs/paper.md from those in benchmarks/results/paper.

    ssfl paper --out runs/paper && python -m benchmarks.paper_page runs/paper

The first argument is a folder of `ssfl paper`, of the small scale or of `--scale cifar`, whose
numbers and figures are copied first. Without it, the page is written from the stored results. An
experiment without results has no section. Text above the mark stays unchanged.

The first section has both scales side by side. It also has what was predicted of CIFAR-10.
"""

import json
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssfl.study.intervals import interval_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "paper"
CIFAR = ROOT / "benchmarks" / "results" / "paper-cifar"
PREDICTED = CIFAR / "predicted.toml"
SCALES = {"Fashion-MNIST, CNN": RESULTS, "CIFAR-10, ResNet-8": CIFAR}
PAGE = ROOT / "docs" / "paper.md"
MARK = "<!-- from here on: python -m benchmarks.paper_page -->"
ORDER = (
    "overview", "overview-others", "sparsity", "controls", "layers", "methods",
    "methods-pathological", "sparse-methods", "larger-network", "costs", "newcomers", "refresh",
    "detection", "mask-error", "few-clients", "saliency", "privacy", "warm-up", "partitions",
    "dirichlet", "clients", "client-weights", "class-mix", "convergence", "convergence-all",
    "profiles",
)  # fmt: skip


def main(arguments: list[str]) -> None:
    """Copy results, if a folder is given, and write the page."""
    if arguments:
        copy_results(Path(arguments[0]))
    above = PAGE.read_text("utf-8").partition(MARK)[0]
    PAGE.write_text(above + below(), "utf-8")


def copy_results(folder: Path) -> None:
    """Copy the results of `ssfl paper` that are in a folder."""
    for name in available(folder):
        document = json.loads((folder / f"{name}.json").read_text("utf-8"))
        results = CIFAR if document.get("scale") == "cifar" else RESULTS
        results.mkdir(parents=True, exist_ok=True)
        for kind in (".json", ".png"):
            shutil.copyfile(folder / f"{name}{kind}", results / f"{name}{kind}")


def available(folder: Path) -> list[str]:
    """Return the experiments that have results in a folder, in the order of the page."""
    return [name for name in ORDER if (folder / f"{name}.json").is_file()]


def below() -> str:
    """Return the generated part of the page."""
    parts = [MARK, "", *_both_scales()]
    for name in available(RESULTS):
        result = _stored(RESULTS, name)
        parts += _section(name, result)
    for name in available(CIFAR):
        parts += _section(name, _stored(CIFAR, name), "CIFAR-10, ResNet-8: ", "paper-cifar")
    return "\n".join(parts).rstrip() + "\n"


def _stored(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text("utf-8"))
    return found


def _both_scales() -> list[str]:
    """Return the section that compares the scales; without results it has the predictions."""
    predicted = tomllib.loads(PREDICTED.read_text("utf-8"))["row"]
    found = {
        scale: _stored(folder, "overview") if (folder / "overview.json").is_file() else None
        for scale, folder in SCALES.items()
    }
    lines = ["## Both scales", ""]
    if not found.get("CIFAR-10, ResNet-8"):
        lines += ["`make paper-cifar` has not been run to its end yet.", ""]
    measured = {scale: document for scale, document in found.items() if document}
    if measured:
        tables = {scale: document["table"] for scale, document in measured.items()}
        partitions = next(iter(tables.values()))["columns"][1:]
        cells = [{row[0]: row[1:] for row in table["rows"]} for table in tables.values()]
        columns = ["%", *(f"{scale}: {name}" for scale in tables for name in partitions)]
        rows = [
            [label, *(text for own in cells for text in own.get(label, [""] * len(partitions)))]
            for label in cells[0]
        ]
        lines += [*_table(columns, rows), ""]
    rows_of = {
        scale: {row["label"]: row for row in document["rows"]}
        for scale, document in measured.items()
    }
    lines += [*_table(*_differences(predicted, rows_of)), ""]
    return [*lines, *_agreement(predicted, rows_of)]


def _differences(
    predicted: list[dict[str, Any]], rows_of: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    """Return a table of paired differences at each scale, with what was predicted."""
    cifar = rows_of.get("CIFAR-10, ResNet-8")
    columns = ["points", "the paper", *rows_of, "predicted for CIFAR-10", "", "reason"]
    rows = []
    for one in predicted:
        label, low, high = one["label"], one["low"], one["high"]
        cells = [
            f"{100 * row['mean']:+.1f} [{interval_text(row['low'], row['high'])}]"
            for row in (own[label] for own in rows_of.values())
        ]
        verdict = ""
        if cifar:
            inside = low <= 100 * cifar[label]["mean"] <= high
            verdict = "as predicted" if inside else "**not as predicted**"
        between = f"{low:+.1f} … {high:+.1f}"
        numbers = [cell.replace("-", "−") for cell in (*cells, between)]
        rows.append([label, one["claim"], *numbers, verdict, one["reason"]])
    return columns, rows


def _agreement(
    predicted: list[dict[str, Any]], rows_of: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return what holds at one scale and not at the other."""
    if len(rows_of) < 2:
        return []
    lines = []
    first, second = rows_of
    for here, there in ((first, second), (second, first)):
        only = [
            one["label"]
            for one in predicted
            if holds(one["claim"], rows_of[here][one["label"]])
            and not holds(one["claim"], rows_of[there][one["label"]])
        ]
        lines.append(f"- Holds with {here} and not with {there}: {'; '.join(only) or 'nothing'}.")
    both = [
        one["label"]
        for one in predicted
        if all(holds(one["claim"], own[one["label"]]) for own in rows_of.values())
    ]
    lines.append(f"- Holds at both scales: {'; '.join(both) or 'nothing'}.")
    explained = (
        "*Holds*: the 95 % interval lies on the side of zero that the paper claims or, for *equal*,"
        " contains zero."
    )
    return [*lines, "", explained, ""]


def holds(claim: str, row: Mapping[str, Any]) -> bool:
    """Return True if the interval of a difference agrees with a claim of the paper."""
    low, high = row["low"], row["high"]
    if low is None or high is None:
        return False
    return bool({"above": low > 0, "below": high < 0, "equal": low <= 0 <= high}[claim])


def _section(
    name: str, result: dict[str, Any], scale: str = "", folder: str = "paper"
) -> list[str]:
    title = f"{scale}{result['title'].lower() if scale else result['title']}"
    lines = [f"## {title}", "", f"*The paper:* {result['paper']}", ""]
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
    lines += [f"![{result['title'].lower()}](../benchmarks/results/{folder}/{name}.png)", ""]
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
