"""Real processes run real federations of digits, two rounds each."""

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ssfl import api
from ssfl.durable.lock import DirectoryLock, DirectoryUnusable
from ssfl.method.errors import SettingsError
from ssfl.study.data import DataSpec, build_shards
from ssfl.study.errors import StudyError
from ssfl.study.one_run import run_one
from ssfl.study.sweep import RunResult, RunSpec, SweepProgress, run_all

SMALL = DataSpec(clients=3, samples_per_client=20)
QUICK: dict[str, Any] = {"model": "mlp", "width": 4, "rounds": 2, "local_steps": 1}
DEADLINE_S = 30.0  # reached only if something is broken
TASK = """
import os, signal
from ssfl.learning.image_task import build_model, loss

def load_shard(path):
    raise AssertionError("not of a folder")

{first}
"""


def spec(name: str = "a", seed: int = 0, **settings: Any) -> RunSpec:
    return RunSpec(name, SMALL, {**QUICK, **settings}, seed)


class Watcher(SweepProgress):
    def __init__(self) -> None:
        self.todo: list[str] = []
        self.reused = -1
        self.rounds: dict[str, list[int]] = {}
        self.done: list[str] = []

    def begin(self, todo: Sequence[RunSpec], reused: int) -> None:
        self.todo, self.reused = [one.label for one in todo], reused

    def round_done(self, spec: RunSpec, rounds_done: int) -> None:
        self.rounds.setdefault(spec.label, []).append(rounds_done)

    def run_done(self, result: RunResult) -> None:
        self.done.append(result.spec.label)


def test_run_one_equals_api_simulate_on_the_same_shards() -> None:
    reported: list[int] = []
    document = run_one(spec(seed=3), reported.append)
    shards = build_shards(SMALL, 3)
    done = api.simulate(shards, seed=3, **QUICK)
    assert document["model_digest"] == done.digest
    assert document["ledger"] == done.history.document["ledger"]
    assert reported == [1, 2]


@pytest.mark.system
def test_a_study_returns_results_in_order_and_resumes(
    tmp_path: Path,
) -> None:
    watcher = Watcher()
    both = [spec("dense", 1, strategy="fedavg"), spec("sparse", 0)]
    first = run_all(both, tmp_path, 1, watcher)
    assert [one.spec.name for one in first] == ["dense", "sparse"]
    assert watcher.todo == watcher.done == ["sparse, seed 0", "dense, seed 1"], "seed by seed"
    assert watcher.rounds == {"sparse, seed 0": [1, 2], "dense, seed 1": [1, 2]}
    assert first[1].outcome["model_digest"] == run_one(spec(seed=0))["model_digest"]

    watcher = Watcher()
    more = [*both, spec("sparse", 1)]
    again = run_all(more, tmp_path, 2, watcher)
    assert (watcher.reused, watcher.todo) == (2, ["sparse, seed 1"])
    assert [one.reused for one in again] == [True, True, False]
    assert [one.outcome for one in again[:2]] == [one.outcome for one in first]
    assert again[2].document["settings"]["seed"] == 1
    assert len(list((tmp_path / "runs").glob("*.json"))) == 3


def test_a_run_that_fails_or_dies_does_not_affect_the_others(tmp_path: Path) -> None:
    killed, ended, buggy = (tmp_path / f"{name}.py" for name in ("killed", "ended", "buggy"))
    killed.write_text(TASK.format(first="os.kill(os.getpid(), signal.SIGKILL)"))
    ended.write_text(TASK.format(first="os.write(1, b'enough'); os._exit(7)"))
    buggy.write_text(TASK.format(first="from ssfl.study import workers; workers.version = None"))
    specs = [
        replace(spec("killed"), task=str(killed)),
        replace(spec("ended"), task=str(ended)),
        spec("diverges", learning_rate=1e38, clip_norm=0, local_steps=5),
        spec("good"),
        replace(spec("buggy"), task=str(buggy)),
    ]
    results = {one.spec.name: one for one in run_all(specs, tmp_path / "out", 2)}
    assert "ended by SIGKILL" in results["killed"].error
    assert "exit code 7" in results["ended"].error and ".log)" in results["ended"].error
    assert results["diverges"].error.endswith("try a smaller --learning-rate")
    assert not results["diverges"].is_bug and results["killed"].is_bug
    assert not results["good"].error and results["good"].outcome["rounds"] == 2
    with pytest.raises(StudyError, match="killed, seed 0 has no history"):
        _ = results["killed"].document
    names = sorted(one.name for one in (tmp_path / "out" / "runs").iterdir())
    assert [name.partition("-")[0] for name in names] == ["buggy", "ended", "good", "lock"]
    assert "TypeError: 'NoneType' object is not callable (more in " in results["buggy"].error
    assert "Traceback" in (tmp_path / "out" / "runs" / names[0]).read_text()


