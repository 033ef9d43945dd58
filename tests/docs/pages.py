"""The pages of the documentation and their fenced blocks: what is run, parsed or only read.

    ```python       run; with `>>>` as a doctest; all blocks of a page share one interpreter
    ```pycon        a doctest
    ```sh           run by bash, in the same folder
    ```json         not run, but must parse; so must toml and yaml
    ```text         not run: output and pictures; also csv, diff and ini

A first line that is a comment with a file's name (`# my_task.py`, `# run.toml`) makes a python,
toml or yaml block that file instead, for the blocks after it. A comment right above a block
changes what happens to it, and is in the page for everybody to see:

    <!-- not run: why -->           the block is left out
    <!-- in its own terminal -->    sh: runs beside the others marked so; the next block that is
                                    not begins when all of them have ended with exit code 0
    <!-- output -->                 text: what the block before printed; `...` is anything
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
# Pages that a test of their own runs, and that test.
OWN_TESTS = {
    "docs/codec.md": "tests/codec/test_codec_page.py",
    "docs/wire-format.md": "tests/wire/test_vectors.py",
}
RUN = {"python", "pycon", "sh"}
PARSERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
ONLY_READ = {"text", "csv", "diff", "ini"}
FILES = {"python", "toml", "yaml"}

TERMINAL = "in its own terminal"
OUTPUT = "output"
NOT_RUN = "not run:"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its kind, the line its content begins in, and the comment above it."""

    kind: str
    line: int
    text: str
    note: str = ""

    @property
    def reason(self) -> str:
        """Why it is not run; empty if it is."""
        return self.note.removeprefix(NOT_RUN).strip() if self.note.startswith(NOT_RUN) else ""

    @property
    def file(self) -> str:
        """The file it is to be written to; empty if it is none."""
        found = re.match(r"# ([\w./-]+\.(?:py|toml|yaml|yml))\n", self.text)
        return found[1] if found and self.kind in FILES else ""

    def as_step(self) -> dict[str, Any] | None:
        """What to do for it, for `run_blocks.py`; None for nothing."""
        step = {"line": self.line, "text": self.text}
        if self.reason:
            return None
        if self.file:
            return step | {"action": "write", "file": self.file}
        if self.kind == "sh":
            return step | {"action": "terminal" if self.note == TERMINAL else "shell"}
        if self.kind == "pycon" or (self.kind == "python" and self.text.startswith(">>>")):
            return step | {"action": "doctest"}
        if self.kind == "python":
            return step | {"action": "python"}
        return step | {"action": "compare"} if self.note == OUTPUT else None


def pages() -> list[str]:
    """Every page whose blocks are to be run, as a path in the repository; decisions are history."""
    found = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    names = [file.relative_to(ROOT).as_posix() for file in found]
    return [name for name in names if not name.startswith("docs/decisions/")]


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in its order."""
    note, note_end = "", -1
    for token in MarkdownIt().parse(text):
        if token.map is None:
            continue
        begin, end = token.map
        if token.type == "html_block":
            found = re.search(r"<!--\s*(.*?)\s*-->\s*\Z", token.content, flags=re.DOTALL)
            note, note_end = (found[1], end) if found else ("", -1)
        elif token.type == "fence":
            kind = (token.info.split() or [""])[0]
            yield Block(kind, begin + 2, token.content, note if note_end == begin else "")
        elif token.type == "code_block" and "```" in token.content:
            yield Block("indented", begin + 1, token.content)


def problem(block: Block) -> str:
    """Say what is wrong with a block before anything is run; empty if nothing is."""
    kinds = sorted(RUN | PARSERS.keys() | ONLY_READ)
    if block.kind == "indented":
        return "a fence inside an indented block is run by nobody: move it to the margin"
    if block.kind not in kinds:
        return f"is of kind {block.kind!r}; a block is one of {', '.join(kinds)}"
    if block.note.startswith(NOT_RUN) and len(block.reason) < 10:
        return "is not run, for no reason that a reader could follow"
    if block.note == TERMINAL and block.kind != "sh":
        return "only sh blocks can have a terminal of their own"
    if block.note == OUTPUT and block.kind != "text":
        return "output is shown as text"
    if block.kind in PARSERS and not block.reason:
        try:
            PARSERS[block.kind](block.text)
        except (ValueError, yaml.YAMLError) as error:
            return f"is no {block.kind}: {error}"
    return ""
