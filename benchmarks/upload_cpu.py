"""Does an upload cost the coordinator more CPU when the federation is larger?

    python -m benchmarks.upload_cpu

One run of benchmarks/many_clients.py for each number of clients: a real `ssfl-coordinator`, a TCP
connection per client, and all uploads of a round at the same moment. The figure is the
coordinator's CPU time from the first byte of a round's uploads to the last receipt, divided by the
number of clients: the median of the rounds. Writes benchmarks/results/upload_cpu.json and .png;
exit code 1 if an upload at the largest number costs more than the bar, relative to the smallest.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.many_clients import allow_files, measure

BAR = 1.3  # CPU per upload with the most clients, relative to the fewest


def cpu_ms(clients: int, rounds: int) -> dict[str, Any]:
    """Return the coordinator's CPU milliseconds per upload, round by round."""
    args = argparse.Namespace(
        clients=clients, masked=20_000, dense=100, rounds=rounds, idle_s=0.0, timeout_s=900.0
    )
    with tempfile.TemporaryDirectory(prefix="ssfl-upload-cpu-") as folder:
        result = asyncio.run(measure(args, Path(folder)))
    if result["model_digest"] != result["expected_digest"]:
        raise SystemExit(f"{clients} clients: the model differs from numpy's")
    marks = {mark["name"]: mark["cpu_s"] for mark in result["marks"]}
    each = [
        1000
        * (marks[f"round {n}: all accepted"] - marks[f"round {n}: all about to upload"])
        / clients
        for n in range(rounds)
    ]
    return {"clients": clients, "cpu_ms": each, "median_cpu_ms": statistics.median(each)}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw CPU per upload against the number of clients, with the bar."""
    import matplotlib.pyplot as plt

    clients = [row["clients"] for row in rows]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(clients, [row["median_cpu_ms"] for row in rows], "o-", label="coordinator")
    axes.axhline(BAR * rows[0]["median_cpu_ms"], ls="--", color="0.5", label=f"bar, {BAR}x")
    axes.set(xlabel="clients in a round", ylabel="CPU per upload, ms", ylim=0)
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    args = parser.parse_args()
    allow_files(4 * max(args.clients) + 500)
    rows = []
    for clients in sorted(args.clients):
        rows.append(cpu_ms(clients, args.rounds))
        print(f"{clients:>6} clients  {rows[-1]['median_cpu_ms']:6.2f} ms of CPU per upload")
    ratio = rows[-1]["median_cpu_ms"] / rows[0]["median_cpu_ms"]
    met = ratio <= BAR
    print(f"ratio {ratio:.2f}, bar {BAR}: {'met' if met else 'FAILED'}")
    environment.write(args.out / "upload_cpu.json", {"rows": rows, "ratio": ratio, "bar": BAR})
    plot(rows, args.out / "upload_cpu.png")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
