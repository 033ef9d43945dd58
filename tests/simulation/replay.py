"""`python -m simulation.replay SEED`: run one seed again and print everything that happens."""

import sys
from dataclasses import fields

from simulation.plan import Plan, plan_of
from simulation.seeds import run_seed
from ssfl.method.settings import RunSettings


def main(argv: list[str]) -> int:
    """Print the plan of the seed, its trace and its outcome."""
    seed = int(argv[0])
    print(described(plan_of(seed)))
    outcome = run_seed(seed)
    print(*outcome.trace, sep="\n")
    print(outcome.violation or f"all is well: model {outcome.digest[:16]}")
    return 1 if outcome.violation else 0


def described(plan: Plan) -> str:
    """Return the unusual parts of a plan as text."""
    usual, settings = RunSettings(), plan.settings
    changed = [
        f"{one.name}={getattr(settings, one.name)!r}"
        for one in fields(settings)
        if getattr(settings, one.name) != getattr(usual, one.name)
    ]
    clients = ", ".join(f"{one.name} ({one.num_samples} samples)" for one in plan.clients)
    aim = f"dies at {plan.aim}, passage {plan.passage}; " if plan.aim else ""
    return (
        f"seed {plan.seed}: {', '.join(changed)}\n"
        f"clients: {clients}; {plan.upload_slots} upload slots\n"
        f"the coordinator {aim}{len(plan.episodes)} other troubles in {plan.trouble_s:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
