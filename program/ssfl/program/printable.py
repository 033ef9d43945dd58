"""Text from peers, tasks and files, made safe to show in a log, a terminal or a page.

Letters, signs and spaces of every language stay as they are. Control characters, ANSI codes, line
breaks, overrides of the writing direction and lone surrogates become escapes.
"""

import re
from unicodedata import category

_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # parts of words in Persian and Hindi, and of emoji


def printable(text: str) -> str:
    r"""Return `text` in one line, with an escape for each character that is not safe to show.

    >>> print(printable("naïve 语 \x1b[31mred\nnext\u202e"))
    naïve 语 \x1b[31mred\nnext\u202e
    """
    if text.isprintable():
        return text
    return "".join(char if _is_safe(char) else _escape(char) for char in text)


def printable_lines(text: str) -> str:
    """Return `text` with its line breaks, each line printable and its tabs as spaces."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))


def printable_json(document: str) -> str:
    r"""Return a JSON document in which each unsafe character is a JSON escape.

    >>> print(printable_json('{"name": "\u202e\x9b"}'))
    {"name": "\u202e\u009b"}
    """
    if document.isprintable():
        return document
    return re.sub(
        "[^ -~]", lambda found: found[0] if _is_safe(found[0]) else _json(found[0]), document
    )


def _is_safe(char: str) -> bool:
    return category(char) not in _ESCAPED or char in _JOINERS


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _json(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
