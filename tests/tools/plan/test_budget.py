"""Costs of an accuracy, from a summary written by hand."""

from pathlib import Path
from typing import Any

import pytest

from ssfl.tools.plan.budget import (
    FRAMING_BYTES,
    budget_tables,
    courses_of,
    fastest,
    write_budget,
)
from ssfl.tools.plan.link import Link

LINK = Link(8e6, 8e6, 0.0)  # about a megabyte a second


def run(name: str, accuracies: list[float], sent: list[list[int]], **more: Any) -> dict[str, Any]:
    """Return a run with a test after each round; ten clients a round."""
    total, curve = 0, []
    for number, (accuracy, (up, down, scores)) in enumerate(zip(accuracies, sent, strict=True), 1):
        total += 10 * (up + down) + 100 * scores
        curve.append([number, total, 10 * number, accuracy, accuracy, 1.0])
    return {
        "name": name, "seed": 0, "error": "", "rounds": len(sent), "pooled": accuracies[-1],
        "curve": curve, "transfers": sent, "cpu_seconds": 10.0 * len(sent),
        "client_updates": 10 * len(sent), "num_masked": 1_000_000,
        "before_seconds": 40.0, "spec": {"data": {"clients": 100}}, **more,
    }  # fmt: skip


MEGA = 1_000_000
DENSE = [0.5, 0.7, 0.8]
SPARSE = [0.4, 0.6, 0.78]
SUMMARY: dict[str, Any] = {
    "title": "by hand",
    "runs": [
        run("dense", DENSE, [[MEGA, 0, 0], [MEGA, MEGA, 0], [MEGA, MEGA, 0]]),
        run("sparse", SPARSE, [[100_000, 0, 50_000], *[[100_000, 100_000, 0]] * 2]),
        run("poor", [0.1, 0.2, 0.3], [[10, 10, 0]] * 3),
    ],
}  # fmt: skip


def test_a_round_takes_its_transfers_and_the_training() -> None:
    dense, sparse, _ = courses_of(SUMMARY).values()
    assert dense.train_s == sparse.train_s == 1.0
    assert dense.seconds(None) == [1, 2, 3]
    first, second, third = dense.seconds(LINK)
    down, up = LINK.down_s(MEGA + FRAMING_BYTES), LINK.up_s(MEGA + FRAMING_BYTES)
    assert second - first == pytest.approx(down + 1 + up) == pytest.approx(third - second)
    scored = sparse.seconds(LINK)[0]
    small = [LINK.up_s(n + FRAMING_BYTES) for n in (50_000, 0, 100_000)]
    assert scored == pytest.approx(0.4 + 1 + sum(small)), "40 s of scoring, by 100 clients at once"
    assert sparse.seconds(None) == pytest.approx([1.4, 2.4, 3.4])
    assert sparse.seconds(LINK, size=10)[1] > 5 * (sparse.seconds(LINK)[1] - 2)


def test_the_method_with_the_fewest_seconds_is_advised() -> None:
    courses = courses_of(SUMMARY)
    assert fastest(courses, LINK, 1, 0.75) == "sparse"
    assert fastest(courses, None, 1, 0.65) == "dense"
    assert fastest(courses, LINK, 1, 0.79) == "dense"
    assert fastest(courses, LINK, 100, 0.2) == "poor"
    assert fastest(courses, LINK, 1, 0.9) is None


def test_tables_have_what_an_accuracy_costs(tmp_path: Path) -> None:
    target, at, advice = budget_tables(SUMMARY)
    assert target.title == "To 97 % of the accuracy of dense"
    by_name = {str(row[0]): row for row in target.rows}
    assert [str(cell) for cell in by_name["dense"][1:4]] == ["80.0", "3", "50.00"]
    assert [str(cell) for cell in by_name["sparse"][1:4]] == ["78.0", "3", "10.00"]
    assert by_name["poor"][2] == "not reached" and by_name["poor"][3] is None
    megabytes = {str(row[0]): dict(zip(at.columns, row, strict=True)) for row in at.rows}
    assert str(megabytes["sparse"]["10 MB"]) == "78.0" and megabytes["sparse"]["20 MB"] is None
    assert str(megabytes["dense"]["20 MB"]) == "50.0"
    assert [row[:3] for row in advice.rows[:2]] == [
        ["20 Mbit/s, 60 ms", "x 1", "dense"], ["20 Mbit/s, 60 ms", "x 10", "dense"],
    ]  # fmt: skip
    assert {row[4] for row in advice.rows} == {"sparse"}  # two points below dense
    write_budget(tmp_path, SUMMARY)
    assert (tmp_path / "curves-5-mbit-s-150-ms.png").is_file()
    assert "## What to use" in (tmp_path / "budget.md").read_text()


def test_without_an_accuracy_there_are_no_tables() -> None:
    assert budget_tables({"runs": [{**SUMMARY["runs"][0], "curve": []}]}) == []
