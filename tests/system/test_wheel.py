"""The wheel is built, installed in a clean environment, and runs."""

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode
from system.federation import SHARDS, FinishedRun, run_federation
from system.programs import Programs

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


def call(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def lines(python: Path, *statements: str) -> Sequence[str]:
    """Run statements outside the source tree and return the lines they print."""
    return call(python, "-I", "-c", "; ".join(statements)).splitlines()


def test_the_wheel_runs_a_federation(
    tmp_path: Path, sites: Programs, undisturbed: FinishedRun
) -> None:
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("ssfl-*.whl")
    clean = tmp_path / "clean"
    call(sys.executable, "-m", "venv", clean)
    python = clean / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    sites.scripts = clean / "bin"

    # The coordinator and the tools need no torch; a client without it names the missing package.
    (found,) = lines(python, "import importlib.util as u", "print(u.find_spec('torch'))")
    assert found == "None"
    assert "demo" in call(clean / "bin" / "ssfl", "--help")
    page = "from ssfl.server.watch.status_page import FILES, page_file"
    assert lines(python, page, "print(all(page_file(n) for n, _ in FILES.values()))") == ["True"]
    lacking = sites.run("ssfl-client", "--data=shard_00")
    assert lacking.ends() == ExitCode.BAD_DATA
    assert "pip install 'ssfl[client]'" in lacking.err

    # Share the torch of this environment instead of installing it again (a minute). The path comes
    # last, so it only adds missing packages.
    (packages,) = clean.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    places = lines(
        python, "import ssfl, torch, ssfl.client.agent as a, ssfl.learning.models as m",
        "print(*ssfl.__path__, a.__file__, m.__file__, sep='\\n')",
    )  # fmt: skip
    assert len(places) == 3
    assert all(Path(place).is_relative_to(packages) for place in places)

    finished = run_federation(sites)
    assert finished.digest == undisturbed.digest
    assert len(list(sites.folder.glob("runs/*/*/model.safetensors"))) == 1 + len(SHARDS)
    assert list(sites.folder.glob("runs/*/coordinator/report.html"))  # with its script and style
