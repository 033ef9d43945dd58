import json

import pytest

from ssfl.program.printable import printable, printable_json, printable_lines

READABLE = "Zürich 上海 Ελλάδα می\u200cخواهم \N{WOMAN}\u200d\N{ROCKET} 10\u00a0%"
ESCAPES = {
    "\n": r"\n", "\r": r"\r", "\t": r"\t", "\0": r"\x00", "\x1b[2J": r"\x1b[2J", "\x7f": r"\x7f",
    "\x9b31m": r"\x9b31m", "\u202e": r"\u202e", "\u2066": r"\u2066", "\u2028": r"\u2028",
    "\ufeff": r"\ufeff", "\ud800": r"\ud800", "\U000e0041": r"\U000e0041",
}  # fmt: skip


def test_text_of_any_language_is_unchanged() -> None:
    assert printable(READABLE) == READABLE
    assert json.loads(printable_json(json.dumps(READABLE, ensure_ascii=False))) == READABLE
    assert READABLE in printable_json(json.dumps(READABLE, ensure_ascii=False))


@pytest.mark.parametrize(("unsafe", "escape"), ESCAPES.items())
def test_characters_that_move_the_cursor_or_reverse_text_are_escaped(
    unsafe: str, escape: str
) -> None:
    assert printable(f"语{unsafe}x") == f"语{escape}x"


@pytest.mark.parametrize("unsafe", ESCAPES)
def test_an_escaped_document_is_one_printable_line_with_the_same_content(unsafe: str) -> None:
    document = printable_json(json.dumps({unsafe: unsafe}, ensure_ascii=False))
    assert document.isprintable()
    assert json.loads(document) == {unsafe: unsafe}


def test_lines_of_a_message_stay_lines() -> None:
    assert printable_lines("a\n\tb\r\x1b[K") == "a\n    b\\r\\x1b[K"
