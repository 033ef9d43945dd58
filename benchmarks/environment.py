"""Describes machine, versions and commit of a result, without host names and paths."""

import json
import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = (
    "proto", "codec", "method", "program", "datasets", "learning", "server", "client", "tools",
)  # fmt: skip
PACKAGES = ("ssfl", "grpcio", "protobuf", "numpy", "zstandard", "torch")


def describe() -> dict[str, Any]:
    """Return the environment of a result."""
    return {
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "code_changed_since": bool(_git("status", "--porcelain", "--", *MEASURED)),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "kernel": platform.release(),
        },
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
        },
    }


def write(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON, with its environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**result, **describe()}, indent=1) + "\n")


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
