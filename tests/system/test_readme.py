"""The commands of the README, word for word."""

import re
import shlex
from pathlib import Path

import pytest

from ssfl.client.config import ClientConfig
from ssfl.method.settings import RunSettings
from ssfl.program.settings import setting_names
from ssfl.server.config import CoordinatorConfig
from system.programs import Programs

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


@pytest.mark.system
def test_the_plan_can_be_pasted(programs: Programs) -> None:
    plan = next(words for words in commands() if words[:2] == ["ssfl", "plan"])
    program = programs.run(*plan)
    assert program.ends() == 0, program.err
    assert "0.95 sparse" in program.out


@pytest.mark.system
def test_the_lines_to_paste_make_a_federation(programs: Programs) -> None:
    """As shown, with flags that fix the number of clients and bring it to an end."""
    shards, coordinator, client = (
        next(words for words in commands() if words[: len(program)] == program)
        for program in (["ssfl", "shards"], ["ssfl-coordinator"], ["ssfl-client"])
    )
    assert programs.run(*shards).ends() == 0
    server = programs.start(*coordinator, "--clients", "2", "--rounds", "1", "--exit-when-done")
    first = programs.start(*client)
    second = programs.start(client[0], "--data", "shard_03")
    assert [first.ends(), second.ends(), server.ends()] == [0, 0, 0]
    sites = sorted(path.parent.name for path in programs.folder.glob("runs/*/*/model.safetensors"))
    assert sites == ["coordinator", "shard_03", "shard_07"]
