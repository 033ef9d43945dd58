"""docs/paper.md shows the stored results, all of them, as they are."""

import json

from benchmarks.paper_page import MARK, ORDER, PAGE, RESULTS, below
from ssfl.experiments import EXPERIMENTS
from ssfl.tools.paper import _explanation


def test_the_page_is_made_of_the_stored_results() -> None:
    _, mark, rest = PAGE.read_text("utf-8").partition(MARK)
    assert mark + rest == below(), "run: python -m benchmarks.paper_page"


def test_it_has_every_experiment() -> None:
    assert set(ORDER) == set(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        assert name in _explanation()
        stored = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        assert (stored["experiment"], stored["paper"]) == (name, experiment.claim)
        assert len(stored["seeds"]) >= 5
        assert (RESULTS / f"{name}.png").stat().st_size > 10_000


def test_what_was_not_reached_is_said_so() -> None:
    missed = [
        row["label"]
        for name in ORDER
        for row in json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["rows"]
        if row.get("met") is False
    ]
    page = PAGE.read_text("utf-8")
    assert page.count("**not reached**") == len(missed)
