"""A run that is killed resumes at its last checkpoint and ends with the same bits."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssfl.simulator.federation import SimulatedFederation
from ssfl.study.checkpoints import Checkpoints
from ssfl.study.data import DataSpec
from ssfl.study.one_run import run_one
from ssfl.study.run_spec import MODES
from ssfl.study.sweep import RunSpec, SweepProgress, run_all

DATA = DataSpec(clients=4, samples_per_client=24, validation=0.2)
DEADLINE_S = 240.0  # reached only if something is broken
LATE = replace(DATA, late_classes="8,9", late_clients=1, late_round=2)
QUICK: dict[str, Any] = {
    **{"model": "mlp", "width": 4, "rounds": 3, "clients_per_round": 3, "batch_size": 8},
    **{"local_epochs": 1, "sparsity": "0.8", "scoring_batches": 1, "evaluate_every": 2},
}
RUNS: dict[str, dict[str, Any]] = {
    "dense": {"strategy": "fedavg"},
    "ssfl": {"personalize_epochs": 1, "scores": "compact"},
    "warm-up": {"warmup_rounds": 2},
    "refresh": {"refresh_every": 2, "deactivated": "keep"},
    "refresh, reset": {"refresh_rounds": "1,2", "deactivated": "reset"},
    "int8": {"value_type": "int8"},
    "kept optimizer": {"momentum": 0.9, "optimizer_state": "keep"},
    "early end": {"patience": 1, "evaluate_every": 1},
    "client-random": {"criterion": "client-random"},
    **{
        name: {"strategy": name}
        for name in (
            *("ditto", "fedopt", "scaffold", "topk-weights", "feddst", "flash-jmwst"),
            *("sparsyfed", "fedpm"),
        )
    },
    "sub-fedavg": {"strategy": "sub-fedavg", "local_epochs": 2},
}


def spec(name: str, mode: str = "exact", **more: Any) -> RunSpec:
    return RunSpec(name, DATA, {**QUICK, **RUNS[name], **more}, seed=1, mode=mode)


class Killed(Exception):
    """The process ends."""


class OneStep(Checkpoints):
    """Checkpoints of a process that is killed after each step."""

    def step_done(self, federation: SimulatedFederation) -> None:
        super().step_done(federation)
        if federation.next_work is not None:
            raise Killed


def timeless(value: Any) -> Any:
    """Return a document without durations."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if "seconds" not in key}
    return [timeless(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, "exact") for name in RUNS]
    + [(name, "fast") for name in ("dense", "ssfl", "refresh", "int8", "scaffold")],
)
def test_a_run_that_is_killed_after_every_step_has_the_same_document(
    name: str, mode: str, tmp_path: Path
) -> None:
    one, resumed = spec(name, mode), list[int]()
    assert timeless(run_one(one)) == timeless(killed_often(one, tmp_path, resumed))
    assert resumed == sorted(resumed) and {1, 2} <= set(resumed)


def killed_often(one: RunSpec, folder: Path, resumed: list[int]) -> dict[str, Any]:
    """Return the document of a run of which every process makes one step."""

    def on_resume(rounds_done: int, problem: str) -> None:
        assert not problem
        resumed.append(rounds_done)

    while True:
        try:
            return run_one(one, checkpoints=OneStep(folder / "a.checkpoint", "a", 0.0, on_resume))
        except Killed:
            assert len(resumed) < 30


def test_clients_that_join_late_join_once(tmp_path: Path) -> None:
    one = replace(spec("refresh"), data=LATE)
    assert timeless(run_one(one)) == timeless(killed_often(one, tmp_path, []))


def test_a_run_of_strategies_whose_clients_exchange_models_begins_again(tmp_path: Path) -> None:
    gossip = {**QUICK, "strategy": "d-psgd", "clients_per_round": 0, "rounds": 2}
    one, path = RunSpec("gossip", DATA, gossip), tmp_path / "a.checkpoint"
    whole = run_one(one, checkpoints=Checkpoints(path, "a", 0.0))
    assert whole["rounds_done"] == 2 and not path.exists()


def test_a_checkpoint_is_written_only_when_it_is_due(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    run_one(spec("dense"), checkpoints=Checkpoints(path, "a", 3600.0))
    assert not path.exists()


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gone" / "a.checkpoint"
    assert run_one(spec("dense"), checkpoints=Checkpoints(path, "a", 0.0))["rounds_done"] == 3
    assert f"{path} is not written: " in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "foreign", "folder"])
