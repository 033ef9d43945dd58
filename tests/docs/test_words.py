"""Every flag that a page names in a sentence exists."""

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from functools import partial

import pytest
from markdown_it import MarkdownIt

from docs.pages import ROOT, pages
from ssfl.client import main as client
from ssfl.server import main as server
from ssfl.strategies.registry import rule_for, strategy_names
from ssfl.tools import main as tools

NOT_OURS = {"node-config", "config.file"}  # of Flower and Prometheus
FLAG = re.compile(r"(?<![\w-])--(?:no-|\[no-\])?([a-z][a-z0-9-]*(?:\.[a-z0-9_]+)?)")


def help_of(
    main: Callable[[Sequence[str]], int], *words: str, topic: Sequence[str] = ("all",)
) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([*words, "--help", *topic])
    return output.getvalue()


def commands_in(text: str) -> list[str]:
    """Return the names in a list of commands."""
    return re.findall(r"^  ([a-z]+)  ", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """All flags of all programs."""
    texts = [help_of(client.main), help_of(server.main)]
    for name in commands_in(help_of(tools.main)):
        text = help_of(tools.main, name)
        texts += [text, *map(partial(help_of, tools.main, name), commands_in(text))]
    found = {flag for text in texts for flag in FLAG.findall(text)}
    own = {f"{name}.{each.name}" for name in strategy_names() for each in options_of(name)}
    return found | own


def options_of(strategy: str) -> tuple[Field[object], ...]:
    return fields(rule_for(strategy).Options)


@pytest.mark.parametrize("page", pages())
def test_every_flag_in_a_sentence_exists(page: str, flags: set[str]) -> None:
    assert {"port", "sparsity", "data", "link", "json"} <= flags
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text("utf-8"))
    spans = [
        child.content
        for token in tokens
        for child in token.children or []
        if child.type == "code_inline" and child.content.startswith(("--", "ssfl"))
    ]
    assert {flag for span in spans for flag in FLAG.findall(span)} - flags - NOT_OURS == set()
