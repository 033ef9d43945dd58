"""Tests of the page runner: it reports failures with their line and leaves no process running."""

import time
from pathlib import Path

import psutil
import pytest

from docs.pages import blocks_of, problem
from docs.run_page import run_page


def page(*blocks: str) -> str:
    """Return a page of blocks, each given as `kind: text` or `note ~ kind: text`."""
    parts = ["# A page"]
    for block in blocks:
        note, _, rest = block.rpartition(" ~ ")
        kind, _, text = rest.partition(": ")
        parts.append((f"<!-- {note} -->\n" if note else "") + f"```{kind}\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def test_blocks_run_in_order_in_one_interpreter_and_one_folder(
    tmp_path: Path,
) -> None:
    text = page(
        "python: # part.py\nanswer = 42",
        "sh: echo from-the-shell > output",
        "python: from part import answer\noutput = open('output').read().strip()",
        "pycon: >>> answer, output\n(42, 'from-the-shell')",
        "python: >>> answer + 1\n43\n>>> double = lambda x: 2 * x",
        "python: import inspect\ndef named():\n    return double(answer)\n"
        "assert 'double(answer)' in inspect.getsource(named)",
        "python: open('done', 'w').write(str(named()))",
        'sh: test "$(cat done)" = 84; command -v ssfl-coordinator',
    )
    assert run_page("page.md", text, tmp_path) == ""


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("python: x = 1\nx.nothing", "AttributeError"),
        ("python: raise SystemExit(0)", "SystemExit"),
        ("python: def broken(:", "SyntaxError"),
        ("python: >>> 1 + 1\n3", "1 of 1 examples"),
        ("pycon: no prompt", "0 of 0 examples"),
        ("sh: false\necho never", "exit code 1"),
        ("sh: (exit 3) | cat", "exit code 3"),
        ("sh: echo $UNKNOWN_NAME", "UNKNOWN_NAME"),
        ("sh: (exit 3) &\ntrue &\nwait", "exit code 3"),
        ("sh: false & sleep 0.1 & true\ntrue & wait", "exit code 1"),
        ("in its own terminal ~ sh: exit 5", "exit code 5"),
        ("python: import os\nos._exit(0)", "ended the interpreter"),
        ("toml: x = = 1", "is not valid toml"),
        ("output ~ text: something else", "is not what the block before it printed"),
        ("python: # ../outside.py\nx = 1", "outside the folder"),
    ],
)
def test_a_failing_block_is_reported_with_page_line_text_and_output(
    block: str, expected: str, tmp_path: Path
) -> None:
    text = page("sh: echo before", block)
    first = block.partition(": ")[2].split("\n")[0]
    answer = run_page("page.md", text, tmp_path)
    assert answer.startswith(f"page.md:{text.splitlines().index(first) + 1}: ")
    assert expected in answer
    assert first in answer


def test_blocks_after_a_failing_one_are_not_run(tmp_path: Path) -> None:
    assert run_page("page.md", page("sh: false", "sh: touch never"), tmp_path)
    assert not (tmp_path / "page" / "never").exists()


def test_terminals_run_in_parallel_and_end_before_the_next_block(tmp_path: Path) -> None:
    text = page(
        "sh: mkfifo pipe",
        "in its own terminal ~ sh: cat pipe > heard",  # each waits for the other
        "in its own terminal ~ sh: echo hello > pipe",
        'sh: test "$(cat heard)" = hello',
    )
    assert run_page("page.md", text, tmp_path) == ""


def test_expected_output_may_have_ellipses(tmp_path: Path) -> None:
    text = page("sh: echo took 17 s; echo done", "output ~ text: took ... s\ndone")
    assert run_page("page.md", text, tmp_path) == ""


def test_a_page_that_hangs_is_reported_and_killed(tmp_path: Path) -> None:
    text = page("sh: setsid sleep 600 & echo $! > pid; sleep 600")
    error = run_page("page.md", text, tmp_path, deadline_s=2)
    assert error.startswith("page.md:4: was still running after 2 s")
    assert not_running(int((tmp_path / "page" / "pid").read_text()))


def test_processes_that_a_page_leaves_running_are_killed(tmp_path: Path) -> None:
    text = page("sh: sleep 600 & echo $! > pid")
    assert run_page("page.md", text, tmp_path) == ""
    assert not_running(int((tmp_path / "page" / "pid").read_text()))


def not_running(pid: int) -> bool:
    """Return True if a process has ended; a killed orphan is a zombie until init reaps it."""
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
    return True


def test_a_block_that_is_not_run_needs_a_reason(tmp_path: Path) -> None:
    text = page("not run: needs a machine with systemd ~ sh: exit 1")
    assert [block.reason for block in blocks_of(text)] == ["needs a machine with systemd"]
    assert run_page("page.md", text, tmp_path) == ""
    (unjustified,) = blocks_of(page("not run: no ~ sh: exit 1"))
    assert "without a useful reason" in problem(unjustified)


def test_a_comment_counts_only_right_above_its_block() -> None:
    text = "<!-- not run: is far above -->\n\n```sh\nexit 1\n```\n"
    assert [block.reason for block in blocks_of(text)] == [""]


@pytest.mark.parametrize("kind", ["", "console", "bash", "py"])
def test_an_unknown_kind_of_block_is_refused(kind: str) -> None:
    (block,) = blocks_of(page(f"{kind}: ls"))
    assert f"is of kind {kind!r}" in problem(block)


def test_a_fence_hidden_in_an_indented_block_is_refused() -> None:
    (block,) = blocks_of("!!! note\n\n    ```sh\n    exit 1\n    ```\n")
    assert "move it to the margin" in problem(block)