def test_a_damaged_or_foreign_checkpoint_is_ignored_with_a_warning(
    damage: str, tmp_path: Path
) -> None:
    one, path, problems = spec("ssfl"), tmp_path / "a.checkpoint", list[tuple[int, str]]()
    with pytest.raises(Killed):
        run_one(one, checkpoints=OneStep(path, "a", 0.0))
    whole = path.read_bytes()
    if damage == "cut":
        path.write_bytes(whole[:-1])
    elif damage == "bit":
        path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    elif damage == "empty":
        path.write_bytes(b"")
    run = "b" if damage == "foreign" else "a"
    if damage == "folder":
        path.unlink()
        path.mkdir()

    def on_resume(rounds_done: int, problem: str) -> None:
        problems.append((rounds_done, problem))

    done = run_one(one, checkpoints=Checkpoints(path, run, 3600.0, on_resume))
    assert timeless(done) == timeless(run_one(one))
    reason = "it belongs to another run or version" if damage == "foreign" else "it is damaged"
    expected = [] if damage == "folder" else [(0, f"{path} is ignored: {reason}")]
    assert problems == expected


def test_the_time_of_earlier_processes_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    with pytest.raises(Killed):
        run_one(spec("dense"), checkpoints=OneStep(path, "a", 0.0))
    again = Checkpoints(path, "a", 3600.0)
    before = again.elapsed()
    with pytest.raises(Killed):
        run_one(spec("dense"), checkpoints=(second := OneStep(path, "a", 0.0)))
    assert second.elapsed().cpu_seconds > before.cpu_seconds
    assert second.elapsed().seconds > before.seconds


# -- processes


class Watcher(SweepProgress):
    def __init__(self) -> None:
        self.rounds: dict[str, list[int]] = {}
        self.resumes: dict[str, tuple[int, str]] = {}

    def resumed(self, spec: RunSpec, rounds_done: int, problem: str) -> None:
        self.resumes[spec.name] = rounds_done, problem

    def round_done(self, spec: RunSpec, rounds_done: int) -> None:
        self.rounds.setdefault(spec.name, []).append(rounds_done)


def both_modes() -> list[RunSpec]:
    return [replace(spec("ssfl", mode, rounds=8), name=mode) for mode in MODES]


def sweep_until_killed(folder: str) -> None:
    """Run both modes in a process whose failpoints kill the workers."""
    for result in run_all(both_modes(), Path(folder), 1, checkpoint_every_s=0.0):
        assert "ended by SIGKILL" in result.error, result


@pytest.mark.system
def test_a_killed_worker_resumes_inside_its_run(tmp_path: Path) -> None:
    runs, specs = tmp_path / "runs", both_modes()
    # Steps: score, 2 rounds, evaluate, 2 rounds, evaluate, 2 rounds, evaluate, …: after the tenth
    # checkpoint and while the tenth is written.
    faults = {"FAILPOINTS": "exact.named=kill@10,fast.written=kill@10"}
    script = f"from study.test_checkpoints import *; sweep_until_killed({str(tmp_path)!r})"
    tests = Path(__file__).parents[1]
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **faults, "PYTHONPATH": str(tests)}, check=True, timeout=DEADLINE_S,
    )  # fmt: skip
    stored = {path.name for path in runs.iterdir() if not path.name.startswith(".")}
    names = [Path(one.file_name()) for one in specs]
    assert stored == {"lock", *(str(name.with_suffix(".checkpoint")) for name in names)}

    watcher = Watcher()
    for done in run_all(specs, tmp_path, 1, watcher):
        assert not done.error and timeless(done.document) == timeless(run_one(done.spec))
    assert watcher.resumes == {"exact": (6, ""), "fast": (6, "")}
    assert watcher.rounds == {"exact": [7, 8], "fast": [7, 8]}
    assert {path.name for path in runs.iterdir()} == {"lock", *map(str, names)}


@pytest.mark.system
def test_a_damaged_checkpoint_in_a_sweep_is_reported(tmp_path: Path) -> None:
    one = spec("dense")
    path = (tmp_path / "runs" / one.file_name()).with_suffix(".checkpoint")
    path.parent.mkdir()
    path.write_bytes(b"no checkpoint")
    watcher = Watcher()
    (done,) = run_all([one], tmp_path, 1, watcher)
    assert not done.error and watcher.rounds == {"dense": [1, 2, 3]}
    assert watcher.resumes == {"dense": (0, f"{path} is ignored: it is damaged")}
    assert not path.exists()
    path.write_bytes(b"left by a crash after the result was stored")
    assert run_all([one], tmp_path, 1)[0].reused and not path.exists()
