"""Every experiment on a few digits: runs, conclusions and charts."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.paper_page import _row

from ssfl.experiments import EXPERIMENTS, measured, others, overview, tables
from ssfl.experiments.contract import Runs, difference
from ssfl.experiments.recipe import DIGITS, SETTINGS, Recipe
from ssfl.program.exits import ExitCode
from ssfl.study.charts.style import sparsity_text
from ssfl.study.data import BENCHMARK_S, DataSpec
from ssfl.study.sweep import RunSpec, run_all
from ssfl.tools.main import main
from ssfl.tools.simulate.paper import _cells

SMALL = Recipe(
    replace(DIGITS, clients=10),
    {**SETTINGS, "rounds": 10, "local_steps": 2, "client_fraction": 0.5},
    (0, 1),
)


@pytest.fixture(scope="module", autouse=True)
def _few_points() -> Iterator[None]:
    """Shorten the longest measurements: the ends of sweeps, few weights and few minibatches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "SWEEP", ("0.5", "0.95"))
        few = ("Top-k weights", "FedDST", "FedPM")  # tables.py has runs of the rest
        patch.setattr(overview, "OTHERS", {name: overview.OTHERS[name] for name in few})
        patch.setattr(measured, "REMOVED", 40)
        patch.setattr(others, "MINIBATCHES", (1, 2, 5, 10, 20, 40, 100))
        yield


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
    result = experiment.document(SMALL, runs)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    for row in result["rows"]:
        assert len(row["values"]) == len(SMALL.seeds)
        assert row["low"] <= row["mean"] <= row["high"]
        assert len(_cells(row)) == 5
    if "table" in result:
        columns = result["table"]["columns"]
        assert all(len(cells) == len(columns) for cells in result["table"]["rows"])
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


def test_a_row_of_one_seed_has_no_interval() -> None:
    row = difference("a − b", {0: 0.5}, {0: 0.4})
    rounded = json.loads(json.dumps({**row, "low": None, "high": None}))  # as in a document
    assert _cells(rounded) == ("a − b", "+10.0", "", "", "")
    assert _row(rounded) == "| a − b | +10.0 |  |  |  |"


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
    assert settings["scoring_batches"] == 1 and settings["initialization"] == "auto"
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


def test_the_scale_of_cifar_has_the_settings_of_its_docstring() -> None:
    recipe = Recipe.cifar((0, 1, 2))
    assert recipe.data == DataSpec(source="cifar10", clients=100)
    assert not recipe.round_tests
    settings = settings_of(replace(recipe, seeds=(0,)))
    assert (settings["model"], settings["rounds"], settings["local_epochs"]) == ("resnet8", 100, 1)
    assert (settings["learning_rate"], settings["lr_decay"]) == (0.1, 0.99)
    assert (settings["augment"], settings["normalize"]) == ("auto", "auto")
    assert recipe.warmup_rounds == 10


def test_the_main_command_on_cifar_has_48_runs_and_full_adds_all_rows_on_both_partitions() -> None:
    recipe = Recipe.cifar((0, 1, 2))
    main = {(spec.name, spec.seed) for spec in EXPERIMENTS["overview"].specs(recipe)}
    others = {(spec.name, spec.seed) for spec in EXPERIMENTS["overview-others"].specs(recipe)}
    assert len(main) == 48
    assert main < others
    rows = {name.removeprefix("2 classes, ") for name, _ in others}
    assert {name for name, _ in others} == rows | {f"2 classes, {row}" for row in rows}


def test_the_scale_of_the_paper_has_its_network_and_data() -> None:
    recipe = Recipe.paper((0,), "cifar100")
    assert (recipe.data.source, recipe.data.clients, recipe.data.alpha) == ("cifar100", 100, 0.2)
    settings = settings_of(recipe)
    assert (settings["model"], settings["norm"], settings["rounds"]) == ("resnet18", "group", 500)
    assert settings["batch_size"] == 16 and settings["scoring_batches"] == 1


def test_gossip_methods_have_fewer_rounds_and_the_same_fall_of_the_rate() -> None:
    recipe = Recipe.quick((0,), "fashion-mnist")
    dispfl, fomo, ssfl = recipe.methods(["dispfl 0.5", "fedfomo", "ssfl 0.5"])
    assert (dispfl.run_settings().rounds, ssfl.run_settings().rounds) == (10, 50)
    assert dispfl.run_settings().lr_decay ** 10 == pytest.approx(0.98**50, rel=1e-3)
    assert dispfl.run_settings().client_fraction == 0
    assert (fomo.data.validation, ssfl.data.validation) == (0.1, 0.0)


def test_paper_names_experiments_that_the_scale_does_not_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for argv, text in (
        (["--full"], "--full is for --scale cifar"),
        (["--scale", "cifar", "--data", "digits"], "--data must be one of cifar10, got 'digits'"),
        (["--data", "digits", "--download"], "--download"),
        (["--scale", "paper", "--only", "sparsity"], "sparsity needs runs, which are a sweep"),
        (["--scale", "paper", "--data", "digits"], "--data must be one of cifar10, cifar100"),
        (["--only", "nothing"], "there is no experiment nothing"),
    ):
        assert main(["paper", *argv]) == ExitCode.USAGE
        assert text in capsys.readouterr().err


@pytest.mark.system
def test_an_experiment_without_runs_is_printed_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["paper", "--only", "dirichlet", "--data", "digits", "--seeds", "1"]
    assert main([*argv, "--out", str(tmp_path)]) == ExitCode.DONE
    output = capsys.readouterr().out
    assert "classes per client, as equally frequent ones" in output and " 0.001 " in output
    stored = json.loads((tmp_path / "dirichlet.json").read_text())
    assert stored["runs"] == [] and stored["scale"] == "small" and len(stored["panels"]) == 5
    assert (tmp_path / "dirichlet.png").is_file()
