"""Strategies that hand updates from site to site: simulated, and refused everywhere else."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ssfl import api
from ssfl.program.exits import ExitCode
from ssfl.server.main import main as coordinator
from ssfl.tools.main import main

SWEEP = """
[data]
clients = 4
samples_per_client = 40
validation = 0.2
[settings]
rounds = 3
model = "mlp"
width = 4
local_steps = 3
evaluate_every = 1
sparsity = "0.8"
[[variant]]
name = "D-PSGD"
strategy = "d-psgd"
strategy_options = "d-psgd.topology=ring"
[[variant]]
name = "D-PSGD-FT"
strategy = "d-psgd"
strategy_options = "d-psgd.topology=ring"
personalize_epochs = 2
[[variant]]
name = "DisPFL"
strategy = "dispfl"
strategy_options = "dispfl.neighbours=2,dispfl.regrow=random"
[[variant]]
name = "FedFOMO"
strategy = "fedfomo"
strategy_options = "fedfomo.neighbours=2,fedfomo.norm=l1"
"""


@pytest.mark.system
def test_all_of_them_run_in_one_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "sweep.toml"
    grid.write_text(SWEEP)
    argv = ["simulate", str(grid), "--out", str(tmp_path / "out"), "--workers", "2", "--json"]
    assert main(argv) == ExitCode.DONE
    runs = {run["name"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert list(runs) == ["D-PSGD", "D-PSGD-FT", "DisPFL", "FedFOMO"]
    for run in runs.values():
        assert not run["error"] and 0 < run["personal"] <= 1 and 0 < run["pooled"] <= 1
        assert 0 < run["bytes_busiest_in"] < run["bytes_busiest"] < run["bytes_relay"]
        assert run["bytes_peers"] < run["bytes_relay"] <= run["bytes_up"] + run["bytes_down"]
    assert runs["D-PSGD"]["model_digest"] == runs["D-PSGD-FT"]["model_digest"]
    assert runs["DisPFL"]["bytes_relay"] < runs["FedFOMO"]["bytes_relay"] / 2


@pytest.mark.parametrize("strategy", ["d-psgd", "dispfl", "fedfomo"])
@pytest.mark.parametrize(
    ("program", "flags"),
    [
        (coordinator, []),
        (main, ["rehearse", "--data-root", "shards"]),
    ],
    ids=["coordinator", "rehearse"],
)
def test_a_service_cannot_run_them(
    strategy: str,
    program: Callable[[Sequence[str]], int],
    flags: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert program([*flags, "--strategy", strategy]) == ExitCode.USAGE
    reason = f"--strategy {strategy} hands each site's update to other sites: it runs in `ssfl sim"
    assert reason in capsys.readouterr().err


def test_the_notebook_api_simulates_them() -> None:
    shards = api.digits(clients=3)
    done = api.simulate(
        shards, model="mlp", width=4, rounds=2, local_steps=2, strategy="dispfl", sparsity=0.5
    )
    assert done.mask.num_kept == done.mask.size, "the mean of masks that differ"
    assert done.history.rounds.tolist() == [0, 1]
