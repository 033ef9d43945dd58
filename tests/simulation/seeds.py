"""Run seeds one after the other; count failures and hits of each failpoint."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from simulation.harness import Outcome, calm, simulate
from simulation.plan import Plan, plan_of


@dataclass
class Tally:
    """The combined outcome of some seeds."""

    runs: int = 0
    compared: int = 0  # with the undisturbed run
    paused: int = 0  # by their operator
    strikes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # virtual
    failures: list[Outcome] = field(default_factory=list)


def run_seed(seed: int) -> Outcome:
    """Run a seed; a reproducible run must end like the same run without faults."""
    plan = plan_of(seed)
    outcome = simulate(plan)
    if outcome.violation or not plan.settings.reproducible:
        return outcome
    return _compared(outcome, plan)


def _compared(outcome: Outcome, plan: Plan) -> Outcome:
    quiet = simulate(calm(plan))
    if quiet.violation:
        return quiet
    if quiet.digest != outcome.digest:
        ends = f"ended with {outcome.digest[:16]}, undisturbed with {quiet.digest[:16]}"
        return outcome.but(f"a reproducible run {ends}")
    return outcome.but("", compared=True)


def run_seeds(seeds: Iterable[int]) -> Iterator[Tally]:
    """Yield the tally after each seed."""
    tally = Tally()
    for seed in seeds:
        outcome = run_seed(seed)
        tally.runs += 1
        tally.compared += outcome.compared
        tally.paused += any("RunPaused" in line for line in outcome.trace)
        tally.strikes += outcome.strikes
        tally.seconds += outcome.seconds
        if outcome.violation:
            tally.failures.append(outcome)
        yield tally


def describe(outcome: Outcome, lines: int = 40) -> str:
    """Return a failure as text: the end of its trace, and the command to replay it."""
    seed = outcome.plan.seed
    return "\n".join(
        [
            f"seed {seed}: {outcome.violation.strip().splitlines()[-1]}",
            *outcome.trace[-lines:],
            f"replay it: PYTHONPATH=tests python -m simulation.replay {seed}",
        ]
    )
