"""The first commands and the flags of the README; test_pages.py runs its blocks."""

import re
import shlex
from pathlib import Path

from ssfl.client.config import ClientConfig
from ssfl.method.settings import RunSettings
from ssfl.program.settings.loading import setting_names
from ssfl.server.config import CoordinatorConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def test_the_two_commands_come_first_and_exist() -> None:
    assert commands()[:2] == [["make", "demo"], ["make", "test"]]
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo:", makefile, flags=re.MULTILINE)
    assert re.search(r"^test:", makefile, flags=re.MULTILINE)
    assert re.search(r"\bmake test\b", (ROOT / ".ci" / "run").read_text())


def test_every_flag_and_variable_shown_exists() -> None:
    known = {
        "ssfl-coordinator": setting_names(CoordinatorConfig),
        "ssfl-client": setting_names(ClientConfig),
    }
    shown = 0
    for words in commands():
        program = next((word for word in words if word in known), "")
        for word in words:
            if word.startswith("--") and program:
                assert word[2:].replace("-", "_") in known[program], words
                shown += 1
            if word.startswith("SSFL_"):
                assert word.split("=")[0][5:].lower() in setting_names(RunSettings), words
                shown += 1
    assert shown >= 5
