"""What does a bad link cost, with no setting tuned for it?

    python -m benchmarks.bad_link

5 Mbit/s, a round trip of 200 ms, 2 % packet loss each way, and the link is down for 4 s every 30 s.
There are two kinds of cuts: packets are lost and connections survive (`pause`), or the link
silently forgets every connection, like a router that restarts (`forget`). A client's scores and
its update of 21 MB go up; mask and final model come down. The client uses the transfers of
`ssfl-client` with default settings (big_client.py). A second client is next to the coordinator.

Extra bytes are the TCP payload bytes that came out of the link, minus the payload bytes that had
to cross it. shaped_link.py counts below TCP, so HTTP/2 frames and needless retransmissions are
included. The ledger's bytes are shown next to them. Bar: at most 5 % extra up the link.

Writes benchmarks/results/bad_link.json and .png; exit code 1 if the bar is not met, 0 with a
message if network namespaces are not available.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.coordinator_process import coordinator
from benchmarks.shaped_link import LinkFaults, LinkUnavailable, ShapedLink, shaped_link

from ssfl.program.exits import raise_on_sigterm

BITS_PER_S, RTT_S, LOSS = 5e6, 0.2, 0.02
CUT_EVERY_S, DOWN_S = 30.0, 4.0
MASKED = 10_500_000  # half of them kept: an update of 21 MB
BAR = 0.05
NEAR, FAR = "client_0", "client_1"
FLAGS = (
    "--clients=2", "--rounds=1", "--sparsity=0.5", "--evaluate-every=0", "--exit-when-done",
    "--reference-coding=off", "--insecure",
)  # fmt: skip
LOOK_S, SAMPLE_S = 0.1, 2.0


@contextmanager
def client(
    command: Sequence[str], address: str, number: int, masked: int, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a client that ends with the block."""
    program = str(Path(__file__).with_name("big_client.py"))
    with (folder / f"client_{number}.log").open("wb") as log:
        words = [sys.executable, program, address, str(number), str(masked), str(folder)]
        process = subprocess.Popen([*command, *words], stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def run(args: argparse.Namespace, faults: LinkFaults) -> dict[str, Any]:
    """Run a federation of two over the link; return its figures."""
    with (
        tempfile.TemporaryDirectory(prefix="ssfl-link-") as name,
        shaped_link(
            args.bits_per_s, args.bits_per_s, RTT_S, faults=faults, congestion_control=args.tcp
        ) as link,
    ):
        folder = Path(name)
        try:
            return _run(args, faults, link, folder)
        except Exception as error:
            for log in sorted(folder.glob("*.log")):
                error.add_note(f"--- {log.name}\n{log.read_text()[-4000:]}")
            raise


def _run(
    args: argparse.Namespace, faults: LinkFaults, link: ShapedLink, folder: Path
) -> dict[str, Any]:
    inside = link.coordinator.command()
    host = f"--host={link.coordinator.address}"
    with coordinator(folder, *FLAGS, host, inside=inside) as server:
        places = (link.coordinator.command(), link.clients.command())
        with (
            client(places[0], server.address, 0, args.masked, folder) as near,
            client(places[1], server.address, 1, args.masked, folder) as far,
        ):
            link.start_cuts()
            samples = watch(link, far, args)
            codes = [far.wait(), near.wait(args.timeout_s)]
        server.process.wait(args.timeout_s)
    if codes != [0, 0]:
        raise RuntimeError((folder / f"{FAR}.log").read_text())
    return {
        "loss": faults.loss,
        "cut_every_s": faults.cut_every_s,
        "down_s": faults.down_s,
        "forgets": faults.forgets,
        "congestion_control": args.tcp,
        **figures(folder, link.counts()),
        "samples": samples,
    }


def watch(
    link: ShapedLink, far: "subprocess.Popen[bytes]", args: argparse.Namespace
) -> list[tuple[float, int, int]]:
    """Return (seconds, bytes up, bytes down) until the client has ended; make scheduled cuts."""
    began_s, cut_at = time.monotonic(), list(args.cut_at)
    samples: list[tuple[float, int, int]] = []
    while far.poll() is None:
        now_s = time.monotonic() - began_s
        if now_s > args.timeout_s:
            raise RuntimeError(f"the client did not end within {args.timeout_s:g} s")
        counts = link.counts()
        if cut_at and counts["up"]["distinct"] >= cut_at[0]:
            link.cut()
            del cut_at[0]
        if not samples or now_s >= samples[-1][0] + SAMPLE_S:
            place = counts["up"]["distinct"], counts["down"]["distinct"]
            samples.append((round(now_s, 1), *place))
        time.sleep(LOOK_S)
    return samples


def figures(folder: Path, counts: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Compare the bytes that crossed the link with those that had to.

    The second client, next to the coordinator, gives the bytes that had to cross it.
    """
    booked = payloads(folder / "state" / "ledger.csv")
    result: dict[str, Any] = {}
    for way in ("up", "down"):
        needed, by_ledger = booked[NEAR, way], booked[FAR, way]
        result[way] = {
            "needed_bytes": needed,
            "ledger_bytes": by_ledger,
            "ledger_extra": by_ledger / needed - 1,
            **counts[way],
            "extra": counts[way]["delivered"] / needed - 1,
            "distinct_extra": counts[way]["distinct"] / needed - 1,
            "retransmitted": counts[way]["offered"] / counts[way]["distinct"] - 1,
        }
    log = (folder / f"{FAR}.log").read_text()
    result["connections"] = 1 + log.count("cannot reach the coordinator, retrying")
    result["trained"] = len(re.findall(r" trained ", log))
    return result


def payloads(path: Path) -> dict[tuple[str, str], int]:
    """Return the payload bytes by client and direction."""
    totals: dict[tuple[str, str], int] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            place = row["client"], row["direction"]
            totals[place] = totals.get(place, 0) + int(row["payload_bytes"] or 0)
    return totals


def show(results: list[dict[str, Any]]) -> bool:
    """Print the table; return True if the bar is met."""
    met = True
    print(f"{'cuts':<10} {'TCP':<6} {'s':>5} {'tries':>5}  up: needed MB, extra, by ledger"
          "   down: needed MB, extra")  # fmt: skip
    for result in results:
        up, down = result["up"], result["down"]
        fine = up["extra"] <= BAR and result["trained"] == 1
        met &= fine
        print(
            f"{kind(result):<10} {result['congestion_control']:<6} {result['seconds']:>5.0f} "
            f"{result['connections']:>5}  {up['needed_bytes'] / 1e6:.1f}, {up['extra']:.2%}, "
            f"{up['ledger_extra']:.2%} {'met' if fine else 'FAILED'}"
            f"   {down['needed_bytes'] / 1e6:.1f}, {down['extra']:.2%}"
        )
    return met


def kind(result: dict[str, Any]) -> str:
    if not result["cut_every_s"]:
        return "none"
    return "forget" if result["forgets"] else "pause"


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Draw megabytes up and down over time."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(results), figsize=(5.5 * len(results), 4), layout="constrained", squeeze=False
    )
    for axis, result in zip(axes[0], results, strict=True):
        times, up, down = zip(*result["samples"], strict=True)
        axis.plot(times, [count / 1e6 for count in up], label="up: scores, update")
        axis.plot(times, [count / 1e6 for count in down], label="down: mask, final model")
        every_s = result["cut_every_s"]
        cut_s = every_s
        while every_s and cut_s < times[-1]:
            axis.axvspan(cut_s, cut_s + result["down_s"], color="#f3c6c6", lw=0)
            cut_s += every_s
        axis.set(xlabel="seconds", ylabel="MB out of the link", xlim=0, ylim=0)
        extra = result["up"]["extra"]
        axis.set_title(
            f"cuts: {kind(result)}, {result['congestion_control']}, {extra:.1%} extra up",
            fontsize=10,
        )
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    raise_on_sigterm()  # remove the link on SIGTERM, too
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--masked", type=int, default=MASKED, help="weights under the mask")
    parser.add_argument("--bits-per-s", type=float, default=BITS_PER_S)
    parser.add_argument("--cut-every-s", type=float, default=CUT_EVERY_S)
    parser.add_argument("--down-s", type=float, default=DOWN_S)
    parser.add_argument("--cuts", nargs="+", default=["pause", "forget"],
                        choices=["none", "pause", "forget"])  # fmt: skip
    parser.add_argument(
        "--cut-at", nargs="*", type=int, default=[], help="further cuts, by bytes sent up"
    )
    parser.add_argument("--tcp", default="bbr", help="congestion control, at both ends")
    parser.add_argument("--timeout-s", type=float, default=1800.0)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    results = []
    try:
        for cuts in args.cuts:
            every_s = 0.0 if cuts == "none" else args.cut_every_s
            faults = LinkFaults(LOSS, every_s, args.down_s, forgets=cuts == "forget")
            began_s = time.monotonic()
            result = run(args, faults)
            results.append({**result, "seconds": time.monotonic() - began_s})
    except LinkUnavailable as error:
        print(f"not measured: {error}")
        return 0
    whole = {"bits_per_s": args.bits_per_s, "rtt_s": RTT_S, "runs": results}
    environment.write(args.out / "bad_link.json", whole)
    if not args.no_plot:
        plot(results, args.out / "bad_link.png")
    return 0 if show(results) else 1


if __name__ == "__main__":
    sys.exit(main())
