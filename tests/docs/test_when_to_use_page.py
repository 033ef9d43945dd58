"""docs/when-to-use.md shows the stored results unchanged."""

import json
from pathlib import Path

import pytest
from benchmarks import when_to_use_page as page

from ssfl.tools.plan import advice
from ssfl.tools.plan.link import parse_link
from tools.plan.test_budget import MEGA, run


def test_the_page_is_generated_from_the_stored_results() -> None:
    _, mark, rest = page.PAGE.read_text("utf-8").partition(page.MARK)
    assert mark + rest == page.below(), "run: python -m benchmarks.when_to_use_page"


def test_a_folder_of_results_becomes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"settings": {"client_fraction": 0.1}, "data": {"clients": 100}}
    dense = run("dense float32", [0.5, 0.8], [[MEGA, 0, 0], [MEGA, MEGA, 0]], spec=spec)
    sparse = run("SSFL", [0.4, 0.79], [[MEGA // 10, 0, 0]] * 2, spec=spec)
    for part in page.PARTS:
        folder = tmp_path / "run" / part
        folder.mkdir(parents=True)
        summary = {"title": "few data", "rates": {"methods": {}}, "runs": [dense, sparse]}
        (folder / "summary.json").write_text(json.dumps(summary))
        for name in page.CURVES:
            (folder / name).write_bytes(b"")
    results = tmp_path / "results"
    results.mkdir()
    (tmp_path / "page.md").write_text("Above.\n")
    rows = [{"size": 1, "bytes_up": 2e6, "bytes_down": 1e6, "median_s": 4.0}] * 2
    (results / "flower.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(page, "RESULTS", results)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "ADVICE", tmp_path / "advice.json")
    monkeypatch.setattr(advice, "ADVICE", tmp_path / "advice.json")
    monkeypatch.setattr(page, "BUDGETS", [tmp_path / "a.toml", tmp_path / "b.toml"])
    page.main([str(tmp_path / "run")])
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("Above.\n" + page.MARK) and text.count("### What to use") == 2
    # Two rounds of ten clients: 60 MB in Flower, 30 dense, 2 sparse.
    assert "| SSFL | Flower, dense | 30.0 |" in text
    assert "| SSFL | dense float32 | 15.0 |" in text
    assert (tmp_path / "a.rates.json").is_file()
    (words,) = advice.advice(2_000_000, parse_link("20mbit/60ms"), sampled=True)
    assert "1 point: SSFL," in words and "times as fast as dense float32" in words
