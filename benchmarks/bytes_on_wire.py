"""What is sent, in which encoding, and does the ledger agree with the kernel?

    python -m benchmarks.bytes_on_wire

1. The paper's table of encodings, from real payloads of ResNet-18, ResNet-50 and ResNet-110
   (bytes_encodings.py). Bar: its percentages, to the printed digit.
2. The bytes of a client, once (encoded from real saliency) and per round, and the round from which
   they are fewer than those of dense FedAvg (bytes_rounds.py).
3. Real runs of ResNet-18 over sockets, dense and sparse (bytes_run.py). Bar: for every connection
   and direction, the messages in ledger.csv are within 1 % of the kernel's count.

MB are 1000² bytes. Writes benchmarks/results/bytes_on_wire.json and .png; exit code 1 if a bar is
missed. About 2 minutes on two cores.
"""

import argparse
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from benchmarks import environment
from benchmarks.bytes_encodings import FEDERATION, EncodingRow, encode_all
from benchmarks.bytes_models import CASES, ImageSet, load_images
from benchmarks.bytes_plot import plot
from benchmarks.bytes_rounds import CLIENTS, SAMPLED, Budget, budgets
from benchmarks.bytes_run import ROUNDS, MeasuredRun, run

MB = 1e6
LOCAL_STEPS = 5
RUNS = {
    "dense FedAvg": ("--strategy=fedavg",),
    "50 % sparse": ("--sparsity=0.5",),
    "95 % sparse": ("--sparsity=0.95",),
}
WAYS = {
    "fedavg": "dense FedAvg",
    "paper": "as the paper counts",
    "ours": "ours, plain values",
}


def real_runs(images: ImageSet, local_steps: int) -> list[MeasuredRun]:
    """Run each federation in its own folder."""
    done = []
    for name, flags in RUNS.items():
        with tempfile.TemporaryDirectory(prefix="ssfl-bytes-") as folder:
            done.append(run(name, flags, images, local_steps, Path(folder)))
    return done


def show_encodings(rows: list[EncodingRow]) -> None:
    """Print table 1."""
    print(
        "1. Payload of one model, in per cent of dense. paper: density over all parameters;\n"
        "   ours: over conv and linear weights, norm and bias tensors always whole, which makes "
        "the difference.\n"
    )
    print(
        f"{'':<12}{'':>9}{'':<14}{'paper':>9}{'measured':>10}{'ours':>9}"
        f"{f'MB x {FEDERATION}':>12}{'ours':>10}"
    )
    for row in rows:
        printed = row.as_printed()
        word = "" if row.agrees else "  DIFFERS"
        print(
            f"{row.model:<12}{row.density:>7.2f}  {row.encoding:<14}"
            f"{'-' if printed is None else f'{printed:.1f} %':>9}"
            f"{row.percent(row.paper_bytes):>8.2f} %{row.percent(row.ours_bytes):>7.2f} %"
            f"{FEDERATION * row.paper_bytes / MB:>12.3f}{FEDERATION * row.ours_bytes / MB:>10.3f}"
            f"{word}"
        )
    print("   csr is computed, 4 (rows + 1) + 8 kept per tensor; the others were encoded.\n")


def show_budgets(found: list[Budget]) -> None:
    """Print table 2."""
    print(
        "2. MB of one client: once, and in a round it takes part in. own, server: rounds until\n"
        "   the total of a client, or of the server, is below that of dense FedAvg, if all of "
        f"{CLIENTS}\n   clients score and {SAMPLED} train in a round.\n"
    )
    print(
        f"{'':<12}{'':>9}{'':<21}{'weights':>9}{'scores':>9}{'mask':>8}{'once':>9}"
        f"{'up':>9}{'down':>9}{'own':>7}{'server':>8}"
    )
    for budget in found:
        for name, cost in budget.costs.items():
            rounds = budget.break_even(name)
            when = (
                f"{rounds['own_rounds']:>7.2f}{rounds['server_rounds']:>8.1f}"
                if name != "fedavg"
                else ""
            )
            print(
                f"{budget.model:<12}{budget.density:>7.2f}  {WAYS[name]:<21}"
                f"{cost.initial / MB:>9.3f}{cost.scores / MB:>9.3f}{cost.mask / MB:>8.3f}"
                f"{cost.once / MB:>9.3f}{cost.up / MB:>9.3f}{cost.down / MB:>9.3f}{when}"
            )
        print(f"{'':<23}mask of the coded scores: {budget.mask_overlap:.2%} of the exact one")
    print()


def show_runs(runs: list[MeasuredRun], found: list[Budget], local_steps: int) -> None:
    """Print table 3."""
    print(
        f"3. Real runs of ResNet-18, {ROUNDS} rounds of {local_steps} steps: the ledger's messages "
        "against the kernel's count\n   of the client's connection. socket: the count at the "
        "coordinator's end.\n"
    )
    print(
        f"{'':<15}{'':<8}{'':<6}{'payload':>13}{'messages':>13}{'socket':>13}{'kernel':>13}"
        f"{'kernel has more':>17}"
    )
    for measured in runs:
        for c in measured.connections:
            word = "" if c.agrees else "  FAILED"
            print(
                f"{measured.name:<15}{c.client:<8}{c.direction:<6}{c.payload_bytes:>13,}"
                f"{c.message_bytes:>13,}{c.socket_bytes:>13,}{c.kernel_bytes:>13,}"
                f"{c.difference:>17.4%}{word}"
            )
    plain = found[0].costs["fedavg"]
    print(
        "\n   MB of messages of one client, once and in the last round. plain, coded: rounds until "
        "the total\n   is below that of dense FedAvg, with 4 bytes per value or with values coded "
        "like ours.\n"
    )
    print(f"{'':<15}{'once':>9}{'up':>9}{'down':>9}{'plain':>8}{'coded':>8}")
    for measured in runs:
        cost = measured.cost()
        against = [cost.rounds_to_beat(other) for other in (plain, runs[0].cost())]
        when = "".join(f"{rounds:>8.2f}" for rounds in against) if measured is not runs[0] else ""
        print(
            f"{measured.name:<15}{cost.once / MB:>9.3f}"
            f"{cost.up / MB:>9.3f}{cost.down / MB:>9.3f}{when}"
        )
        forms = (f"{phase} {encoding}" for phase, encoding in measured.encodings().items())
        print(f"{'':<15}{'; '.join(forms)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument(
        "--local-steps", type=int, default=LOCAL_STEPS,
        help="of a round; the paper's 5 epochs of 500 samples are 157 and take many minutes",
    )  # fmt: skip
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = load_images()
    rows = [row for case in CASES for row in encode_all(case)]
    show_encodings(rows)
    found = [budget for case in CASES for budget in budgets(case, images)]
    show_budgets(found)
    runs = real_runs(images, args.local_steps)
    show_runs(runs, found, args.local_steps)
    environment.write(
        args.out / "bytes_on_wire.json",
        {
            "data": images.source,
            "torch": version("torch"),
            "local_steps": args.local_steps,
            "encodings": [row.to_dict() for row in rows],
            "clients": [client.to_dict() for client in found],
            "runs": [measured.to_dict() for measured in runs],
        },
    )
    if not args.no_plot:
        plot(rows, found, runs, args.out / "bytes_on_wire.png")
    met = all(row.agrees for row in rows) and all(measured.agrees for measured in runs)
    print("\nall bars met" if met else "\na bar was MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
