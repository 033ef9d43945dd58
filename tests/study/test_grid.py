from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.method.settings import RunSettings
from ssfl.study.data import DataSpec
from ssfl.study.errors import StudyError
from ssfl.study.grid import DATA, SETTINGS, Study, read_grid, read_seeds
from ssfl.study.run_spec import STUDY_SETTINGS

WHOLE = """
seeds = [3, 5]
mode = "exact"

[data]
source = "digits"
clients = 4

[settings]
rounds = 2
local-epochs = 1

[grid]
sparsity = [0.50, 0.9]
alpha = [0.1, 10]

[[variant]]
name = "ssfl"

[[variant]]
name = "dense"
strategy = "fedavg"
sparsity = 0.9
"""


def grid(folder: Path, text: str) -> Study:
    file = folder / "sweep.toml"
    file.write_text(text)
    return read_grid(file)


def test_grid_and_variants_multiply_except_for_keys_that_a_variant_sets(
    tmp_path: Path,
) -> None:
    specs = grid(tmp_path, WHOLE).specs()
    assert list(dict.fromkeys(spec.name for spec in specs)) == [
        "ssfl sparsity=0.50 alpha=0.1",
        "ssfl sparsity=0.50 alpha=10.0",
        "ssfl sparsity=0.9 alpha=0.1",
        "ssfl sparsity=0.9 alpha=10.0",
        "dense alpha=0.1",
        "dense alpha=10.0",
    ]
    assert [spec.seed for spec in specs[:4]] == [3, 5, 3, 5] and len(specs) == 12
    first, last = specs[0], specs[-1]
    assert first.data == DataSpec(clients=4, alpha=0.1)
    assert first.settings == {"rounds": 2, "local_epochs": 1, "sparsity": "0.50"}
    assert last.settings["strategy"] == "fedavg" and last.data.alpha == 10
    for spec in specs:
        spec.check()


def test_without_a_grid_there_is_one_configuration(tmp_path: Path) -> None:
    (spec,) = grid(tmp_path, "[settings]\nrounds = 2").specs()
    assert (spec.name, spec.seed, spec.mode, spec.data) == ("run", 0, "exact", DataSpec())


def test_modes_and_profiles_may_be_compared(tmp_path: Path) -> None:
    text = "[settings]\nrounds = 2\n[grid]\nmode = ['exact', 'fast']\nprofile = ['ours', 'paper']"
    specs = grid(tmp_path, text).specs()
    assert [spec.mode for spec in specs] == ["exact", "exact", "fast", "fast"]
    assert [spec.run_settings().scores for spec in specs[:2]] == ["compact", "exact"]
    assert {spec.run_settings().rounds for spec in specs} == {2}


def test_every_field_and_setting_that_a_study_does_not_replace_is_a_key() -> None:
    assert list(DATA) == [field.name for field in fields(DataSpec)]
    assert set(SETTINGS) == {field.name for field in fields(RunSettings)} - set(STUDY_SETTINGS)
    assert not set(DATA) & set(SETTINGS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid]\nsparsty = [1]", "sparsty in [grid] of FILE is not a setting of a study; did you "
         "mean sparsity?"),
        ("[settings]\nround = 1", "round in [settings] of FILE is not a setting of a study; did "
         "you mean rounds?"),
        ("[data]\ncients = 1", "cients in [data] of FILE is not a setting of a study; did you mean "
         "clients?"),
        ("[[variant]]\nname = 'a'\nalpa = 1", "alpa in [variant a] of FILE is not a setting of a "
         "study; did you mean alpha?"),
        ("setings = 1", "setings in FILE is not a key of a study; did you mean settings?"),
        ("rounds = 1", "rounds in FILE is not a key of a study: it belongs under [settings]"),
        ("[settings]\nalpha = 1", "alpha in [settings] of FILE is not known there: it belongs "
         "under [data]"),
        ("[data]\nrounds = 1", "rounds in [data] of FILE is not known there: it belongs under "
         "[settings]"),
        ("[settings]\nclients = 1", "clients in [settings] of FILE is not known there: it belongs "
         "under [data]"),
        ("[settings]\nmode = 'fast'", "mode in [settings] of FILE is not known there: it belongs "
         "at the top of the file"),
        ("[settings]\nseed = 1", "seed in [settings] of FILE is not a setting of a study: a study "
         "has `seeds`"),
        ("[settings]\nrounds = 'x'", "rounds in [settings] of FILE must be a whole number, "
         "got 'x'"),
        ("[settings]\nrounds = [1]", "rounds in [settings] of FILE must be one plain value, "
         "got [1]"),
        ("[settings]\nlocal-epochs = 1\nlocal_epochs = 1", "local_epochs in [settings] of FILE is "
         "given twice, with a dash and with an underscore"),
        ("[grid]\nrounds = 1", "rounds in [grid] of FILE must be a list of values, such as "
         "[0.5, 0.9]"),
        ("[grid]\nrounds = []", "rounds in [grid] of FILE must be a list of values, such as "
         "[0.5, 0.9]"),
        ("[grid]\nrounds = [1, 1]", "rounds in [grid] of FILE has a value twice"),
        ("[variant]\nname = 'a'", "variant in FILE must be tables: [[variant]] in double brackets"),
        ("[[variant]]\nrounds = 1", "[[variant]] number 1 in FILE needs a name"),
        ("[[variant]]\nname = 'a'\n[[variant]]\nname = 'a'", "two variants in FILE are called 'a'"),
        ("data = 1", "data in FILE must be a table: write [data] on its own line"),
        ("mode = 'slow'", "mode in FILE must be one of exact, fast, got 'slow'"),
        ("seeds = [0, 0]", "seeds in FILE names a seed twice"),
        ("seeds = 0", "seeds in FILE must be the number of seeds, 1 to 100000, or a list of seeds; "
         "got 0"),
        ("seeds = ['a']", "seeds in FILE must be the number of seeds, 1 to 100000, or a list of "
         "seeds; got ['a']"),
    ],
)  # fmt: skip
def test_an_invalid_key_or_value_is_named_with_its_file(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError) as caught:
        grid(tmp_path, text)
    assert str(caught.value) == message.replace("FILE", str(tmp_path / "sweep.toml"))


def test_a_file_that_is_not_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="is not valid TOML"):
        grid(tmp_path, "seeds =")
    with pytest.raises(StudyError, match=r"the study no\.toml cannot be read: No such file"):
        read_grid(Path("no.toml"))


def test_too_many_runs_are_refused_before_they_are_listed() -> None:
    study = Study(grid={"rounds": range(1, 10**6), "width": range(10**6)})
    with pytest.raises(StudyError, match="more than 100,000 runs"):
        study.specs()


def test_a_key_that_varies_cannot_be_fixed(tmp_path: Path) -> None:
    study = grid(tmp_path, WHOLE)
    assert study.with_base({"rounds": 7}).specs()[0].settings["rounds"] == 7
    for key in ("alpha", "strategy"):
        with pytest.raises(StudyError, match=f"{key} varies in this study"):
            study.with_base({key: 1})


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=9, unique=True))
def test_a_list_of_seeds_is_parsed(seeds: list[int]) -> None:
    assert read_seeds(", ".join(map(str, seeds)), "--seeds") == seeds


@pytest.mark.parametrize("text", ["", "a", "1;2", "-1", "1,,2", "0", "1,1", "1.5", ",", "999999"])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(StudyError, match=r"^--seeds "):
        read_seeds(text, "--seeds")
