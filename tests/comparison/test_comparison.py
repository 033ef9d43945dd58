"""Methods, trials and the choice of learning rates."""

from pathlib import Path
from typing import Any

import pytest

from ssfl.comparison.comparison import BUDGETS, METHODS, read_comparison, read_rates, stored_rates
from ssfl.study.errors import StudyError
from ssfl.study.sweep import RunResult

FILE = """
seeds = 2
[data]
clients = 4
validation = 0.1
[settings]
model = "mlp"
rounds = 4
[choose]
rates = [0.1, 0.3]
seeds = [100, 101]
[[variant]]
name = "SSFL"
[[variant]]
name = "dense"
strategy = "fedavg"
rounds = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "methods.toml"
    path.write_text(FILE)
    return path


def refused(file: Path, old: str, new: str) -> str:
    assert old in FILE
    file.write_text(FILE.replace(old, new))
    with pytest.raises(StudyError) as caught:
        read_comparison(file).trials()
    return str(caught.value)


def test_all_methods_have_the_same_trials_on_seeds_that_do_not_report(file: Path) -> None:
    comparison = read_comparison(file)
    trials, reported = comparison.trials(), comparison.specs()
    assert [(one.name, one.seed) for one in trials if one.name.startswith("dense")] == [
        (f"dense learning_rate={rate}", seed) for rate in (0.1, 0.3) for seed in (100, 101)
    ]
    assert len(trials) == 2 * len([one for one in trials if one.name.startswith("dense")])
    assert {one.seed for one in trials}.isdisjoint(one.seed for one in reported)
    assert all(one.tests_apart for one in (*trials, *reported))
    assert {one.data for one in trials} == {one.data for one in reported}


def test_the_rate_with_the_best_mean_on_validation_samples_is_used(file: Path) -> None:
    comparison = read_comparison(file)
    better = {("SSFL", 0.3): 0.9, ("dense", 0.1): 0.8}

    def result(spec: Any) -> RunResult:
        name, _, rate = spec.name.rpartition(" learning_rate=")
        value = better.get((name, float(rate)), 0.5) + (spec.seed - 100) * 0.01
        outcome = {"rounds": 20, "validation_mean_last_10": value, "validation_mean": 0.1}
        return RunResult(spec, Path("a"), outcome)

    rates = comparison.chosen([result(spec) for spec in comparison.trials()])
    assert rates["methods"]["SSFL"] == {
        "learning_rate": 0.3, "trials": {"0.1": 0.505, "0.3": 0.905}
    }  # fmt: skip
    used = {spec.name: spec.run_settings().learning_rate for spec in comparison.specs(rates)}
    assert used == {"SSFL": 0.3, "dense": 0.1}


def test_a_method_without_a_complete_trial_keeps_its_rate(file: Path) -> None:
    comparison = read_comparison(file)
    results = [RunResult(spec, Path("a"), {}, "it broke") for spec in comparison.trials()]
    rates = comparison.chosen(results)
    assert rates["methods"]["dense"] == {"learning_rate": None, "trials": {}}
    assert {spec.run_settings().learning_rate for spec in comparison.specs(rates)} == {0.1}


def test_rates_are_refused_if_their_seeds_report_or_their_methods_are_others(file: Path) -> None:
    comparison = read_comparison(file)
    methods = {"SSFL": {"learning_rate": 0.3, "trials": {}}}
    with pytest.raises(StudyError, match="seed 1 would choose a learning rate and report"):
        comparison.with_seeds([1]).specs({"seeds": [1], "methods": methods})
    with pytest.raises(StudyError, match="are those of other methods, such as 'Other'"):
        comparison.specs({"seeds": [100], "methods": {"Other": methods["SSFL"]}})


def test_rounds_given_do_not_lengthen_a_shorter_method(file: Path) -> None:
    comparison = read_comparison(file)
    for rounds, expected in ((9, [9, 3]), (2, [2, 2])):
        specs = comparison.with_seeds([0]).with_rounds(rounds).specs()
        assert [spec.run_settings().rounds for spec in specs] == expected


def test_faults_are_named_with_the_remedy(file: Path) -> None:
    assert "seed 1 would choose a learning rate and report" in refused(
        file, "seeds = [100, 101]", "seeds = [1, 101]"
    )
    assert "set `validation` in [data]" in refused(file, "validation = 0.1", "")
    assert "needs [choose]" in refused(file, "rates = [0.1, 0.3]", "")
    assert "different numbers above 0" in refused(file, "rates = [0.1, 0.3]", "rates = [0.1, 0]")
    assert "a list of whole numbers" in refused(file, "seeds = [100, 101]", "seeds = 2")
    assert "is a table with `rates` and `seeds`" in refused(file, "rates =", "rate =")
    assert "and the method 'dense' sets it" in refused(
        file, 'name = "dense"', 'name = "dense"\nlearning_rate = 0.1'
    )
    assert "has no grid" in refused(file, "[choose]", "[grid]\nsparsity = [0.5]\n[choose]")
    assert "'a, b' in" in refused(file, 'name = "dense"', 'name = "a, b"')
    head = FILE.partition("[[variant]]")[0]
    file.write_text(head)
    with pytest.raises(StudyError, match=r"has no methods: write each as \[\[variant\]\]"):
        read_comparison(file)


def test_an_unknown_method_is_refused_with_the_closest_name(file: Path) -> None:
    with pytest.raises(StudyError, match=r"an unknown method, 'desne'; did you mean dense"):
        read_comparison(file).only(["desne"])


def test_a_file_that_has_no_rates_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    with pytest.raises(StudyError, match="cannot be read"):
        read_rates(path)
    for text in ("{", "[]", "{}", '{"format": 1, "methods": {"a": 5}}'):
        path.write_text(text)
        with pytest.raises(StudyError, match=r"is not a rates\.json that"):
            read_rates(path)


def test_the_built_in_methods_are_valid_and_differ() -> None:
    comparison = read_comparison(METHODS)
    specs = comparison.with_seeds([0]).specs()
    for spec in (*specs, *comparison.trials()):
        spec.run_settings()
    assert len({str(sorted(spec.settings.items())) for spec in specs}) == len(specs) > 20
    (data,) = {spec.data for spec in specs}
    assert (data.clients, data.source) == (100, "fashion-mnist")
    assert {spec.run_settings().sparsity for spec in specs} == {"0.9"}
    if rates := stored_rates(METHODS):
        known = read_rates(rates)["methods"]
        assert set(known) == {spec.name for spec in specs}
        assert len({len(chosen["trials"]) for chosen in known.values()}) == 1


@pytest.mark.parametrize("file", BUDGETS, ids=lambda file: file.stem)
def test_the_methods_of_a_budget_begin_with_dense_training(file: Path) -> None:
    comparison = read_comparison(file)
    specs = comparison.with_seeds([0]).specs()
    for spec in (*specs, *comparison.trials()):
        spec.run_settings()
    assert specs[0].name == "dense float32" and len(specs) > 8
    assert {spec.run_settings().rounds for spec in specs} == {60}