def test_an_invalid_spec_is_refused_before_the_first_run(tmp_path: Path) -> None:
    for wrong, error, message in (
        (spec(rounds=0), SettingsError, "rounds must be at least 1"),
        (spec(round=3), StudyError, "round is not a setting of a run; did you mean rounds?"),
        (spec(clients=3), StudyError, "clients is not a setting of a simulated run: every shard"),
        (replace(spec(), mode="slow"), StudyError, "mode must be one of exact, fast"),
        (replace(spec(), seed=-1), StudyError, "a seed must be 0 to"),
        (replace(spec(), task="no.py"), StudyError, "there is no task file no.py"),
        (replace(spec(), data=DataSpec(clients=0)), SettingsError, "clients must be 1 or more"),
    ):
        with pytest.raises(error) as caught:
            run_all([spec("good"), wrong], tmp_path / "out")
        assert message in str(caught.value)
    with pytest.raises(StudyError, match="2 runs are called 'a' and have seed 0"):
        run_all([spec(), spec(rounds=3)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_and_a_damaged_run_are_refused(tmp_path: Path) -> None:
    with (
        DirectoryLock(tmp_path / "runs"),
        pytest.raises(DirectoryUnusable, match=f"in use by process {os.getpid()}"),
    ):
        run_all([spec()], tmp_path)
    stored = tmp_path / "runs" / spec().file_name()
    for text in ("{", '{"format": 1, "history": []}', "[]"):
        stored.write_text(text)
        with pytest.raises(
            StudyError, match=r"is not a stored run .* remove this file, and the next call"
        ):
            run_all([spec()], tmp_path)
    stored.write_text('{"format": 2}')
    with pytest.raises(StudyError, match="is in format 2"):
        run_all([spec()], tmp_path)


@pytest.mark.system
def test_a_stop_ends_the_workers_and_keeps_finished_runs(tmp_path: Path) -> None:
    class Stopper(Watcher):
        def round_done(self, spec: RunSpec, rounds_done: int) -> None:
            super().round_done(spec, rounds_done)
            if spec.seed == 1:
                signal.raise_signal(signal.SIGINT)

    specs = [spec(seed=0), spec(seed=1, rounds=1000)]
    with pytest.raises(KeyboardInterrupt):
        run_all(specs, tmp_path, 1, Stopper())
    left = sorted(one.name for one in (tmp_path / "runs").iterdir())
    assert left == [specs[0].file_name(), "lock"]
    with DirectoryLock(tmp_path / "runs"):
        pass


def larger(folder: Path, **settings: Any) -> tuple[RunSpec, Path]:
    """Return a run of a network that is not stacked, and the folder of its process ids."""
    seen, task = folder / "seen", folder / "larger.py"
    seen.mkdir()
    task.write_text(TASK.format(first=f"open(f'{seen}/{{os.getpid()}}', 'w').close()"))
    whole = spec("larger", model="resnet20", norm="batch", **settings)
    return replace(whole, task=str(task), mode="fast"), seen


def alive(seen: Path) -> list[psutil.Process]:
    """Return the processes that are still alive after a wait."""
    found = []
    for path in seen.iterdir():
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(path.name)))
    _, left = psutil.wait_procs(found, timeout=DEADLINE_S)
    return [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_a_single_fast_run_uses_all_cores_and_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssfl.study.sweep.usable_cores", lambda: 2)
    one, seen = larger(tmp_path)
    watcher = Watcher()
    (result,) = run_all([one], tmp_path / "out", 0, watcher)
    assert not result.error and result.outcome["rounds"] == 2
    assert watcher.rounds == {"larger, seed 0": [1, 2]}
    assert len(list(seen.iterdir())) == 3, "the process of the run and its two workers"
    assert alive(seen) == []
    stored = json.loads(result.path.read_bytes())
    assert stored["spec"] == one.document(), "the number of cores is not part of the spec"


def test_a_stop_ends_the_processes_of_a_pooled_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopper(Watcher):
        def round_done(self, spec: RunSpec, rounds_done: int) -> None:
            super().round_done(spec, rounds_done)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("ssfl.study.sweep.usable_cores", lambda: 2)
    one, seen = larger(tmp_path, rounds=1000)
    with pytest.raises(KeyboardInterrupt):
        run_all([one], tmp_path / "out", 0, Stopper())
    assert len(list(seen.iterdir())) == 3
    assert alive(seen) == []


def test_a_stored_run_has_its_spec_settings_and_versions(tmp_path: Path) -> None:
    (result,) = run_all([spec("my run / 1", profile="released")], tmp_path)
    assert result.path.name.startswith("my_run_1-0-")
    stored = json.loads(result.path.read_bytes())
    assert stored["spec"] == result.spec.document()
    assert stored["history"]["settings"]["score_weights"] == "equal"
    assert stored["cpu_seconds"] > 0 and stored["torch"] and stored["software"]
