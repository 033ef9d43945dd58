"""Fixtures of the system tests: programs, small shards and a reference run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.shard_file import Shard, write_shard
from system.federation import SHARDS, FinishedRun, run_federation
from system.programs import Programs
from system.raw_client import RUN as RAW_RUN
from system.raw_run import RawRun


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Start programs in `tmp_path`; all end with the test, and none may print a traceback."""
    started = Programs(tmp_path)
    try:
        yield started
    finally:
        started.end_all()
    for program in started.started:
        assert "Traceback" not in program.err, f"{program.name} shows a traceback"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder and clear the settings of the environment."""
    for name in [name for name in os.environ if name.startswith("SSFL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of digits: 20, 30 and 40 training samples, 15 test samples each."""
    whole = digits()
    folder = tmp_path_factory.mktemp("data") / "shards"
    folder.mkdir()
    for name, start, stop in ((SHARDS[0], 0, 20), (SHARDS[1], 20, 50), (SHARDS[2], 50, 90)):
        train, test = slice(start, stop), slice(start, start + 15)
        shard = Shard(
            whole.train_x[train], whole.train_y[train],
            whole.test_x[test], whole.test_y[test], num_classes=10,
        )  # fmt: skip
        write_shard(folder / f"{name}.npz", shard)
    return folder


@pytest.fixture
def sites(programs: Programs, shards: Path) -> Programs:
    """Programs whose default --data-root holds the three shards."""
    (programs.folder / "shards").symlink_to(shards)
    return programs


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> FinishedRun:
    """The reference run: no faults, installed commands. Disturbed runs must have its digest."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "shards").symlink_to(shards)
    programs = Programs(folder, forked=False)
    try:
        return run_federation(programs)
    finally:
        programs.end_all()


@pytest.fixture
def raw(programs: Programs) -> Iterator[RawRun]:
    """A coordinator and two raw clients."""
    run = RawRun(programs, programs.coordinator(*RAW_RUN))
    try:
        yield run
    finally:
        run.close()
