"""Presets: a setting such as --profile chooses defaults of other settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.profiles import PROFILES, with_profile
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ProgramError
from ssfl.program.settings.loading import load, values_by_name
from ssfl.server.config import CoordinatorConfig


def run(*argv: str, environ: Mapping[str, str] | None = None) -> RunSettings:
    return load(CoordinatorConfig, argv, environ or {}, "ssfl-coordinator", "Coordinates.").run


def test_a_profile_overrides_defaults_and_a_flag_overrides_the_profile() -> None:
    settings = run("--profile", "paper", "--rounds", "7")
    assert (settings.profile, settings.rounds, settings.sparsity) == ("paper", 7, "0.5")
    assert settings.clip_norm == 0.0 != RunSettings().clip_norm


def test_variables_and_the_file_override_the_profile_from_any_source(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('profile = "released"\nsparsity = 0.95\n')
    settings = run("--config", str(file), environ={"SSFL_ROUNDS": "3"})
    assert (settings.sparsity, settings.rounds) == ("0.95", 3)
    assert settings.score_weights == "equal", "from the profile"


def test_a_given_plain_default_overrides_the_profile() -> None:
    assert run("--profile", "paper", "--sparsity", "0.9").sparsity == RunSettings().sparsity


@pytest.mark.parametrize("name", PROFILES)
def test_flags_and_names_agree_about_every_profile(name: str) -> None:
    assert run("--profile", name) == RunSettings(**with_profile({"profile": name}))


def test_every_profile_has_valid_settings() -> None:
    for preset in PROFILES.values():
        values_by_name(RunSettings, preset, "a run")
        RunSettings(**with_profile(preset)).validate()


def test_a_number_of_clients_replaces_the_fraction_of_a_profile() -> None:
    settings = run("--profile", "paper", "--clients-per-round", "5")
    assert (settings.clients_per_round, settings.client_fraction) == (5, 0.0)
    assert run("--profile", "paper").client_fraction == 0.1


def test_a_rule_broken_by_a_profile_names_the_profile() -> None:
    @dataclass(frozen=True)
    class Meal:
        taste: str = field(default="mild", metadata={"presets": {"mild": {}, "hot": {"chili": 9}}})
        chili: int = 1

        def validate(self) -> None:
            if self.chili > 5:
                raise SettingsError(f"--chili {self.chili} burns")

    with pytest.raises(ProgramError, match=r"^--chili 9 burns \(--chili is set by --taste hot\)$"):
        load(Meal, ["--taste", "hot"], {}, "cook", "")
    assert load(Meal, ["--taste", "hot", "--chili", "5"], {}, "cook", "").chili == 5


def test_help_shows_what_a_profile_sets_and_what_overrides_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run("--help", "run")
    shown = " ".join(capsys.readouterr().out.split())
    assert "--profile sets other defaults. A value given by a flag, a variable" in shown
    paper = "sparsity 0.5, rounds 500, client_fraction 0.1, momentum 0.0, clip_norm 0.0"
    assert f"--profile paper: {paper}" in shown
    assert "--profile ours: the plain defaults" in shown


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ProgramError, match="--profile must be one of ours, paper, released"):
        run("--profile", "papers")
    with pytest.raises(SettingsError, match="--profile must be one of ours, paper, released"):
        with_profile({"profile": "papers"})
