"""Every experiment on a few digits: runs, conclusions and charts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssfl.experiments import EXPERIMENTS
from ssfl.experiments.contract import Runs, difference
from ssfl.experiments.recipe import DIGITS, SETTINGS, Recipe
from ssfl.study.charts.style import sparsity_text
from ssfl.study.data import BENCHMARK_S
from ssfl.study.sweep import RunSpec, run_all
from ssfl.tools.simulate.paper import _cells, _rounded

SMALL = Recipe(
    replace(DIGITS, clients=10),
    {**SETTINGS, "rounds": 10, "local_steps": 2, "client_fraction": 0.5},
    (0, 1),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All runs of all experiments, each once."""
    specs: dict[tuple[str, int], RunSpec] = {}
    for experiment in EXPERIMENTS.values():
        for spec in experiment.specs(SMALL):
            known = specs.setdefault((spec.name, spec.seed), spec)
            assert known == spec, "a name stands for one configuration"
    results = run_all(list(specs.values()), tmp_path_factory.mktemp("paper"))
    assert [result.error for result in results if result.error] == []
    return Runs(results)


@pytest.mark.system
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_concludes_and_draws_a_chart(name: str, runs: Runs, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    result = experiment.conclude(SMALL, runs)
    assert json.loads(json.dumps(_rounded(result), allow_nan=False))
    for row in result["rows"]:
        assert len(row["values"]) == len(SMALL.seeds)
        assert row["low"] <= row["mean"] <= row["high"]
        assert len(_cells(row)) == 5
    experiment.draw(result, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"
    assert experiment.claim.endswith((".", "data."))


@pytest.mark.system
def test_accuracy_on_new_classes_starts_near_zero_when_they_arrive(runs: Runs) -> None:
    panels = EXPERIMENTS["newcomers"].conclude(SMALL, runs)["panels"]
    for sparsity, panel in panels.items():
        for curves in (panel["refresh"], panel["no refresh"]):
            at = curves["rounds"].index(6)
            for old, new in zip(curves["old"], curves["new"], strict=True):
                assert new[:at] == [None] * at, "no client has the classes yet"
                assert new[at] < 0.05 and new[at] < old[at]
                assert sparsity != "0.5" or old[at] > 0.3, "the old classes have been learned"
                assert new[-1] is not None


@pytest.mark.system
def test_only_runs_with_a_refresh_have_two_masks(runs: Runs) -> None:
    (refreshed, *_) = runs.documents("newcomers, new mask 0.5")
    assert [mask["rounds_done"] for mask in refreshed["masks"]] == [0, 6]
    assert len(refreshed["masks"][1]["votes"]) == 10, "the newcomers vote, too"
    (kept, *_) = runs.documents("newcomers, kept mask 0.5")
    assert len(kept["masks"]) == 1


@pytest.mark.system
def test_a_warm_up_is_followed_by_one_scoring(runs: Runs) -> None:
    (warm, *_) = runs.documents("warm-up 0.8")
    (mask,) = warm["masks"]
    assert (mask["rounds_done"], mask["epoch"]) == (2, 2)
    assert mask["reason"] == ""


def test_a_difference_is_paired_and_measured_against_its_bar() -> None:
    row = difference("a − b", {0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.4}, 0.25)
    assert row["values"] == pytest.approx([0.1, 0.3])
    assert row["mean"] == pytest.approx(0.2)
    assert row["met"] is False
    assert difference("a − b", {0: 0.5}, {0: 0.4}, 0.0)["met"] is True
    assert "met" not in difference("a − b", {0: 0.5}, {0: 0.4})


def test_the_quick_recipe_has_the_settings_of_its_docstring() -> None:
    recipe = Recipe.quick((0,), "fashion-mnist")
    assert recipe.data == BENCHMARK_S
    settings: Mapping[str, Any] = settings_of(recipe)
    assert settings["learning_rate"] == 0.1 and settings["weight_decay"] == 5e-4
    assert (settings["momentum"], settings["batch_size"], settings["clip_norm"]) == (0.0, 16, 0.0)
    assert (settings["rounds"], settings["lr_decay"], settings["client_fraction"]) == (
        50,
        0.98,
        0.1,
    )
    assert settings["scoring_batches"] == 1 and settings["initialization"] == "kaiming-normal"
    assert Recipe.quick((0,), "digits").data == DIGITS


def settings_of(recipe: Recipe) -> dict[str, Any]:
    (spec,) = recipe.specs("one", {})
    settings = spec.run_settings()
    return {name: getattr(settings, name) for name in type(settings).__dataclass_fields__}


def test_a_sparsity_is_shown_in_per_cent() -> None:
    assert [sparsity_text(sparsity) for sparsity in ("0.5", "0.95", "0.985")] == [
        "50 %",
        "95 %",
        "98.5 %",
    ]
