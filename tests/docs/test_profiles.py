"""The table of docs/profiles.md has every setting of every profile, as in the code."""

from dataclasses import fields
from itertools import pairwise
from typing import Any

from markdown_it import MarkdownIt

from docs.pages import ROOT
from ssfl.method.profiles import PROFILES, with_profile
from ssfl.method.settings import RunSettings

PAGE = ROOT / "docs" / "profiles.md"


def rows() -> list[list[str]]:
    """Yield the cells of the page's tables, row by row, without code marks."""
    tokens = MarkdownIt("commonmark").enable("table").parse(PAGE.read_text("utf-8"))
    found: list[list[str]] = []
    for before, token in pairwise(tokens):
        if before.type == "tr_open":
            found.append([])
        if before.type in ("th_open", "td_open"):
            found[-1].append(token.content.replace("`", ""))
    return found


def table() -> dict[str, dict[str, str]]:
    """Return the page's values: setting -> profile -> text."""
    head = next(cells for cells in rows() if cells[0] == "setting")
    assert tuple(head[1:4]) == tuple(PROFILES)
    return {
        cells[0].removeprefix("--").replace("-", "_"): dict(zip(head[1:4], cells[1:4], strict=True))
        for cells in rows()
        if cells[0].startswith("--")
    }


def test_the_table_has_one_row_for_each_setting_of_a_profile() -> None:
    settings = set().union(*PROFILES.values())
    assert settings and set(table()) == settings


def test_the_table_has_the_values_of_the_code() -> None:
    kinds: dict[str, type[Any]] = {
        setting.name: type(setting.default) for setting in fields(RunSettings)
    }
    for profile in PROFILES:
        settings = RunSettings(**with_profile({"profile": profile}))
        for name, cells in table().items():
            word, value = cells[profile], getattr(settings, name)
            read = {"no": False, "yes": True}[word] if kinds[name] is bool else kinds[name](word)
            assert read == value, (profile, name)


def test_every_row_names_the_source_of_its_values() -> None:
    assert all(len(cells[4]) > 10 for cells in rows() if cells[0].startswith("--"))
