"""A program that ends with its parent behaves like the module it runs."""

import os
import subprocess
import sys
from pathlib import Path

SHOWN = "import os, sys; print(__name__, sys.argv[1:], os.getpid()); sys.exit(7)"


def start(folder: Path, parent: int) -> "subprocess.CompletedProcess[str]":
    (folder / "shown.py").write_text(SHOWN)
    return subprocess.run(
        [sys.executable, "-m", "ssfl.tools.local.with_parent", str(parent), "shown", "--a", "b"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_program_has_the_flags_and_exit_code_of_the_module(tmp_path: Path) -> None:
    done = start(tmp_path, os.getpid())
    assert done.stdout.startswith("__main__ ['--a', 'b'] ")
    assert (done.returncode, done.stderr) == (7, "")


def test_the_program_does_not_start_if_its_parent_has_ended(tmp_path: Path) -> None:
    done = start(tmp_path, os.getpid() + 1)
    assert (done.returncode, done.stdout, done.stderr) == (137, "", "")
