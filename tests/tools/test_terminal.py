import pytest
from rich.table import Table
from rich.text import Text

from ssfl.tools.terminal import console


def test_control_codes_in_names_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table("[b]client[/b]")
    table.add_row("\x1b]0;owned\x07\x1b[2J[red]eve[/red]" + 40 * " ")
    table.add_row(Text("\x9b31m\u202ebob" + 40 * " "))
    screen = console()
    screen.print(table)
    screen.print("上海\x1b[8m")
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert r"\x1b[2J[red]eve[/red]" in out
    assert "[b]client[/b]" in out
    assert r"\x9b31m\u202ebob" in out
    assert "上海\\x1b[8m" in out


def test_colours_of_the_commands_reach_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console().print(Text("lost\x1b", style="bold red"))
    assert capsys.readouterr().out == "\x1b[1;31mlost\\x1b\x1b[0m\n"
