"""docs/method-comparison.md shows the stored comparison unchanged, beside what was expected."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from benchmarks import comparison_page as page

from ssfl.comparison.comparison import METHODS, read_comparison
from ssfl.study.intervals import Spread

EXPECTED = tomllib.loads((page.RESULTS / "expected.toml").read_text("utf-8"))["expect"]


def test_the_page_is_generated_from_the_stored_results() -> None:
    _, mark, rest = page.PAGE.read_text("utf-8").partition(page.MARK)
    assert mark + rest == page.below(), "run: python -m benchmarks.comparison_page"


def test_expectations_name_methods_of_the_comparison() -> None:
    known = read_comparison(METHODS).study.variants
    for one in EXPECTED:
        assert {one["ours"], one["theirs"]} <= set(known) and one["reason"].endswith(".")
        assert one["is"] in ("above", "below", "about") and one["at"] in ("rounds", "bytes")
        assert ("margin" in one) == (one["is"] == "about")


@pytest.mark.parametrize(
    ("low", "high", "above", "about"),
    [
        (0.1, 0.5, "as expected", "as expected"),
        (-0.5, -0.1, "**not as expected**", "as expected"),
        (-0.1, 2.0, "undecided", "undecided"),
        (1.5, 2.0, "as expected", "**not as expected**"),
    ],
)
def test_the_interval_decides_whether_an_expectation_was_met(
    low: float, high: float, above: str, about: str
) -> None:
    found = Spread((low + high) / 2, 1.0, low, high, 5)
    assert page.verdict({"is": "above"}, found) == above
    assert page.verdict({"is": "about", "margin": 1.0}, found) == about


def test_a_folder_of_results_becomes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of two methods, written by hand: the page has their tables and the difference."""

    def run(name: str, seed: int, mean: float) -> dict[str, Any]:
        return {
            "name": name, "seed": seed, "error": "", "rounds": 2, "file": "x", "metrics": {},
            "curve": [[2, 10, 4, mean, mean, 1.0]], "pooled": mean, "mean": mean, "loss": 1.0,
            "pooled_last_10": mean, "mean_last_10": mean, "personal": 0.5, "gossip": {},
            "has_personal_models": False, "learning_rate": 0.1, "cpu_seconds": 3600.0,
            "bytes_training": 10, "spec": {"settings": {}},
        }  # fmt: skip

    one = EXPECTED[2]
    runs = [run(one["ours"], seed, 0.6 + seed / 99) for seed in (0, 1)]
    runs += [run(one["theirs"], seed, 0.5 + seed / 100) for seed in (0, 1)]
    summary = {
        "software": "0", "title": "few data", "duration_s": 7200.0, "reused": 0, "cores": 2,
        "rates": {"trials": 6, "cpu_seconds": 3600.0}, "configurations": [], "runs": runs,
    }  # fmt: skip
    folder, results = tmp_path / "run", tmp_path / "results"
    folder.mkdir()
    results.mkdir()
    (folder / "summary.json").write_text(json.dumps(summary))
    for name in page.CURVES:
        (folder / name).write_bytes(b"")
    expected = (page.RESULTS / "expected.toml").read_bytes()
    (results / "expected.toml").write_bytes(expected)
    (tmp_path / "page.md").write_text("Above.\n")
    monkeypatch.setattr(page, "RESULTS", results)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "METHODS", tmp_path / "methods.toml")
    page.main([str(folder)])
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("Above.\n" + page.MARK)
    assert "4 reported runs and 6 trials of learning rates, 5.0 CPU hours on 2 cores" in text
    assert "; the command took 2.0 hours." in text
    assert f"| {one['ours']} − {one['theirs']} | equal rounds | above | +10.0 |" in text
    assert "## Global model" in text and "curves-bytes.png" in text
    stored = json.loads((results / "summary.json").read_text())
    assert stored["runs"][0]["mean"] == 0.6 and "file" not in stored["runs"][0]
