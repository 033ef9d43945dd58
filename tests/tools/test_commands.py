from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode
from ssfl.tools import main as tools


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.main([]) == ExitCode.USAGE
    listed = capsys.readouterr().out
    for name, (_, _, text) in tools.COMMANDS.items():
        assert name in listed
        assert text in listed


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.main(["federate"]) == ExitCode.USAGE
    assert "the commands are: demo, rehearse, simulate, shards" in capsys.readouterr().err


@pytest.mark.parametrize("command", tools.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tools.main([command, "--help"])
    assert ended.value.code == 0
    assert f"ssfl {command}" in capsys.readouterr().out


def test_an_unreachable_coordinator_is_named_by_its_admin_port(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tools.main(["status", "--admin", "localhost:9"]) == ExitCode.UNREACHABLE
    assert "admin port localhost:9" in capsys.readouterr().err


def test_the_demo_does_not_replace_a_folder_with_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert tools.main(["demo", "--out", str(tmp_path)]) == ExitCode.USAGE
    assert "choose another with --out" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--clients", "1"], "--clients must be at least 2"),
        (["--sparsity", "most"], "--sparsity: sparsity must be a number such as 0.9"),
        (["--crash", "--rounds", "2"], "--crash needs at least --rounds 3"),
        (["--crash", "--sparsity", "0.99"], "an update is too small to be cut in the middle"),
    ],
)
def test_impossible_settings_of_a_demo_are_refused_before_files_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert tools.main(["demo", *flags, "--out", str(tmp_path / "demo")]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("command", ["demo", "shards", "plan"])
def test_the_help_states_that_variables_are_ignored(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tools.main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "this command ignores them" in shown
    assert "SSFL_CONFIG" not in shown
