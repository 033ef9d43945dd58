"""Hours and memory of a study before it starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode
from ssfl.program.settings.loading import Setting
from ssfl.study import estimate as module
from ssfl.study.data import DataSpec
from ssfl.study.errors import StudyError
from ssfl.study.estimate import Measured, estimate, is_long, measure, seconds_of
from ssfl.study.run_spec import RunSpec
from ssfl.tools.main import main

PAPER = RunSpec("a", DataSpec("cifar10", 100), {"profile": "paper", "clients_per_round": 10})
SMALL = RunSpec(
    "a", DataSpec(clients=6, samples_per_client=40), {"model": "mlp", "width": 4, "rounds": 2}
)


def test_a_run_takes_its_steps_its_rounds_its_tests_and_its_personal_models() -> None:
    measured = Measured(step_s=0.01, round_s=1.0, samples=500, tests=10_000, memory=0)
    plain = replace(PAPER, settings={**PAPER.settings, "personalize_epochs": 0})
    steps = 500 * 10 * 5 * 32
    evaluations = 500 // 10 + 1
    training = 500 * 10 * 1.0 + steps * 0.01
    tests = evaluations * 10_000 / 3 * 0.01 / 16
    assert seconds_of(plain, measured) == pytest.approx(training + tests)
    personal = 100 * 5 * 32 * 0.01
    assert seconds_of(PAPER, measured) == pytest.approx(training + tests + personal)


def test_all_clients_of_a_gossip_strategy_train() -> None:
    measured = Measured(step_s=0.01, round_s=0.0, samples=500, tests=0, memory=0)
    own: dict[str, Setting] = {"personalize_epochs": 0}
    sampled = replace(PAPER, settings={**PAPER.settings, **own})
    gossip: dict[str, Setting] = {"strategy": "dispfl", "clients_per_round": 0, **own}
    everyone = replace(PAPER, settings={**PAPER.settings, **gossip})
    assert seconds_of(everyone, measured) == pytest.approx(10 * seconds_of(sampled, measured))


def test_one_run_of_the_paper_is_long_and_a_few_digits_are_not() -> None:
    assert is_long([PAPER])
    assert not is_long([SMALL] * 10)


@pytest.mark.system
def test_a_trial_measures_a_step_the_samples_and_what_clients_keep() -> None:
    dense = measure(replace(SMALL, settings={**SMALL.settings, "strategy": "fedavg"}))
    assert dense.step_s > 0 and dense.samples == 40 and dense.memory > 0
    assert dense.tests > 100 and dense.gpu_memory == 0
    wide = {**SMALL.settings, "width": 400, "strategy": "d-psgd"}
    few, many = (
        measure(
            replace(SMALL, data=replace(SMALL.data, clients=n, samples_per_client=2), settings=wide)
        )
        for n in (6, 600)
    )
    # 594 models more, each kept by its client and by the relay.
    assert many.memory - few.memory > 594 * 2 * 4 * 64 * 400


def test_runs_that_differ_in_seed_and_sparsity_are_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[RunSpec] = []

    def measured(specs: list[RunSpec]) -> list[Measured]:
        tried.extend(specs)
        return [Measured(1.0, 0.0, 40, 0, 1000, 10)] * len(specs)

    monkeypatch.setattr(module, "_measure_all", measured)
    specs = [
        replace(SMALL, seed=seed, settings={**SMALL.settings, "sparsity": sparsity})
        for seed in (0, 1)
        for sparsity in ("0.5", "0.9")
    ]
    one, two = estimate(specs, workers=1), estimate(specs, workers=2)
    assert len(tried) == 2, "one for each estimate"
    assert (one.runs, one.memory, one.gpu_memory) == (4, 1000, 10)
    assert (two.seconds, two.memory, two.gpu_memory) == (one.seconds / 2, 2000, 20)


@pytest.mark.system
def test_a_data_set_that_is_missing_is_named() -> None:
    missing = replace(SMALL, data=replace(SMALL.data, source="tiny-imagenet"))
    with pytest.raises(StudyError, match="a cannot be tried: tiny-imagenet not found"):
        estimate([missing])


@pytest.mark.system
def test_a_folder_of_shards_is_tried_as_it_is(tmp_path: Path) -> None:
    assert main(["shards", "--clients", "3", "--out", str(tmp_path)]) == ExitCode.DONE
    found = measure(replace(SMALL, data=DataSpec(str(tmp_path))))
    assert found.step_s > 0 and found.samples > 400
