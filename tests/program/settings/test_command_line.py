import importlib.metadata
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.settings.loading import load, setting_names
from ssfl.strategies.registry import check_settings, strategy_names


def setting(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, slots=True)
class Config:
    port: int = setting(50051, "port to listen on")
    wait_s: float = setting(30.0, "longest long-poll", unit="s")
    share: str = setting("", "written as 90 %", metavar="SHARE")
    run: RunSettings = field(default_factory=RunSettings)


def printed(flags: str, capsys: pytest.CaptureFixture[str]) -> str:
    argv = flags.split()
    with pytest.raises(SystemExit) as caught:
        load(Config, argv, {}, "ssfl-coordinator", "Coordinate a run.", "See also: ssfl demo.")
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def test_help_shows_defaults_units_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(printed("--help all", capsys).split())
    for line in [
        "--port N port to listen on (default 50051)",
        "--wait-s X longest long-poll (default 30 s)",
        "--share SHARE written as 90 % run (strategy",
        f"how the federation learns (default ssfl) one of {', '.join(strategy_names())}",
        "--[no-]reproducible wait for every",
        "flag --port 50051 variable SSFL_PORT=50051 TOML file port = 50051",
        "A flag overrides a variable, a variable overrides the file",
        "See also: ssfl demo.",
    ]:
        assert line in words


def test_each_fact_about_a_setting_has_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.strip() for line in printed("--help all", capsys).splitlines()]
    at = next(k for k, line in enumerate(lines) if line.startswith("--scores NAME"))
    assert lines[at].endswith("encoding of scores (default compact)")
    assert lines[at + 1 : at + 4] == [
        "compact: about 3 bits each", "exact: float32", "one of compact, exact",
    ]  # fmt: skip


def flags_in(text: str) -> list[str]:
    return re.findall(r"^  --(?:\[no-\])?([a-z-]+)", text, flags=re.MULTILINE)


def test_plain_help_shows_basic_settings_and_names_the_groups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = printed("--help", capsys)
    headings = [line for line in shown.splitlines() if re.fullmatch(r"[A-Z].*:", line)]
    assert headings == [
        "Basic settings:",
        "Other flags:",
        "More settings are in groups. `ssfl-coordinator --help GROUP` shows a group:",
        "Ways to give a setting:",
        "Exit codes:",
    ]
    assert {"port", "wait-s", "sparsity", "rounds"} < set(flags_in(shown))
    assert "criterion" not in flags_in(shown)
    assert "  masks       sparsity and how the first mask is chosen\n" in shown
    assert f"  all         all {len(setting_names(Config))} settings\n" in shown


def test_help_for_a_group_shows_only_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed("--rounds 3 -h evaluation", capsys)
    assert flags_in(shown) == [
        "evaluate-every", "evaluate-last", "target-accuracy", "patience", "personalize-epochs",
        "personalize-lr",
    ]  # fmt: skip
    assert "Exit codes" not in shown


def test_help_for_everything_shows_each_setting_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = flags_in(printed("--help all", capsys))
    names = [name.replace("_", "-") for name in setting_names(Config)]
    assert sorted(shown) == sorted([*names, "config", "version"])


def test_help_for_an_unknown_group_names_the_groups() -> None:
    with pytest.raises(ProgramError, match=r"--help mask: no such group .* run, model, masks, "):
        load(Config, ["--help", "mask"], {}, "ssfl-coordinator", "")


@dataclass(frozen=True, slots=True)
class SmallConfig:
    rounds: int = setting(3, "training rounds")


def test_a_program_with_few_settings_shows_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(SmallConfig, ["--help"], None, "ssfl small", "")
    shown = capsys.readouterr().out
    assert "Settings:\n  --rounds N" in shown
    assert "GROUP" not in shown


def test_help_ends_with_all_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("--help", capsys).rstrip().splitlines()[-len(ExitCode) :]
    assert [int(line.split()[0]) for line in lines] == list(ExitCode)


def test_help_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert max(map(len, printed("--help all", capsys).splitlines())) <= 80


def test_help_stays_readable_on_a_wide_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert max(map(len, printed("--help all", capsys).splitlines())) <= 100


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    version = importlib.metadata.version("ssfl")
    assert printed("--version", capsys) == f"ssfl-coordinator {version}\n"


@pytest.mark.parametrize("flag", ["--sub-fedavg.accuracy 0.3", "--flash-jmwst.prune-rate=0.1"])
def test_the_settings_of_a_strategy_with_a_dash_in_its_name_are_flags(flag: str) -> None:
    strategy = flag.removeprefix("--").partition(".")[0]
    argv = ["--strategy", strategy, "--local-epochs=2", *flag.split()]
    run = load(Config, argv, {}, "ssfl-coordinator", "Coordinate a run.").run
    check_settings(run)
    assert run.strategy_options.startswith(f"{strategy}.")
