"""Habits of language that code, tests and pages have left behind.

Write the verb of the act (return, log, report), name the value, and put the subject first.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HABITS = {
    r"\btold\b": "log, report, record or return",
    r"\bTell whether\b": "Return True if",
    r"\bso many\b": "name the number",
    r"\b[Nn]obody\b": "no client, or the passive",
    r"\banew\b": "again",
    r"\b[Ww]hoever\b": "name the noun",
    r"\bgoes on\b": "continues or resumes",
    r"(?<!there )(?<!There )\bis no (?!longer\b)[a-z]": "is not a",
}
CODE = ("*.py", "*.js", "*.proto", ":!*_pb2*", ":!tests/test_language.py")
PAGES = ("*.md", ":!docs/decisions")  # decisions are history


def test_code_and_pages_avoid_habits_that_readers_stumble_over() -> None:
    listed = subprocess.run(
        ["git", "ls-files", *CODE, *PAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(listed) > 300
    texts = {name: (ROOT / name).read_text("utf-8") for name in listed}
    found = [
        f"{name}:{number}: {line.strip()} -> {better}"
        for name, text in texts.items()
        if re.search("|".join(HABITS), text)
        for number, line in enumerate(text.splitlines(), 1)
        for habit, better in HABITS.items()
        if re.search(habit, line)
    ]
    assert found == []
