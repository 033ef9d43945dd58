"""The pages of the documentation and their fenced blocks: run, parsed or only shown.

    ```python       run; with `>>>` as a doctest; all blocks of a page share one interpreter
    ```pycon        a doctest
    ```sh           run by bash, in the same folder
    ```json         not run, but must parse; so must toml and yaml
    ```text         not run: output and pictures; also csv, diff and ini

A first line that is a comment with a file's name (`# my_task.py`, `# run.toml`) makes a python,
toml or yaml block write that file for the blocks after it. A comment right above a block
changes this, and is visible in the page:

    <!-- not run: why -->           the block is left out
        <!-- in its own terminal -->    sh: runs in parallel with others marked so; the next block
                                        without it starts when all have exited with 0
    <!-- output -->                 text: output of the previous block; `...` matches anything
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
# Pages with a test of their own.
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
class PageBlock:
    """One fenced block: its kind, the line of its content, and the comment above it."""

    kind: str
    line: int
    text: str
    note: str = ""

    @property
    def reason(self) -> str:
        """The reason why it is not run; empty if it is."""
        return self.note.removeprefix(NOT_RUN).strip() if self.note.startswith(NOT_RUN) else ""

    @property
    def file(self) -> str:
        """The file to write the block to; empty if none."""
        found = re.match(r"# ([\w./-]+\.(?:py|toml|yaml|yml))\n", self.text)
        return found[1] if found and self.kind in FILES else ""

    def as_step(self) -> dict[str, Any] | None:
        """Return the action for `run_blocks.py`, or None."""
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
    """Return the path of every page whose blocks are run; decisions are history."""
    found = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    names = [file.relative_to(ROOT).as_posix() for file in found]
    return [name for name in names if not name.startswith("docs/decisions/")]


def blocks_of(text: str) -> Iterator[PageBlock]:
    """Yield the fenced blocks of a page in order."""
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
            yield PageBlock(kind, begin + 2, token.content, note if note_end == begin else "")
        elif token.type == "code_block" and "```" in token.content:
            yield PageBlock("indented", begin + 1, token.content)


def problem(block: PageBlock) -> str:
    """Return the problem of a block, found before it is run; empty if there is none."""
    kinds = sorted(RUN | PARSERS.keys() | ONLY_READ)
    if block.kind == "indented":
        return "a fence inside an indented block is not run: move it to the margin"
    if block.kind not in kinds:
        return f"is of kind {block.kind!r}; a block is one of {', '.join(kinds)}"
    if block.note.startswith(NOT_RUN) and len(block.reason) < 10:
        return "is not run, without a useful reason"
    if block.note == TERMINAL and block.kind != "sh":
        return "only sh blocks can run in their own terminal"
    if block.note == OUTPUT and block.kind != "text":
        return "output must be a text block"
    if block.kind in PARSERS and not block.reason:
        try:
            PARSERS[block.kind](block.text)
        except (ValueError, yaml.YAMLError) as error:
            return f"is not valid {block.kind}: {error}"
    return ""
