"""`ssfl simulate` with real processes, digits and two rounds."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import psutil
import pytest

from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.study.data import DataSpec
from ssfl.study.run_spec import STUDY_SETTINGS
from ssfl.tools.main import main
from ssfl.tools.simulate.command import OPTIONS, DataFlags

QUICK = [
    *("--clients", "3", "--samples-per-client", "20"),
    *("--model", "mlp", "--width", "4", "--local-steps", "1"),
]
SWEEP = """
seeds = 2
[data]
clients = 3
samples_per_client = 20
[settings]
rounds = 2
model = "mlp"
width = 4
local_steps = 1
[[variant]]
name = "good"
[[variant]]
name = "wild"
learning_rate = 1e38
clip_norm = 0
"""


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["simulate", *argv]) == ExitCode.USAGE
    return capsys.readouterr().err.removeprefix("ssfl simulate: error: ").strip()


@pytest.mark.system
def test_a_single_configuration_is_printed_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["simulate", *QUICK, "--rounds", "2", "--seeds", "1,4", "--out", str(tmp_path)]
    assert main(argv) == ExitCode.DONE
    output = capsys.readouterr()
    assert "2 runs (1 configuration x 2 seeds), results in" in output.err
    assert "1 of 2 runs: run, seed " in output.err and "2 of 2 runs: " in output.err
    assert "pooled %" in output.out and " ± " in output.out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [run["seed"] for run in summary["runs"]] == [1, 4]
    for run in summary["runs"]:
        stored = json.loads((tmp_path / run["file"]).read_text())
        assert stored["history"]["model_digest"] == run["model_digest"]
        assert stored["history"]["evaluations"][-1]["pooled"] == run["pooled"]
        assert run["spec"]["settings"]["width"] == 4 and run["spec"]["data"]["clients"] == 3
        assert run["bytes"] == run["bytes_up"] + run["bytes_down"] + run["bytes_one_off"]
        assert run["bytes"] == sum(row["payload_bytes"] for row in stored["history"]["ledger"])
        assert run["cpu_seconds"] > 0 and run["torch"] and run["mode"] == "exact"
    (configuration,) = summary["configurations"]
    pooled = [run["pooled"] for run in summary["runs"]]
    assert configuration["pooled"]["mean"] == pytest.approx(sum(pooled) / 2)

    assert main([*argv, "--json"]) == ExitCode.DONE
    output = capsys.readouterr()
    assert json.loads(output.out) == summary, "nothing was run again"
    assert "; 2 stored before, 0 to go" in output.err


@pytest.mark.system
def test_a_sweep_continues_when_a_run_fails_and_reports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    argv = ["simulate", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "out")]
    assert main([*argv, "--workers", "1"]) == ExitCode.BAD_DATA
    output = capsys.readouterr()
    assert "failed: wild, seed 0: " in output.out and "--learning-rate" in output.out
    assert "0 of 2" in output.out
    with (tmp_path / "out" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["seed"], bool(row["error"])) for row in rows] == [
        ("good", "0", False), ("good", "1", False), ("wild", "0", True), ("wild", "1", True),
    ]  # fmt: skip
    assert [row["settings.learning_rate"] for row in rows] == ["0.1", "0.1", "1e+38", "1e+38"]
    assert float(rows[0]["pooled"]) > 0 and rows[2]["pooled"] == ""

    assert main([*argv, "--learning-rate", "0.1"]) == ExitCode.USAGE
    assert "learning_rate varies in this study" in capsys.readouterr().err


def test_every_field_of_the_data_and_every_setting_has_a_flag() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))
    known = {field.name: field.default for field in fields(DataSpec)}
    flags = {field.name: field.default for field in fields(DataFlags)}
    flags["source"] = flags.pop("data")
    assert flags == known
    assert {field.name for field in fields(RunSettings)} - set(STUDY_SETTINGS) <= set(names)


def test_invalid_flags_are_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(capsys, "--seed", "3").startswith("--seed is --seeds here: a number")
    assert refusal(capsys, "--seeds", "x").startswith("--seeds must be a number of seeds")
    assert refusal(capsys, "--mode", "slow").startswith("--mode must be one of exact, fast")
    assert refusal(capsys, "--late-clients", "9").startswith("late_clients 9 leaves none")
    assert refusal(capsys, "--sparsity", "2").startswith("--sparsity: sparsity must lie")
    assert refusal(capsys, "no.toml").startswith("the study no.toml cannot be read")
    assert main(["simulate", "--data", "nowhere"]) == ExitCode.BAD_DATA
    assert "nowhere is neither a data set nor a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing was written"


@pytest.mark.system
def test_a_profile_is_applied_and_listed_in_the_help(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = [*QUICK, "--profile", "released", "--rounds", "1", "--out", str(tmp_path), "--json"]
    assert main(["simulate", *argv]) == ExitCode.DONE
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    history = json.loads((tmp_path / run["file"]).read_text())["history"]
    assert (history["settings"]["rounds"], history["settings"]["sparsity"]) == (1, "0.5")
    with pytest.raises(SystemExit):
        main(["simulate", "--help", "run"])
    assert "--profile released: " in capsys.readouterr().out


@pytest.mark.system
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)],
)
def test_a_stop_prints_how_to_resume_and_leaves_no_process(
    number: int, code: ExitCode, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "ssfl.tools.main", "simulate", *QUICK, "--rounds", "100000"]
    command += ["--seeds", "2", "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert "results in" in process.stderr.readline()
        while not list(tmp_path.glob("out/runs/*.log")):  # until a run has started
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, number)
        output = process.stderr.read()  # ends when no process has it open
    assert process.returncode == code
    assert "the same command resumes" in output and "Traceback" not in output
    assert list(tmp_path.glob("out/runs/*.json")) == []
    while alive(
        process.pid
    ):  # its workers have ended; helpers of multiprocessing end by themselves
        time.sleep(0.02)


def alive(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.system
def test_an_estimate_is_printed_and_nothing_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["simulate", *QUICK, "--rounds", "2", "--seeds", "3", "--out", str(tmp_path / "out")]
    assert main([*argv, "--estimate"]) == ExitCode.DONE
    output = capsys.readouterr()
    assert output.out.startswith("3 runs to do: about ") and " GB of memory; measured" in output.out
    assert not (tmp_path / "out").exists()
