"""Fixtures for reports of runs."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reported_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of a finished run; `r1` next to it is the folder of its results."""
    from tools.report.report_fixtures import (  # torch, only where it is needed
        make_results,
        make_state,
    )

    folder = tmp_path_factory.mktemp("reported")
    state = make_state(folder / "state")
    make_results(state, folder / "r1" / "coordinator")
    return state


@pytest.fixture
def run(reported_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the results, which the test may change; the current folder is empty."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Path(shutil.copytree(reported_state.parent / "r1", tmp_path / "r1"))
