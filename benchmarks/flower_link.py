"""What does a round of dense FedAvg cost in Flower, on the links of `ssfl compare --budget`?

    python -m benchmarks.flower_link

One client of Flower (`start_server`, `start_client`, defaults) echoes a dense model over an
emulated link (shaped_link.py), for models of 1, 10 and 100 times the weights of cnn-small. A pause
of a second in each round stands for training, because TCP shrinks the window of an idle connection.
The seconds of a round are without the pause; bytes are TCP payload. docs/when-to-use.md uses
the result. Needs root, for the link.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.environment import RESULTS, ROOT, write
from benchmarks.shaped_link import ShapedLink, shaped_link
from benchmarks.simulator_speed_runs import NoFlower, install_flower

from ssfl.tools.plan.budget import LINKS, SIZES

PINS = Path(__file__).with_name("flower_link.txt")
APP = Path(__file__).with_name("flower_link_app.py")
WEIGHTS = 35_434  # of cnn-small
PAUSE_S = 1.0
PORT = 8080
START_S = 120.0  # for both programs to start


def run(link: ShapedLink, flower: Path, values: int, rounds: int, timeout_s: float) -> list[float]:
    """Run a federation of one over the link; return the seconds of each round but the first."""
    address = f"{link.coordinator.address}:{PORT}"
    numbers = (address, str(values), str(rounds), str(PAUSE_S))
    environment = {
        "PYTHONPATH": str(flower),
        "PATH": "/usr/bin:/bin",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    processes = [
        subprocess.Popen(
            side.command(sys.executable, str(APP), end, *numbers), env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for end, side in (("server", link.coordinator), ("client", link.clients))
    ]  # fmt: skip
    try:
        output, _ = processes[0].communicate(timeout=timeout_s)
        processes[1].wait(timeout=START_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    # The first round waits until the client has started.
    return [float(seconds) for seconds in json.loads(output.splitlines()[-1])[1:]]


def measure(flower: Path, rounds: int) -> list[dict[str, Any]]:
    """Return seconds and bytes of a round for each link and size."""
    rows = []
    for name, link in LINKS.items():
        if link is None:
            continue
        for size in SIZES:
            values = size * WEIGHTS
            expected_s = rounds * (PAUSE_S + link.down_s(4 * values) + link.up_s(4 * values))
            with shaped_link(link.up_bits_per_s, link.down_bits_per_s, link.rtt_s) as shaped:
                seconds = run(shaped, flower, values, rounds, START_S + 3 * expected_s)
                counts = shaped.counts()
            row = {
                "link": name, "size": size, "values": values, "seconds": seconds,
                "median_s": statistics.median(seconds),
                "bytes_up": counts["up"]["distinct"] / rounds,
                "bytes_down": counts["down"]["distinct"] / rounds,
            }  # fmt: skip
            print(
                f"{name}, {values:,} values: {row['median_s']:.2f} s a round, "
                f"{row['bytes_up']:,.0f} B up, {row['bytes_down']:,.0f} B down", flush=True,
            )  # fmt: skip
            rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flower", type=Path, default=ROOT / "runs" / "flower-link")
    parser.add_argument("--out", type=Path, default=RESULTS / "when-to-use")
    args = parser.parse_args()
    began_s = time.monotonic()
    try:
        flower = install_flower(args.flower, PINS)
    except NoFlower as error:
        print(error, file=sys.stderr)
        return 1
    rows = measure(flower, args.rounds)
    write(args.out / "flower.json", {"rows": rows, "duration_s": time.monotonic() - began_s})
    return 0


if __name__ == "__main__":
    sys.exit(main())
