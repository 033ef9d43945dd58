"""The forecast of `ssfl check`: its rows, times and notes."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from ssfl.method.settings import RunSettings
from ssfl.tools.check.forecast import UNKNOWN, forecasts
from ssfl.tools.check.site_trial import Pace
from ssfl.tools.check.view import forecast_notes, forecast_table, format_sparsity
from ssfl.tools.plan.link import parse_link
from ssfl.v1 import coordinator_pb2 as pb
from tools.check.check_fixtures import manifest


def test_a_forecast_adds_download_work_and_upload() -> None:
    link, pace = parse_link("20mbit/50ms"), Pace(0.1, 0.02, 0.5, num_steps=100)
    run = RunSettings(model="mlp", sparsity="0.8")
    rows = forecasts(manifest(), run, None, link, pace)
    assert [(row.sparsity, row.is_run) for row in rows] == [
        ("0.5", False), ("0.8", True), ("0.9", False), ("0.95", False),
    ]  # fmt: skip
    for row in rows:
        assert row.round and row.download and row.upload and row.work_s
        assert row.work_s == pytest.approx(100 * 0.02 + 2 * 0.5)
        assert row.round.high == pytest.approx(row.download.high + row.work_s + row.upload.high)
        assert row.up.high <= row.up.most
    sizes = [row.up.high for row in rows]
    assert sizes == sorted(sizes, reverse=True)


def test_a_narrow_terminal_shows_fewer_columns_without_cutting_cells() -> None:
    link, pace = parse_link("20mbit/50ms"), Pace(0.1, 0.02, 0.5, num_steps=100)
    rows = forecasts(manifest(), RunSettings(model="mlp"), None, link, pace)
    console = Console(width=60, file=StringIO())
    console.print(forecast_table(rows, console.width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].split() == ["sparsity", "up", "down", "round"]
    assert all(line.rstrip().endswith(" s") and "…" not in line for line in lines[1:])


def test_a_run_with_bytes_per_round_is_shown_in_bytes() -> None:
    run = RunSettings(model="mlp", bytes_per_round="20000")
    rows = forecasts(manifest(), run, None, None, None)
    assert [format_sparsity(row) for row in rows if row.is_run] == ["20.0 kB a round, this run"]


def test_a_sparsity_has_one_row_however_it_is_written() -> None:
    run = RunSettings(model="mlp", sparsity="0.90")
    rows = forecasts(manifest(), run, None, None, None)
    assert [format_sparsity(row) for row in rows] == ["50 %", "90 %, this run", "95 %"]


def noted(run: RunSettings, **answer: Any) -> tuple[list[str], str]:
    """Return the rows of a forecast, and the note below it."""
    known = pb.CheckAnswer()
    known.CopyFrom(UNKNOWN)
    known.MergeFrom(pb.CheckAnswer(**answer))
    rows = forecasts(manifest(), run, known, None, None)
    return [format_sparsity(row) for row in rows], forecast_notes(rows, None, None)


def test_a_warm_up_has_its_own_row_until_it_is_over() -> None:
    run = RunSettings(model="mlp", warmup_rounds=2)
    rows, note = noted(run)
    assert rows == ["dense, the first 2 rounds", "50 %", "90 %, this run", "95 %"]
    assert "Before round 2: scores" in note
    rows, note = noted(run, rounds_done=3, phase="training")
    assert rows == ["50 %", "90 %, this run", "95 %"]
    assert "scores" not in note and "Once, with the first task: mask" in note


def test_a_late_client_does_not_score_and_a_schedule_scores_several_times() -> None:
    _, note = noted(RunSettings(model="mlp"))
    assert "Once before training: scores" in note
    _, note = noted(RunSettings(model="mlp"), phase="scoring")
    assert "scores" not in note and "Once, with the first task: mask" in note
    run = RunSettings(model="mlp", rounds=50, sparsity_schedule="0:0.98,10:0.95,30:0.9")
    _, note = noted(run)
    assert "Before round 0, 10, 30: scores" in note
    assert "(this run's row: from round 30 on)" in note
    _, note = noted(run, rounds_done=12, phase="training")
    assert "Before round 30: scores" in note


def test_a_forecast_of_a_dense_run_has_a_dense_row() -> None:
    run = RunSettings(model="mlp", strategy="fedavg")
    rows = forecasts(manifest(), run, None, None, None)
    assert [row.sparsity for row in rows] == ["dense", "0.5", "0.9", "0.95"]
    assert rows[0].round is None
    assert rows[0].num_kept == manifest().num_masked
