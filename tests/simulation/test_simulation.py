"""Hundreds of seeds: the real coordinator under crashes, cuts, full disks and odd clients.

Each seed kills the coordinator at one failpoint and injects other random faults (plan.py). The
promises are checked throughout (checker.py). `make soak-simulation` runs thousands of seeds.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulation.harness import calm, simulate
from simulation.plan import POINTS, plan_of
from simulation.planted_bugs import PLANTED, Plant, folds_twice
from simulation.seeds import describe, run_seeds

TESTS = Path(__file__).resolve().parents[1]
SEEDS_PER_POINT = 1 if os.environ.get("SAMPLE") else 5  # `make check` takes a sample
NUM_SEEDS = max(40 * SEEDS_PER_POINT, SEEDS_PER_POINT * len(POINTS))
CATCH_WITHIN = 80  # seeds

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def test_every_seed_keeps_the_promises_and_every_failpoint_is_struck() -> None:
    began_s = time.process_time()
    tally = None
    for tally in run_seeds(range(NUM_SEEDS)):
        if tally.failures:
            pytest.fail(describe(tally.failures[0]), pytrace=False)
    assert tally is not None
    missed = {p: tally.strikes[p] for p in POINTS if tally.strikes[p] < SEEDS_PER_POINT}
    assert not missed, f"struck less than {SEEDS_PER_POINT} times"
    strategies = {plan_of(seed).settings.strategy for seed in range(NUM_SEEDS)}
    assert strategies == {"ssfl", "fedavg", "ditto", "feddst"}
    assert tally.compared >= NUM_SEEDS // 4
    assert tally.paused >= NUM_SEEDS // 8
    print(
        f"{NUM_SEEDS} seeds, {tally.strikes.total()} crashes at {len(POINTS)} failpoints, "
        f"{tally.paused} paused, {tally.compared} compared with their undisturbed run, "
        f"{tally.seconds / 3600:.1f} h of virtual time, {time.process_time() - began_s:.0f} s CPU"
    )


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    seeds = sorted(range(CATCH_WITHIN), key=lambda seed: seed != PLANTED[plant])
    assert any(simulate(plan_of(seed)).violation for seed in seeds), (
        f"{plant.__doc__} No check noticed it in {CATCH_WITHIN} seeds."
    )


def test_a_seed_gives_the_same_trace_twice() -> None:
    for seed in (7, 17, 46):
        assert simulate(plan_of(seed)).trace == simulate(plan_of(seed)).trace


def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    """The order of sets must not matter: strings hash differently there."""
    script = (
        "from simulation.plan import plan_of; from simulation.harness import simulate\n"
        "for seed in (7, 46): print(*simulate(plan_of(seed)).trace, sep='\\n')"
    )
    traces = set()
    for hash_seed in ("1", "2"):
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        ran = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout
        traces.add(ran.stdout)
    assert len(traces) == 1


def test_a_failing_seed_is_printed_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folds_twice(monkeypatch)
    tally = next(tally for tally in run_seeds(range(CATCH_WITHIN)) if tally.failures)
    text = describe(tally.failures[0])
    seed = tally.failures[0].plan.seed
    assert "is not the exact mean of" in text
    assert f"python -m simulation.replay {seed}" in text


def test_a_run_without_faults_ends_with_all_clients() -> None:
    outcome = simulate(calm(plan_of(3)))
    assert not outcome.violation
    assert not outcome.strikes
    assert outcome.seconds < 400
