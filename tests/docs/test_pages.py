"""Every block of every page is run, or the page has a reason why not.

One page: `pytest tests/docs -k tables`. What blocks can be is in `pages.py`.
"""

import sys
from pathlib import Path

import pytest

from docs.pages import OWN_TESTS, ROOT, blocks_of, pages, problem
from docs.run_page import run_page
from system.programs import fork_server

MAX_NOT_RUN = 8
OURS = [page for page in pages() if page not in OWN_TESTS]


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def is_run(page: str) -> bool:
    return any(block.as_step() for block in blocks_of(text_of(page)))


@pytest.mark.parametrize("page", OURS)
def test_every_block_is_of_a_known_kind(page: str) -> None:
    wrong = [f"{page}:{block.line}: {problem(block)}" for block in blocks_of(text_of(page))]
    assert [line for line in wrong if not line.endswith(": ")] == []


@pytest.mark.system
@pytest.mark.parametrize("page", [page for page in OURS if is_run(page)])
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    server = fork_server(with_torch=True) if sys.platform == "linux" else None
    if wrong := run_page(page, text_of(page), tmp_path, server=server):
        pytest.fail(wrong, pytrace=False)


def test_pages_with_their_own_test_exist_and_are_named_in_it() -> None:
    for page, test in OWN_TESTS.items():
        assert page in pages()
        assert Path(page).name in (ROOT / test).read_text("utf-8")


def test_few_blocks_are_not_run_and_each_has_a_reason() -> None:
    left_out = [
        f"{page}:{block.line}: {block.reason}"
        for page in pages()
        for block in blocks_of(text_of(page))
        if block.reason
    ]
    print("not run:", *left_out, sep="\n")
    assert len(left_out) <= MAX_NOT_RUN
