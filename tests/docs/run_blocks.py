"""Runs the blocks of one page, in order, in the current folder: `run_blocks.py PAGE FOLDER`.

The steps are in FOLDER/steps.json (`PageBlock.as_step`). The output of a block goes to the file
FOLDER/logs/<its line>. The first block that fails ends the page: its line and the error are
printed; otherwise `done`.
"""

import doctest
import json
import linecache
import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

# A plain `wait` drops the exit codes of its jobs; ours fails with the first that failed. Only
# `ssfl` gets the admin port: the other programs refuse unknown variables.
PRELUDE = """
started=()
wait() {
  if (($#)); then builtin wait "$@"; return; fi
  local job
  for job in "${started[@]}"; do builtin wait "$job" || return; done
  started=()
}
ssfl() { SSFL_ADMIN=localhost:$SSFL_ADMIN_PORT command ssfl "$@"; }
"""
BACKGROUND = re.compile(r"(?<=\s)&(?=\s|$)")
MATCHING = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class BlockFailed(Exception):
    """A block failed; the message says how."""

    def __init__(self, sentence: str, line: int = 0) -> None:
        super().__init__(sentence)
        self.line = line  # of the failed block, if it is not the current one


class PageRunner:
    """The interpreter, the folder and the open terminals of one page."""

    def __init__(self, page: str, logs: Path) -> None:
        self.page, self.logs = page, logs
        self.lines: list[str] = []
        self.last: Path | None = None
        self.terminals: dict[int, subprocess.Popen[bytes]] = {}
        # Functions of a page are looked up in __main__, as in a notebook.
        self.module = ModuleType("__main__")
        sys.modules["__main__"] = self.module

    def play(self, step: dict[str, Any]) -> None:
        """Run one step, with its output in a file of its own."""
        if step["action"] != "terminal":
            self.close_terminals()
        if step["action"] == "compare":
            self.compare(step["text"])
            return
        self.last = self.log(step["line"])
        with self.last.open("wb") as file:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        getattr(self, step["action"])(step["text"], step)
        sys.stdout.flush()
        sys.stderr.flush()

    def log(self, line: int) -> Path:
        return self.logs / f"{line:05d}"

    def write(self, text: str, step: dict[str, Any]) -> None:
        path = Path(step["file"])
        if path.is_absolute() or ".." in path.parts:
            raise BlockFailed(f"{path} is outside the folder of the page")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def python(self, text: str, step: dict[str, Any]) -> None:
        self.remember(text, step["line"])
        try:
            code = compile("\n" * (step["line"] - 1) + text, self.page, "exec")
            exec(code, vars(self.module))
        except BaseException as error:  # SystemExit would also end a reader's session
            traceback.print_exception(error)
            raise BlockFailed(f"raises {type(error).__name__}: {error}") from error

    def remember(self, text: str, line: int) -> None:
        """Let tracebacks and `inspect` find the source of a block at its line of the page."""
        self.lines += ["\n"] * (line - 1 - len(self.lines)) + text.splitlines(keepends=True)
        linecache.cache[self.page] = (0, None, self.lines, self.page)

    def doctest(self, text: str, step: dict[str, Any]) -> None:
        parsed = doctest.DocTestParser().get_doctest(text, {}, self.page, self.page, 0)
        parsed.lineno = step["line"] - 1
        parsed.globs = vars(self.module)
        runner = doctest.DocTestRunner(verbose=False, optionflags=MATCHING)
        failed, attempted = runner.run(parsed, out=sys.stderr.write, clear_globs=False)
        if failed or not attempted:
            raise BlockFailed(f"{failed} of {attempted} examples print something else")

    def shell(self, text: str, _step: dict[str, Any]) -> None:
        code = self.bash(text).wait()
        if code:
            raise BlockFailed(f"ends with exit code {code}")

    def terminal(self, text: str, step: dict[str, Any]) -> None:
        self.terminals[step["line"]] = self.bash(text)

    def bash(self, text: str) -> subprocess.Popen[bytes]:
        noted = BACKGROUND.sub("& started+=($!);", text)
        command = ["bash", "-euo", "pipefail", "-c", PRELUDE + noted]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def compare(self, expected: str) -> None:
        printed = self.last.read_text("utf-8") if self.last else ""
        if not doctest.OutputChecker().check_output(expected, printed, MATCHING):
            raise BlockFailed("is not what the block before it printed")

    def close_terminals(self) -> None:
        """Wait until every terminal is done; raise at once if one fails."""
        while self.terminals:
            for line, process in list(self.terminals.items()):
                code = process.poll()
                if code:
                    raise BlockFailed(f"ends with exit code {code}", line)
                if code == 0:
                    del self.terminals[line]
            time.sleep(0.02)


def main() -> int:
    page, folder = sys.argv[1], Path(sys.argv[2])
    steps = json.loads((folder / "steps.json").read_bytes())
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[0] = ""  # as in an interactive session: a page imports the files it wrote
    runner = PageRunner(page, folder / "logs")
    line = 0
    try:
        for step in steps:
            line = step["line"]
            runner.play(step)
        runner.close_terminals()
    except BlockFailed as wrong:
        print(wrong.line or line, wrong, file=answer, flush=True)
    else:
        print("done", file=answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
