import importlib.metadata
from dataclasses import dataclass, field
from typing import Any

import pytest

from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.program.settings.loading import load


def setting(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, slots=True)
class Config:
    port: int = setting(50051, "port to listen on", group="Service")
    wait_s: float = setting(30.0, "longest long-poll", unit="s", group="Service")
    share: str = setting("", "written as 90 %", metavar="SHARE", group="Service")
    run: RunSettings = field(default_factory=RunSettings, metadata={"group": "The run"})


def printed(flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        load(Config, [flag], {}, "ssfl-coordinator", "Coordinate a run.", "See also: ssfl demo.")
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def test_help_shows_defaults_units_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(printed("--help", capsys).split())
    for line in [
        "--port N port to listen on (default 50051)",
        "--wait-s X longest long-poll (default 30 s)",
        "--share SHARE written as 90 % --",
        "how the federation learns: ssfl, fedavg (default ssfl)",
        "--[no-]reproducible wait for every",
        "A flag beats a variable, a variable beats the file",
        "See also: ssfl demo.",
    ]:
        assert line in words.replace("The run:", "--")


def test_help_groups_settings_under_their_headings(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("--help", capsys).splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Service:", "The run:", "Other:", "Exit codes:"]


def test_help_ends_with_all_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("--help", capsys).rstrip().splitlines()[-len(ExitCode) :]
    assert [int(line.split()[0]) for line in lines] == list(ExitCode)


def test_help_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert max(map(len, printed("--help", capsys).splitlines())) <= 80


def test_help_stays_readable_on_a_wide_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert max(map(len, printed("--help", capsys).splitlines())) <= 100


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    version = importlib.metadata.version("ssfl")
    assert printed("--version", capsys) == f"ssfl-coordinator {version}\n"
