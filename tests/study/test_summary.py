import csv
import json
from pathlib import Path
from typing import Any

import pytest

from ssfl.method.settings import RunSettings
from ssfl.study.data import DataSpec
from ssfl.study.errors import StudyError
from ssfl.study.one_run import run_one
from ssfl.study.outcome import outcome_of
from ssfl.study.run_spec import RunSpec
from ssfl.study.summary import by_seed, summary_of, write_summary
from ssfl.study.sweep import RunResult

QUICK: dict[str, Any] = {"model": "mlp", "width": 4, "rounds": 2, "local_steps": 1}
TIMES = {"seconds": 1.0, "cpu_seconds": 2.0, "software": "0", "torch": "0"}


@pytest.fixture(scope="module")
def history() -> dict[str, Any]:
    data = DataSpec(clients=3, samples_per_client=20, validation=0.2)
    return run_one(RunSpec("a", data, {**QUICK, "evaluate_every": 1, "personalize_epochs": 1}))


def result(outcome: dict[str, Any], seed: int, name: str = "a", **settings: Any) -> RunResult:
    spec = RunSpec(name, DataSpec(alpha=0.5), settings, seed)
    return RunResult(spec, Path("out/runs/a.json"), {**outcome, **TIMES} if outcome else {})


def test_the_outcome_agrees_with_the_history(history: dict[str, Any]) -> None:
    found = outcome_of(history)
    first, last = history["evaluations"]
    assert found["pooled"] == last["pooled"] and found["mean"] == last["mean"]
    assert found["mean_last_10"] == pytest.approx((first["mean"] + last["mean"]) / 2)
    assert found["validation_mean"] == last["validation"]["mean"]
    assert found["evaluations_last_10"] == 2
    assert found["personal"] == history["personal"]["personal"]["mean"]
    assert found["own_models"] == found["own_models_of"] == len(history["clients"])
    assert found["num_kept"] == history["mask"]["num_kept"]
    rows = history["ledger"]
    once = [row for row in rows if row["phase"] in ("initial", "scores", "mask")]
    assert found["bytes_one_off"] == sum(row["payload_bytes"] for row in once) > 0
    assert found["bytes"] == sum(row["payload_bytes"] for row in rows)
    assert found["bytes_up"] == sum(
        row["payload_bytes"] for row in rows if row["direction"] == "up" and row not in once
    )


def test_a_history_of_an_earlier_version_does_not_count_personal_models(
    history: dict[str, Any],
) -> None:
    plain = {name: part for name, part in history["personal"].items() if name != "own_models"}
    found = outcome_of({**history, "personal": plain})
    assert found["personal"] == history["personal"]["personal"]["mean"]
    assert found["own_models"] is None and found["own_models_of"] is None


def test_without_personal_models_personal_comes_from_the_last_round() -> None:
    history = {
        "rounds_done": 2, "model_digest": "", "ledger": [], "personal": None,
        "settings": {"clients": 2},
        "rounds": [
            {"round": number, "personal": accuracy, "ledger": [], "clients": []}
            for number, accuracy in enumerate((0.1, 0.3))
        ],
        "evaluations": [],
    }  # fmt: skip
    found = outcome_of(history)
    assert (found["personal"], found["personal_last_10"]) == (0.3, 0.2)
    assert found["pooled"] is None and found["bytes"] == 0


def test_a_summary_has_every_run_and_means_over_successful_ones(
    history: dict[str, Any], tmp_path: Path
) -> None:
    outcome = outcome_of(history)
    good = [result({**outcome, "mean": mean}, seed) for seed, mean in ((0, 0.5), (1, 0.7))]
    broken = RunResult(RunSpec("a", seed=2), Path("out/runs/b.json"), {}, "it broke")
    summary = summary_of([*good, broken])
    (configuration,) = summary["configurations"]
    assert (configuration["seeds"], configuration["failed_seeds"]) == ([0, 1], [2])
    assert configuration["mean"]["mean"] == pytest.approx(0.6)
    assert configuration["mean"]["sd"] == pytest.approx(0.02**0.5)
    assert configuration["mean"]["high"] - 0.6 == pytest.approx(12.7062 * 0.1, abs=1e-4)
    assert [run["error"] for run in summary["runs"]] == ["", "", "it broke"]
    assert summary["runs"][0]["spec"]["data"]["alpha"] == 0.5
    assert summary["runs"][0]["file"] == "runs/a.json"

    write_summary(tmp_path, [*good, broken])
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_a_single_seed_has_null_instead_of_nan(history: dict[str, Any], tmp_path: Path) -> None:
    write_summary(tmp_path, [result(outcome_of(history), 0)])
    (configuration,) = json.loads((tmp_path / "summary.json").read_text())["configurations"]
    assert configuration["mean"]["sd"] is configuration["mean"]["low"] is None


def test_the_table_has_a_column_for_every_setting_that_varies(
    history: dict[str, Any], tmp_path: Path
) -> None:
    outcome = {**outcome_of(history), "metrics": {"error": 0.5}}
    runs = [result(outcome, 0, "a, b", width=4, rounds=2), result(outcome, 0, "c", width=8)]
    write_summary(tmp_path, runs)
    with (tmp_path / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["a, b", "c"]
    assert [row["settings.width"] for row in rows] == ["4", "8"]
    assert [row["settings.rounds"] for row in rows] == ["2", "30"], "30 is the default"
    assert (rows[0]["metrics.error"], rows[0]["error"]) == ("0.5", "")
    assert "data.alpha" not in rows[0], "the same for all"
    assert float(rows[0]["pooled"]) == outcome["pooled"]


def test_by_seed_refuses_incomplete_configurations(history: dict[str, Any]) -> None:
    runs = [result(outcome_of(history), seed) for seed in (0, 1)]
    assert by_seed(runs, "a", "pooled") == dict.fromkeys((0, 1), outcome_of(history)["pooled"])
    with pytest.raises(StudyError, match="there is no configuration 'aa'; did you mean a"):
        by_seed(runs, "aa", "pooled")
    with pytest.raises(StudyError, match="a, seed 0 has no poled; did you mean pooled"):
        by_seed(runs, "a", "poled")
    broken = RunResult(RunSpec("a", seed=2), Path("x"), {}, "it broke")
    with pytest.raises(StudyError, match="a, seed 2 has no result: it broke"):
        by_seed([*runs, broken], "a", "pooled")


def test_a_column_has_the_default_where_a_run_was_not_given_the_setting(
    history: dict[str, Any], tmp_path: Path
) -> None:
    outcome = outcome_of(history)
    runs = [
        result(outcome, 0, "plain"),
        result(outcome, 0, "sparse", sparsity="0.8", rounds=3),
        result(outcome, 0, "paper", profile="paper", rounds=3),
        result(outcome, 0, "same", local_epochs=5),
    ]
    write_summary(tmp_path, runs)
    with (tmp_path / "runs.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    settings = {name for name in rows["plain"] if name.startswith("settings.")}
    assert settings <= {
        f"settings.{name}" for name in ("sparsity", "rounds", "profile", "local_epochs")
    }
    assert rows["plain"]["settings.sparsity"] == RunSettings().sparsity
    assert rows["plain"]["settings.rounds"] == str(RunSettings().rounds)
    assert rows["sparse"]["settings.sparsity"] == "0.8"
    paper = runs[2].spec.run_settings()
    assert rows["paper"]["settings.sparsity"] == paper.sparsity
    assert paper.sparsity != RunSettings().sparsity, "the profile's is another"
