"""docs/paper.md shows all stored results unchanged."""

import importlib.util
import json
from pathlib import Path

import pytest

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


def test_the_page_has_every_experiment_that_was_run() -> None:
    assert list(ORDER) == list(EXPERIMENTS)
    assert all(name in EXPLANATION for name in EXPERIMENTS)
    found = page.available(RESULTS)
    assert len(found) >= 10
    for name in found:
        stored = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        assert (stored["experiment"], stored["paper"]) == (name, EXPERIMENTS[name].claim)
        assert len(stored["seeds"]) >= 5
        assert (RESULTS / f"{name}.png").stat().st_size > 10_000


def test_the_page_states_which_targets_were_not_reached() -> None:
    missed = [
        row["label"]
        for name in page.available(RESULTS)
        for row in json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["rows"]
        if row.get("met") is False
    ]
    assert PAGE.read_text("utf-8").count("**not reached**") == len(missed)


def test_results_of_some_experiments_are_copied_and_a_table_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, folder = tmp_path / "results", tmp_path / "folder"
    monkeypatch.setattr(page, "RESULTS", results)
    monkeypatch.setattr(page, "SCALES", {})
    folder.mkdir()
    document = {
        "title": "All methods", "paper": "None.", "rows": [],
        "table": {"columns": ["method", "%"], "rows": [["SSFL", "80.1 ± 0.2"]]},
    }  # fmt: skip
    (folder / "methods.json").write_text(json.dumps(document))
    (folder / "methods.png").write_bytes(b"png")
    page.copy_results(folder)
    assert sorted(file.name for file in results.iterdir()) == ["methods.json", "methods.png"]
    assert "| method | % |\n| --- | --- |\n| SSFL | 80.1 ± 0.2 |\n" in page.below()
