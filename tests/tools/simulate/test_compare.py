"""`ssfl compare` with real processes, digits and few rounds."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode
from ssfl.tools.main import main

METHODS = """
seeds = 2
[data]
clients = 3
samples_per_client = 20
validation = 0.2
[settings]
model = "mlp"
width = 4
rounds = 2
local_epochs = 1
clients_per_round = 2
evaluate_every = 1
sparsity = 0.8
[choose]
rates = [0.05, 0.1]
seeds = [100]
[[variant]]
name = "SSFL"
personalize_epochs = 1
[[variant]]
name = "FedAvg_dense"
strategy = "fedavg"
[[variant]]
name = "Ditto"
strategy = "ditto"
strategy_options = "ditto.personal_epochs=1"
rounds = 1
"""


@pytest.fixture
def methods(tmp_path: Path) -> str:
    (tmp_path / "methods.toml").write_text(METHODS)
    return str(tmp_path / "methods.toml")


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["compare", *argv]) == ExitCode.USAGE
    return capsys.readouterr().err.removeprefix("ssfl compare: error: ").strip()


@pytest.mark.system
def test_three_methods_are_compared_and_their_rates_chosen(
    methods: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    argv = ["compare", methods, "--out", str(out), "--grid"]
    assert main(argv) == ExitCode.DONE
    output = capsys.readouterr()
    assert "6 runs to choose learning rates (6 configurations x 1 seed)" in output.err
    assert "6 runs to report (3 configurations x 2 seeds)" in output.err
    assert "Global model" in output.out and "Personal models" in output.out
    text = (out / "tables.md").read_text()
    first, personal = text.split("## Personal models")[0], text.split("## Personal models")[1]
    assert "| SSFL | 2 |" in first and "| Ditto (1 round) | 2 |" in first
    assert "personal" not in first.lower()
    assert "| SSFL | the global model, trained for 1 more epoch |" in personal
    assert "| Ditto (1 round) | kept by the method |" in personal
    assert r"FedAvg\_dense" in (out / "tables.tex").read_text()
    with (out / "bytes.csv").open() as file:
        rows = {row["configuration"]: row for row in csv.DictReader(file)}
    assert float(rows["FedAvg_dense"]["training"]) > float(rows["SSFL"]["rounds up"]) > 0
    for name in ("rounds", "bytes", "client-updates"):
        assert (out / f"curves-{name}.png").stat().st_size > 10_000

    summary = json.loads((out / "summary.json").read_text())
    seeds = {run["seed"] for run in summary["runs"]}
    rates = json.loads((out / "rates.json").read_text())
    assert seeds == {0, 1} and rates["seeds"] == [100] and summary["rates"] == rates
    assert {len(chosen["trials"]) for chosen in rates["methods"].values()} == {2}
    by_name = {run["name"]: run for run in summary["runs"]}
    for name, chosen in rates["methods"].items():
        assert by_name[name]["learning_rate"] == chosen["learning_rate"]

    again = [*argv[:-1], "--rates", str(out / "rates.json"), "--only", "SSFL,Ditto", "--json"]
    assert main(again) == ExitCode.DONE
    output = capsys.readouterr()
    assert "; 4 stored before, 0 to go" in output.err, "runs with the chosen rates are stored"
    assert {run["name"] for run in json.loads(output.out)["runs"]} == {"SSFL", "Ditto"}


@pytest.mark.system
def test_a_killed_comparison_resumes(
    methods: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    argv = ["compare", methods, "--out", str(out), "--workers", "1", "--only", "SSFL,FedAvg_dense"]
    program = [sys.executable, "-m", "ssfl.tools.main", *argv]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:  # ends when no process has it open
            if line.startswith("1 of 4 runs"):
                process.kill()
    stored = len(list((out / "runs").glob("*.json")))
    assert 1 <= stored < 4
    assert main(argv) == ExitCode.DONE
    assert f"; {stored} stored before, {4 - stored} to go" in capsys.readouterr().err
    assert len(json.loads((out / "summary.json").read_text())["runs"]) == 4


def test_mistakes_are_named_with_the_remedy(
    methods: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "`ssfl report RUN RUN` compares two finished runs" in refusal(
        capsys, str(tmp_path), str(tmp_path)
    )
    assert "give one" in refusal(capsys, methods, "--grid", "--rates", "rates.json")
    assert "unknown method, 'SFL'; did you mean SSFL" in refusal(capsys, methods, "--only", "SFL")
    assert "cannot be read: No such file" in refusal(capsys, str(tmp_path / "none.toml"))
    assert "--seeds must be a number of seeds" in refusal(capsys, methods, "--seeds", "x")
    assert "is not a rates.json" in refusal(capsys, methods, "--rates", methods)
    assert "seed 100 would choose" in refusal(capsys, methods, "--grid", "--seeds", "100,")
    Path(methods).write_text(METHODS.replace('"fedavg"', '"fedavgg"'))
    assert "fedavgg" in refusal(capsys, methods, "--out", str(tmp_path / "out"))
