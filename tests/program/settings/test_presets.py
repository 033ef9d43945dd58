"""A setting may name a set of defaults for others: the run's --profile."""

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


def test_a_profile_beats_the_plain_defaults_and_a_flag_beats_the_profile() -> None:
    settings = run("--profile", "paper", "--rounds", "7")
    assert (settings.profile, settings.rounds, settings.sparsity) == ("paper", 7, "0.5")
    assert settings.clip_norm == 0.0 != RunSettings().clip_norm


def test_variables_and_the_file_beat_the_profile_wherever_it_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('profile = "released"\nsparsity = 0.95\n')
    settings = run("--config", str(file), environ={"SSFL_ROUNDS": "3"})
    assert (settings.sparsity, settings.rounds) == ("0.95", 3)
    assert settings.score_weights == "equal", "from the profile"


def test_a_plain_default_that_is_given_beats_the_profile() -> None:
    assert run("--profile", "paper", "--sparsity", "0.9").sparsity == RunSettings().sparsity


@pytest.mark.parametrize("name", PROFILES)
def test_flags_and_names_agree_about_every_profile(name: str) -> None:
    assert run("--profile", name) == RunSettings(**with_profile({"profile": name}))


def test_every_profile_speaks_of_settings_that_exist_and_may_be_used() -> None:
    for preset in PROFILES.values():
        values_by_name(RunSettings, preset, "a run")
        RunSettings(**with_profile(preset)).validate()


def test_a_number_of_clients_replaces_the_share_that_a_profile_names() -> None:
    settings = run("--profile", "paper", "--clients-per-round", "5")
    assert (settings.clients_per_round, settings.client_fraction) == (5, 0.0)
    assert run("--profile", "paper").client_fraction == 0.1


def test_a_rule_that_a_profile_breaks_says_that_it_was_the_profile() -> None:
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


def test_help_tells_what_a_profile_sets_and_what_beats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run("--help", "run")
    said = " ".join(capsys.readouterr().out.split())
    assert "--profile sets other defaults. A value given by a flag, a variable" in said
    paper = "sparsity 0.5, rounds 500, client_fraction 0.1, momentum 0.0, clip_norm 0.0"
    assert f"--profile paper: {paper}" in said
    assert "--profile ours: the plain defaults" in said


def test_a_profile_that_there_is_not_is_refused() -> None:
    with pytest.raises(ProgramError, match="--profile must be one of ours, paper, released"):
        run("--profile", "papers")
    with pytest.raises(SettingsError, match="--profile must be one of ours, paper, released"):
        with_profile({"profile": "papers"})
