"""Runs the blocks of one page in its own interpreter and folder.

With a fork server the interpreter has imported torch already; page and programs are the same.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from docs.pages import PageBlock, blocks_of, problem
from ssfl.tools.local.fork_server import Forked, ForkServer
from system.programs import free_port

RUN_BLOCKS = Path(__file__).with_name("run_blocks.py")
DEADLINE_S = 560.0  # below pytest's timeout, so that the message can name the line that hangs
SHOWN = 6000  # characters of output


def run_page(
    name: str,
    text: str,
    folder: Path,
    deadline_s: float = DEADLINE_S,
    server: ForkServer | None = None,
) -> str:
    """Run a page; return the error with page, line, block and output, or an empty string."""
    blocks = list(blocks_of(text))
    for block in blocks:
        if wrong := problem(block):
            return f"{name}:{block.line}: {wrong}\n{block.text}"
    steps = [step for block in blocks if (step := block.as_step())]
    logs, place = folder / "logs", folder / "page"
    logs.mkdir()
    place.mkdir()
    (folder / "steps.json").write_text(json.dumps(steps), "utf-8")
    process = _start(name, folder, server)
    try:
        process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _end(process)
    answer = (folder / "answer").read_text("utf-8")
    if answer == "done\n":
        return ""
    line, _, wrong = answer.partition(" ")
    if not wrong:  # killed, or the interpreter died: see the newest output
        line = max((file.name for file in logs.iterdir()), default="0")
        wrong = f"was still running after {deadline_s:g} s, or ended the interpreter\n"
    return _message(name, int(line), wrong, blocks, logs)


def _start(
    name: str, folder: Path, server: ForkServer | None
) -> "subprocess.Popen[bytes] | Forked":
    flags = [name, str(folder)]
    place, environment = folder / "page", _environment()
    with (folder / "answer").open("wb") as answer, (folder / "stderr").open("wb") as stderr:
        if server:
            return server.start(
                RUN_BLOCKS.stem, flags, program=str(RUN_BLOCKS),
                stdout=answer, stderr=stderr, env=environment, cwd=place,
            )  # fmt: skip
        return subprocess.Popen(
            [sys.executable, str(RUN_BLOCKS), *flags],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=stderr,
            start_new_session=True,
        )


def _message(name: str, line: int, wrong: str, blocks: Sequence[PageBlock], logs: Path) -> str:
    shown = "".join(block.text for block in blocks if block.line == line)
    parts = [f"{name}:{line}: {wrong}{shown}"]
    for file in sorted(logs.iterdir()):
        output = file.read_text("utf-8", errors="replace").strip()
        if output:
            parts.append(f"--- output of line {int(file.name)}\n{output[-SHOWN:]}")
    return "\n".join(parts)


def _end(process: "subprocess.Popen[bytes] | Forked") -> None:
    """End the page and its processes; some of our programs lead their own sessions."""
    children: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def _environment() -> dict[str, str]:
    """Return the environment without settings of this machine, with free ports."""
    inherited = {name: value for name, value in os.environ.items() if name[:5] != "SSFL_"}
    port, admin_port = free_port(), free_port()
    return inherited | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "MPLBACKEND": "agg",
        "SSFL_PORT": str(port),
        "SSFL_ADMIN_PORT": str(admin_port),
        "SSFL_COORDINATOR": f"localhost:{port}",
    }
