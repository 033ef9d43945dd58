"""Escape text from peers, tasks and files for logs, terminals and pages.

Letters, symbols and spaces of every language are unchanged. Control characters, ANSI codes, line
breaks, overrides of the writing direction and lone surrogates become escapes.
"""

import re
from unicodedata import category

_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # parts of words in Persian and Hindi, and of emoji


def printable(text: str) -> str:
    r"""Return `text` as one line, with an escape for each character that is not safe to print.

    >>> print(printable("naïve 语 \x1b[31mred\nnext\u202e"))
    naïve 语 \x1b[31mred\nnext\u202e
    """
    if text.isprintable():
        return text
    return "".join(char if _is_safe(char) else _escape(char) for char in text)


def printable_lines(text: str) -> str:
    """Return `text` with each line printable and tabs as spaces; line breaks are kept."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))


def printable_json(document: str) -> str:
    r"""Return a JSON document in which each unsafe character is a JSON escape.

    >>> print(printable_json('{"name": "\u202e\x9b"}'))
    {"name": "\u202e\u009b"}
    """
    if document.isprintable():
        return document
    return re.sub(
        "[^ -~]", lambda match: match[0] if _is_safe(match[0]) else _json(match[0]), document
    )


def _is_safe(char: str) -> bool:
    return category(char) not in _ESCAPED or char in _JOINERS


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _json(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
