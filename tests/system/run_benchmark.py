"""Runs a benchmark by its command, in a session of its own that ends with it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_benchmark(
    name: str, folder: Path, *flags: str, within_s: float
) -> tuple[dict[str, Any], str]:
    """Return the result and the output of a benchmark; `within_s` catches a hang.

    The result is empty if the benchmark reports that it cannot measure here.
    """
    command = [sys.executable, "-m", f"benchmarks.{name}", f"--out={folder}", "--no-plot", *flags]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=within_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with its child processes
            process.wait()
    print(output)
    if "not measured: " in output:
        return {}, output
    file = folder / f"{name}.json"
    assert file.exists(), output
    found: dict[str, Any] = json.loads(file.read_text())
    return found, output
