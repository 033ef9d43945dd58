"""docs/paper.md shows all stored results unchanged."""

import importlib.util
import json
from pathlib import Path

from ssfl.experiments import EXPERIMENTS
from ssfl.tools.simulate.paper import EXPLANATION

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("paper_page", ROOT / "benchmarks/paper_page.py")
assert _spec and _spec.loader
page = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(page)
PAGE, RESULTS, ORDER = page.PAGE, page.RESULTS, page.ORDER


def test_the_page_is_generated_from_the_stored_results() -> None:
    _, mark, rest = PAGE.read_text("utf-8").partition(page.MARK)
    assert mark + rest == page.below(), "run: python -m benchmarks.paper_page"


def test_the_page_has_every_experiment() -> None:
    assert set(ORDER) == set(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        assert name in EXPLANATION
        stored = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        assert (stored["experiment"], stored["paper"]) == (name, experiment.claim)
        assert len(stored["seeds"]) >= 5
        assert (RESULTS / f"{name}.png").stat().st_size > 10_000


def test_the_page_states_which_targets_were_not_reached() -> None:
    missed = [
        row["label"]
        for name in ORDER
        for row in json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["rows"]
        if row.get("met") is False
    ]
    assert PAGE.read_text("utf-8").count("**not reached**") == len(missed)
