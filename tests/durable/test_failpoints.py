"""Failpoints: all are declared, and faults fire at the chosen passage."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from failpoint_names import (
    CLIENT_POINTS,
    COORDINATOR_POINTS,
    ENDED_POINTS,
    KEEP_POINTS,
    MEMORY_POINTS,
    REFRESH_POINTS,
)
from ssfl.durable import failpoints

ROOT = Path(__file__).parents[2]
PASS_IT = "from ssfl.durable.failpoints import failpoint\nfor _ in range(3): failpoint('a.b')"


def passing(text: str) -> "subprocess.CompletedProcess[str]":
    """Pass the failpoint a.b three times in another process."""
    environ = {**os.environ, failpoints.VARIABLE: text}
    code = f"{PASS_IT}\nprint('passed')"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_points_in_the_code_are_the_declared_ones() -> None:
    declared = {*COORDINATOR_POINTS, *REFRESH_POINTS, *KEEP_POINTS}
    declared |= {*CLIENT_POINTS, *MEMORY_POINTS, *ENDED_POINTS}
    found = set()
    for folder in ("server", "client", "method"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r'failpoint\("([a-z.-]+)"\)', path.read_text()))
    stages = {".written", ".synced", ".renamed", ".named"}
    files = {name for name in declared if f".{name.partition('.')[2]}" in stages} - found
    assert found <= declared
    assert declared - found == files
    assert {name.partition(".")[0] for name in files} == {
        "manifest", "mask", "values", "scored", "answer",
    }  # fmt: skip


def test_the_coordinator_has_at_least_25_points() -> None:
    assert len(set(COORDINATOR_POINTS)) >= 25


def test_a_fault_fires_at_the_chosen_passage() -> None:
    assert passing("a.b=kill@3").returncode == -signal.SIGKILL
    assert passing("a.b=kill@4").stdout == "passed\n"


def test_a_point_raises_what_a_full_disk_would() -> None:
    result = passing("a.b=full@2")
    assert result.returncode == 1 and f"[Errno {errno.ENOSPC}]" in result.stderr


def test_an_invalid_fault_is_refused_with_the_syntax() -> None:
    result = passing("a.b=maybe")
    assert result.returncode == 1 and "is not NAME=kill|full|broken[@N[+]]" in result.stderr


def test_a_hook_is_called_for_every_passage(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(failpoints, "_hook", heard.append)
    failpoints.failpoint("x.y")
    assert heard == ["x.y"]
