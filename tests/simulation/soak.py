"""`python -m simulation.soak [N]`: the simulation of N seeds (5000 by default), with progress."""

import sys
import time

from simulation.plan import POINTS
from simulation.seeds import Tally, describe, run_seeds

SEEDS = 5000
EVERY_S = 5.0


def main(argv: list[str]) -> int:
    """Run seeds 0 to N - 1; stop at the first that fails."""
    count = int(argv[0]) if argv else SEEDS
    began_s = said_s = time.monotonic()
    tally = Tally()
    for tally in run_seeds(range(count)):
        now_s = time.monotonic()
        if tally.failures:
            print(describe(tally.failures[0], lines=200))
            return 1
        if now_s - said_s >= EVERY_S:
            said_s = now_s
            rate = tally.runs / (now_s - began_s)
            left_s = (count - tally.runs) / rate
            print(f"{tally.runs} of {count} seeds, {left_s:.0f} s left", flush=True)
    print(
        f"{tally.runs} seeds, {tally.seconds / 3600:.0f} h of virtual time, "
        f"{tally.strikes.total()} crashes at {len(tally.strikes)} of {len(POINTS)} failpoints, "
        f"{tally.compared} reproducible runs like their undisturbed ones: all is well "
        f"({time.monotonic() - began_s:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
