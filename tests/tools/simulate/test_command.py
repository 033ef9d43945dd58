"""`ssfl simulate` as its user sees it: real processes, digits, two rounds."""

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
def test_a_plain_run_says_what_came_out_and_stores_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["simulate", *QUICK, "--rounds", "2", "--seeds", "1,4", "--out", str(tmp_path)]
    assert main(argv) == ExitCode.DONE
    said = capsys.readouterr()
    assert "2 runs (1 configuration x 2 seeds), results in" in said.err
    assert "1 of 2 runs: run, seed " in said.err and "2 of 2 runs: " in said.err
    assert "pooled %" in said.out and " ± " in said.out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [run["seed"] for run in summary["runs"]] == [1, 4]
    for run in summary["runs"]:
        stored = json.loads((tmp_path / run["file"]).read_text())
        assert stored["history"]["model_digest"] == run["model_digest"]
        assert stored["history"]["evaluations"][-1]["pooled"] == run["pooled"]
        assert run["spec"]["settings"]["width"] == 4 and run["spec"]["data"]["clients"] == 3
        assert run["bytes"] == run["bytes_up"] + run["bytes_down"] + run["bytes_one_off"]
        assert run["bytes"] == sum(one["payload_bytes"] for one in stored["history"]["ledger"])
        assert run["cpu_seconds"] > 0 and run["torch"] and run["mode"] == "exact"
    (configuration,) = summary["configurations"]
    pooled = [run["pooled"] for run in summary["runs"]]
    assert configuration["pooled"]["mean"] == pytest.approx(sum(pooled) / 2)

    assert main([*argv, "--json"]) == ExitCode.DONE
    said = capsys.readouterr()
    assert json.loads(said.out) == summary, "nothing was run again"
    assert "; 2 stored before, 0 to go" in said.err


@pytest.mark.system
def test_a_sweep_goes_on_when_a_run_fails_and_tells_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    argv = ["simulate", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "out")]
    assert main([*argv, "--workers", "1"]) == ExitCode.BAD_DATA
    said = capsys.readouterr()
    assert "failed: wild, seed 0: " in said.out and "--learning-rate" in said.out
    assert "0 of 2" in said.out
    with (tmp_path / "out" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["seed"], bool(row["error"])) for row in rows] == [
        ("good", "0", False), ("good", "1", False), ("wild", "0", True), ("wild", "1", True),
    ]  # fmt: skip
    assert [row["settings.learning_rate"] for row in rows] == ["", "", "1e+38", "1e+38"]
    assert float(rows[0]["pooled"]) > 0 and rows[2]["pooled"] == ""

    assert main([*argv, "--learning-rate", "0.1"]) == ExitCode.USAGE
    assert "learning_rate varies in this study" in capsys.readouterr().err


def test_every_field_of_the_data_and_every_setting_has_a_flag() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))
    known = {one.name: one.default for one in fields(DataSpec)}
    flags = {one.name: one.default for one in fields(DataFlags)}
    flags["source"] = flags.pop("data")
    assert flags == known
    assert {one.name for one in fields(RunSettings)} - set(STUDY_SETTINGS) <= set(names)


def test_what_is_wrong_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(capsys, "--seed", "3").startswith("--seed is --seeds here: how many")
    assert refusal(capsys, "--seeds", "x").startswith("--seeds must be a number of seeds")
    assert refusal(capsys, "--mode", "slow").startswith("--mode must be one of exact, fast")
    assert refusal(capsys, "--late-clients", "9").startswith("late_clients 9 leaves none")
    assert refusal(capsys, "--sparsity", "2").startswith("--sparsity: sparsity must lie")
    assert refusal(capsys, "no.toml").startswith("the study no.toml cannot be read")
    assert main(["simulate", "--data", "nowhere"]) == ExitCode.BAD_DATA
    assert "nowhere is neither a data set nor a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


@pytest.mark.system
def test_the_profile_is_applied_and_help_tells_of_it(
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
def test_a_stop_says_how_to_go_on_and_leaves_no_process(
    number: int, code: ExitCode, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "ssfl.tools.main", "simulate", *QUICK, "--rounds", "100000"]
    command += ["--seeds", "2", "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert "results in" in process.stderr.readline()
        while not list(tmp_path.glob("out/runs/*.log")):  # until a run is under way
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, number)
        said = process.stderr.read()  # ends when nobody holds it any more
    assert process.returncode == code
    assert "the same command resumes" in said and "Traceback" not in said
    assert list(tmp_path.glob("out/runs/*.json")) == []
    while alive(process.pid):  # its workers have ended; what multiprocessing keeps ends by itself
        time.sleep(0.02)


def alive(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
