"""How fast are the hot paths, in multiples of a memcpy of the same float32 bytes?

    python -m benchmarks.codec_speed

One core; CPU time of the thread, the minimum of several turns (codec_cases.py). Bars apply where
the memcpy has 400 MB, more than any cache, and for Top-k also at the size of ResNet-18. The 4.5 MB
of a ResNet-18 update are shown next to them. Checksums are measured separately, with their share of
a coordinator's round (checksum_cases.py); packages that are not installed are marked. Needs 5 GB of
memory. Writes benchmarks/results/codec_speed.json and .png; exit code 1 if a bar is missed.
"""

import argparse
import asyncio
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import checksum_cases, codec_cases, environment
from benchmarks.codec_cases import LARGE, RESNET18, UPDATE, SpeedRow

from ssfl.program.malloc import keep_chunk_buffers

MAX_EXTRA = 0.25  # share of the array: extra memory that Top-k may use


def measure_all() -> dict[str, Any]:
    """Measure everything, on one core."""
    keep_chunk_buffers()  # as coordinator and client do at their start
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows: list[SpeedRow] = []
    for size, budget_s in ((UPDATE, 3.0), (RESNET18, 5.0), (LARGE, 15.0)):
        rows += codec_cases.value_rows(size, budget_s)
    rows += codec_cases.model_rows(5.0)
    top_k = codec_cases.top_k_rows(RESNET18, [*codec_cases.SCORES], 1.0)
    top_k += codec_cases.top_k_rows(LARGE, ["|N * N|", "layers"], 4.0)
    checksums = checksum_cases.checksum_rows(4.0)
    without = checksum_cases.sha256_without_instructions()
    return {
        "rows": [asdict(row) for row in rows],
        "top_k": top_k,
        "checksums": checksums,
        "sha_instructions": checksum_cases.has_sha_instructions(),
        "sha256_gb_per_s_without_instructions": without,
    }


def measure_round(result: dict[str, Any]) -> dict[str, Any]:
    """Measure a coordinator's round, and the share that one pass of each checksum would take."""
    round_s = asyncio.run(checksum_cases.coordinator_cpu_s())
    shares = {
        row["name"]: 4 * UPDATE / row[f"gb_per_s_{UPDATE}"] / 1e9 / round_s
        for row in result["checksums"]
        if row["installed"]
    }
    return {"coordinator_cpu_s_per_client_and_round": round_s, "share_of_a_pass": shares}


def missed(result: dict[str, Any]) -> list[str]:
    """Return the cases that are over their bar, inexact or too large."""
    late = [
        f"{row['name']}, {row['values']:,} values: {row['times_memcpy']:.1f} times"
        for row in (*result["rows"], *result["top_k"])
        if row["bar"] is not None and row["times_memcpy"] > row["bar"]
    ]
    wrong = [f"{row['name']}: not exact" for row in result["top_k"] if not row["exact"]]
    large = [
        f"{row['name']}: {row['extra_bytes']:,} extra bytes"
        for row in result["top_k"]
        if row["extra_bytes"] > MAX_EXTRA * 4 * row["values"]
    ]
    return late + wrong + large


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    print(f"{'':<50}{'values':>13}{'ms':>9}{'GB/s':>7}{'x memcpy':>10}{'bar':>5}")
    for row in (*result["rows"], *result["top_k"]):
        speed = 4 * row["values"] / row["seconds"] / 1e9
        bar = f"{row['bar']:g}" if row["bar"] else ""
        note = ""
        if "extra_bytes" in row:
            exact = "exact" if row["exact"] else "NOT EXACT"
            note = f"  {exact}, {row['extra_bytes'] / 1e6:.1f} MB extra"
        print(
            f"{row['name']:<50}{row['values']:>13,}{row['seconds'] * 1e3:>9.2f}{speed:>7.2f}"
            f"{row['times_memcpy']:>10.2f}{bar:>5}{note}"
        )
    shares = result["round"]["share_of_a_pass"]
    print(f"\n{'checksum or digest':<24}{'GB/s 4.5 MB':>12}{'400 MB':>8}", end="")
    print(f"{'x memcpy':>10}{'of a round':>12}")
    for row in result["checksums"]:
        if not row["installed"]:
            print(f"{row['name']:<24}not installed")
            continue
        print(
            f"{row['name']:<24}{row[f'gb_per_s_{UPDATE}']:>12.2f}{row[f'gb_per_s_{LARGE}']:>8.2f}"
            f"{row[f'times_memcpy_{LARGE}']:>10.1f}{shares[row['name']]:>12.1%}"
        )
    without = result["sha256_gb_per_s_without_instructions"]
    if without is not None:
        print(f"SHA-256 without the processor's SHA instructions: {without:.2f} GB/s")
    cpu_ms = result["round"]["coordinator_cpu_s_per_client_and_round"] * 1e3
    print(f"one client's round of ResNet-18 at 90 %: {cpu_ms:.1f} ms of the coordinator's CPU")
    for line in missed(result):
        print(f"MISSED  {line}")


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the multiples with their bars, and the checksums."""
    import matplotlib.pyplot as plt

    rows = [
        row
        for row in (*result["rows"], *result["top_k"])
        if row["name"] != "memcpy" and (row["bar"] or row["values"] == RESNET18)
    ]
    names = [f"{row['name']}  {row['values'] * 4 / 1e6:.0f} MB" for row in rows]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 0.26 * len(rows) + 1.2), layout="constrained", width_ratios=(3, 1)
    )
    left.barh(names, [row["times_memcpy"] for row in rows], color="C0")
    for place, row in enumerate(rows):
        if row["bar"]:
            left.plot([row["bar"]] * 2, [place - 0.45, place + 0.45], color="C3", linewidth=2)
    left.set_xscale("log")
    left.set_xlabel("times the memcpy of the same float32 bytes; red: bar")
    found = [row for row in result["checksums"] if row["installed"]]
    right.barh([row["name"] for row in found], [row[f"gb_per_s_{UPDATE}"] for row in found])
    right.set_xlabel("GB/s over 4.5 MB")
    for axis in (left, right):
        axis.invert_yaxis()
        axis.tick_params(labelsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    result = measure_all()
    if cores:
        os.sched_setaffinity(0, cores)  # the coordinator may use all cores
    result["round"] = measure_round(result)
    environment.write(args.out / "codec_speed.json", result)
    if not args.no_plot:
        plot(result, args.out / "codec_speed.png")
    show(result)
    return 1 if missed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
