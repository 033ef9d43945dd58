import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ssfl.study.data import DataSpec
from ssfl.study.errors import StudyError
from ssfl.study.estimate import StudyEstimate
from ssfl.study.intervals import ACCURACIES
from ssfl.study.sweep import RunResult, RunSpec
from ssfl.tools.simulate import view
from ssfl.tools.simulate.view import StudyProgress, study_table


def result(name: str, seed: int, **numbers: Any) -> RunResult:
    spec = RunSpec(name, DataSpec(), {"rounds": 4}, seed)
    accuracies = {f"{name}{last}": None for name in ACCURACIES for last in ("", "_last_10")}
    outcome = {
        **accuracies, "evaluations_last_10": 1, "loss": 0.5, "metrics": {}, "bytes": 6e6,
        "bytes_up": 1e6, "bytes_down": 2e6, "bytes_one_off": 3e6, "seconds": 7.0,
        "cpu_seconds": 8.0, **numbers,
    }  # fmt: skip
    return RunResult(spec, Path("x"), outcome)


def failed(name: str, seed: int) -> RunResult:
    return RunResult(RunSpec(name, seed=seed), Path("x"), {}, "it broke")


def shown(results: list[RunResult], width: int = 120) -> str:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(study_table(results, width))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def cells(text: str, first: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.strip().startswith(first))
    return line.split()


def test_a_row_has_the_means_over_the_seeds_of_a_configuration() -> None:
    results = [result("[a]", seed, pooled_last_10=0.90 + seed / 100) for seed in range(3)]
    text = shown(results)
    assert " ".join(cells(text, "[a]")) == "[a] 3 91.00 ± 1.00 1.00 2.00 3.00 8.0"
    assert "mean %" not in text and "loss" not in text, "a measure without values has no column"
    assert "Mean ± sd over seeds" in text


def test_a_single_seed_has_no_deviation_and_failed_runs_do_not_count() -> None:
    text = shown([result("a", 0, mean_last_10=0.5), failed("a", 1), failed("b", 0)])
    assert cells(text, "a")[:5] == ["a", "1", "of", "2", "50.00"]
    assert cells(text, "b") == ["b", "0", "of", "1", "·", "·", "·", "·", "·"]
    assert "±" not in text


def test_without_accuracy_the_table_has_loss_and_metrics() -> None:
    text = shown([result("a", seed, metrics={"error": 0.25}) for seed in range(2)])
    assert cells(text, "a")[2:8] == ["0.5000", "±", "0.0000", "0.2500", "±", "0.0000"]


def test_a_narrow_screen_has_one_column_of_bytes() -> None:
    text = shown([result("a", 0, pooled_last_10=0.912)], width=80)
    assert cells(text, "a") == ["a", "1", "91.2", "6.00", "8.0"]
    assert "one-off" not in text


@pytest.mark.parametrize(
    ("evaluations", "expected"),
    [
        ((1, 1), "those after the last round; --evaluate-last 10"),
        ((10, 10), "of 10 evaluations in the last 10 rounds"),
        ((1, 10), "of 1 or 10 evaluations in the last 10 rounds"),
    ],
)
def test_the_caption_names_the_rounds_of_the_accuracies(
    evaluations: tuple[int, int], expected: str
) -> None:
    results = [
        result("a", seed, pooled_last_10=0.5, evaluations_last_10=count)
        for seed, count in enumerate(evaluations)
    ]
    assert expected in " ".join(shown(results).split())


def test_without_a_terminal_a_line_is_printed_for_each_run_and_after_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = iter_seconds()
    progress = StudyProgress("2 runs", clock=lambda: next(seconds))
    first, second = result("a", 0, pooled=0.5), result("a", 1)
    with progress:
        progress.begin([first.spec, second.spec], 3)
        progress.round_done(first.spec, 1)
        for done in (2, 3, 4):
            progress.round_done(first.spec, done)
        progress.run_done(first)
        progress.run_done(second)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "2 runs; 3 stored before, 2 to go"
    assert lines[1].startswith("0 of 2 runs, a, seed 0: round ")
    assert lines[-2].startswith("1 of 2 runs: a, seed 0, pooled accuracy 50.0 %, 7.0 s; about ")
    assert lines[-1] == "2 of 2 runs: a, seed 1, loss 0.5, 7.0 s"
    assert progress.done == 2


def test_a_resumed_run_is_named_and_its_earlier_rounds_do_not_speed_up_the_estimate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    progress = StudyProgress("2 runs", clock=lambda: now[0])
    first, second = result("a", 0), result("a", 1)
    progress.begin([first.spec, second.spec], 0)
    progress.resumed(first.spec, 2, "")
    progress.resumed(second.spec, 0, "a.checkpoint is ignored: it is damaged")
    now[0] = 50.0  # one round in 50 s; five are left
    progress.round_done(first.spec, 3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "a, seed 0: resumes after round 2"
    assert lines[2] == "a, seed 1: warning: a.checkpoint is ignored: it is damaged"
    assert lines[3].endswith("about 4 min left")


def iter_seconds() -> Iterator[float]:
    now_s = 0.0
    while True:
        now_s += 10
        yield now_s


def test_on_a_terminal_a_bar_shows_the_rounds_of_running_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    run = result("a", 0)
    with StudyProgress("1 run") as progress:
        progress.begin([run.spec], 0)
        progress.round_done(run.spec, 3)
    output = capsys.readouterr().err
    assert "0 of 1 run" in output and "a, seed 0: round 3/4" in output and "left" in output


def test_a_long_study_prints_its_hours_and_memory_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = StudyEstimate(3, 7200.0, 2_500_000_000, 1_000_000_000)
    monkeypatch.setattr(view, "estimate", lambda *_: found)
    long = RunSpec("a", DataSpec("cifar10", 100), {"profile": "paper"})
    with StudyProgress("3 runs") as progress:
        progress.begin([long], 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "3 runs",
        "3 runs to do: about 2.0 h on this machine, 2.5 GB of memory and 1.0 GB on the GPU; "
        "measured on a few steps",
    ]


def test_a_study_that_cannot_be_tried_still_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> StudyEstimate:
        raise StudyError("cifar10 not found")

    monkeypatch.setattr(view, "estimate", fail)
    with StudyProgress("1 run") as progress:
        progress.begin([RunSpec("a", DataSpec("cifar10", 100), {"profile": "paper"})], 0)
    assert "no estimate of hours and memory: cifar10 not found" in capsys.readouterr().err
