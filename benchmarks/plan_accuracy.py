"""Do the bytes and times of a run match `ssfl plan`?

    sudo .venv/bin/python -m benchmarks.plan_accuracy

A real `ssfl-coordinator` and clients (async_client.py) at the two ends of a shaped link
(shaped_link.py), with as many values as a ResNet-18 has at 90 % sparsity, and a tenth of that.
Bytes come from the coordinator's ledger. Seconds come from the clients: a base from the request to
its last byte, an upload from its header to its receipt. Between transfers a client waits for a
second, as if it trained, so that TCP starts slowly as in a real run.

The last scenario is a small real federation (`ssfl-client`, scikit-learn's digits) with the default
encodings of such a link: compact scores, sorted masks, values coded against the previous base.
Those sizes depend on the data; each must lie in the expected range of the plan and under its
bound.

Several clients at the far end share the link, as they would share the coordinator's; the plan
takes that into account. Writes benchmarks/results/plan_accuracy.json and .png; exit code 1 if a
number is off by more than its bar, 2 if no link can be made.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.async_client import AsyncClient, ReceivedTask
from benchmarks.coordinator_process import coordinator
from benchmarks.shaped_link import (
    CONGESTION_CONTROL,
    QUEUE_S,
    LinkUnavailable,
    ShapedLink,
    measure,
    shaped_link,
)
from benchmarks.workload import Workload, digest, manifest_of

from ssfl.method.settings import RunSettings
from ssfl.program.exits import raise_on_sigterm
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.result import RunPlan
from ssfl.tools.plan.sizes import Seconds
from ssfl.tools.plan.whole_run import PlannedSite, plan_run
from ssfl.v1 import transfer_pb2

BYTES_BAR = 0.01
SECONDS_BAR = 0.15
REST_S = 1.0  # longer than TCP's retransmission timeout, after which a connection starts slowly
NUM_SAMPLES = 100
UPLOAD_SLOTS = 8
TIMEOUT_S = 120.0
CODED_BITS_PER_S, CODED_RTT_S = 20e6, 0.05
ALL_ENCODINGS = tuple(
    value.number for value in transfer_pb2.Encoding.DESCRIPTOR.values if value.number
)
FIXED = ("scores", "values", "evaluation")  # phases whose encodings have a fixed size


@dataclass(frozen=True)
class Scenario:
    """A model's size, and the link of its clients."""

    name: str
    bits_per_s: float
    rtt_s: float
    num_masked: int
    num_dense: int
    clients: int
    rounds: int = 2

    @property
    def settings(self) -> RunSettings:
        return RunSettings(rounds=self.rounds, clients=self.clients, min_clients=1, scores="exact")

    def plan(self) -> RunPlan:
        """Return the plan of the scenario."""
        link = Link(self.bits_per_s, self.bits_per_s, self.rtt_s)
        manifest = manifest_of(self.num_masked, self.num_dense)
        site = PlannedSite(NUM_SAMPLES, 4)
        return plan_run(
            manifest,
            self.settings,
            UPLOAD_SLOTS,
            reference_coding=False,
            link=link,
            coordinator_bits_per_s=self.bits_per_s,
            site=site,
        )


SCENARIOS = (
    Scenario("ResNet-18, 20 Mbit/s, 50 ms", 20e6, 0.05, 11_164_352, 9_610, clients=1),
    Scenario("a tenth of it, 5 Mbit/s, 100 ms", 5e6, 0.1, 1_116_435, 961, clients=1),
    Scenario("a tenth of it, 4 clients share 20 Mbit/s", 20e6, 0.05, 1_116_435, 961, clients=4),
)


# -- the clients' end


async def take_part(scenario: Scenario, address: str) -> None:
    """Run all clients of a scenario; print one JSON line for each transfer."""
    weights = [NUM_SAMPLES] * scenario.clients
    workload = Workload(scenario.num_masked, scenario.num_dense, weights)
    initial = digest(workload.initial)
    clients = [
        AsyncClient(address, f"shard_{number:02}", NUM_SAMPLES, workload.manifest, ALL_ENCODINGS)
        for number in range(scenario.clients)
    ]
    for client in clients:  # in order: the first to join describes the model
        await client.join()
    first = await clients[0].receive(clients[0].ask(initial))
    assert first.kind == "initialize"
    await clients[0].initialize(initial)
    kind = ""
    while kind != "finish":
        await asyncio.sleep(REST_S)
        tasks = await asyncio.gather(*(_get(client, initial) for client in clients))
        kind = tasks[0].kind
        await asyncio.sleep(REST_S)
        answers = [
            _answer(client, task, workload, number)
            for number, (client, task) in enumerate(zip(clients, tasks, strict=True))
        ]
        await asyncio.gather(*answers)
    await asyncio.gather(*(client.close() for client in clients))


async def _get(client: AsyncClient, initial: bytes) -> ReceivedTask:
    """Return the next task, timed from the request to the last byte."""
    began_s = time.monotonic()
    task = await client.receive(client.ask(initial))
    if "base" in task.parts:
        _print_transfer("base", time.monotonic() - began_s)
    return task


async def _answer(client: AsyncClient, task: ReceivedTask, workload: Workload, number: int) -> None:
    began_s = time.monotonic()
    match task.kind:
        case "score":
            payload = _encoded(workload.scores(number))
            began_s = time.monotonic()
            await client.send_scores(task, payload)
            _print_transfer("scores", time.monotonic() - began_s)
        case "train":
            payload = _encoded(workload.update(task.work.round_number, number))
            began_s = time.monotonic()
            await client.send_update(task, payload)
            _print_transfer("update", time.monotonic() - began_s)
        case "evaluate":
            await client.send_evaluation(task)
        case "finish":
            await client.leave()


def _encoded(values: Any) -> memoryview:
    return memoryview(values.astype("<f4").tobytes())


def _print_transfer(what: str, seconds: float) -> None:
    print(json.dumps({"what": what, "seconds": seconds}), flush=True)


# -- the comparison


def run_scenario(scenario: Scenario) -> dict[str, Any]:
    """Run a scenario over its link; return planned and measured figures."""
    rate = scenario.bits_per_s
    with (
        tempfile.TemporaryDirectory(prefix="ssfl-plan-") as folder,
        shaped_link(rate, rate, scenario.rtt_s) as link,
    ):
        tcp = measure(link)
        transfers = _run(scenario, link, Path(folder))
        (history,) = Path(folder).glob("runs/*/coordinator/history.json")
        ledger = json.loads(history.read_bytes())["ledger"]
    plan = scenario.plan()
    return {
        **asdict(scenario),
        "tcp": tcp,
        "seconds": list(compare_seconds(plan, transfers, scenario)),
        "bytes": list(compare_bytes(plan, ledger)),
    }


def run_coded() -> dict[str, Any]:
    """Run real clients over a link; return the bytes of entropy-coded payloads, by phase."""
    # Imported here, so that the processes of these clients do not load torch.
    from ssfl.datasets.published.digits import digits
    from ssfl.datasets.shards.options import Cut
    from ssfl.datasets.shards.shard_file import read_shard
    from ssfl.datasets.shards.write import make_shards
    from ssfl.learning.describe import manifest_of as describe
    from ssfl.learning.models import build_model

    settings = RunSettings(model="cnn", rounds=4, clients=2, local_epochs=1)
    with (
        tempfile.TemporaryDirectory(prefix="ssfl-plan-") as name,
        shaped_link(CODED_BITS_PER_S, CODED_BITS_PER_S, CODED_RTT_S) as link,
    ):
        folder = Path(name)
        cut = Cut(settings.clients, "dirichlet", 0.3, validation=0, seed=0)
        make_shards(folder / "shards", digits(), cut)
        flags = [
            *("--host", link.coordinator.address, "--insecure"),
            *("--log-level", "error", "--exit-when-done"),
            *("--clients", str(settings.clients), "--rounds", str(settings.rounds)),
            *("--model", settings.model, "--local-epochs", str(settings.local_epochs)),
        ]
        program = str(Path(sys.executable).with_name("ssfl-client"))
        with coordinator(folder, *flags, inside=link.coordinator.command()) as server:
            clients = [
                subprocess.Popen(
                    link.clients.command(
                        program, "--data", f"shards/shard_{number:02}", "--log-level", "error",
                        "--coordinator", server.address,
                    ),
                    cwd=folder,
                )
                for number in range(settings.clients)
            ]  # fmt: skip
            try:
                ends = [client.wait(TIMEOUT_S) for client in clients]
                server.process.wait(TIMEOUT_S)
            finally:
                for client in clients:
                    client.kill()
                    client.wait()
        if any(ends):
            raise RuntimeError(f"the clients ended with {ends}")
        (history,) = folder.glob("runs/*/coordinator/history.json")
        ledger = json.loads(history.read_bytes())["ledger"]
        shard = read_shard(folder / "shards" / "shard_00.npz")
    model = build_model(settings.model, shard.input_shape, shard.num_classes)
    plan = plan_run(describe(model, {}), settings, UPLOAD_SLOTS, reference_coding=True)
    return {
        "name": "real clients, digits CNN at 90 %, coded",
        "bytes": list(compare_bytes(plan, ledger, (*FIXED, "mask"))),
    }


def _run(scenario: Scenario, link: ShapedLink, folder: Path) -> list[dict[str, Any]]:
    flags = [
        *("--host", link.coordinator.address, "--insecure"),
        *("--log-level", "error", "--exit-when-done"),
        *("--clients", str(scenario.clients), "--min-clients", "1"),
        *("--rounds", str(scenario.rounds), "--upload-slots", str(UPLOAD_SLOTS)),
        *("--scores", "exact", "--reference-coding", "off"),
    ]
    number = str(SCENARIOS.index(scenario))
    with coordinator(folder, *flags, inside=link.coordinator.command()) as server:
        words = ["-m", "benchmarks.plan_accuracy", "--client", server.address, number]
        done = subprocess.run(
            link.clients.command(sys.executable, *words),
            cwd=environment.ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        server.process.wait(TIMEOUT_S)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare_seconds(
    plan: RunPlan, transfers: list[dict[str, Any]], scenario: Scenario
) -> Iterator[dict[str, Any]]:
    """Yield planned and measured seconds; of clients that share the link, the slowest counts."""
    times = plan.times
    assert times is not None
    asking = Seconds(*[scenario.rtt_s / 2] * 3)  # the request's way to the coordinator
    planned = {
        "scores": times.scoring,
        "base": asking + times.base,
        "update": times.update,
    }
    for what, seconds in planned.items():
        each = [transfer["seconds"] for transfer in transfers if transfer["what"] == what]
        # The clients move in step, so each group of lines is one transfer of all clients.
        groups = [each[at : at + scenario.clients] for at in range(0, len(each), scenario.clients)]
        slowest = [max(group) for group in groups]
        mean = sum(slowest) / len(slowest)
        yield {
            "what": what,
            "planned": asdict(seconds),
            "measured": slowest,
            "error": _distance(mean, seconds.low, seconds.high),
        }


def compare_bytes(
    plan: RunPlan, ledger: list[dict[str, Any]], phases: Sequence[str] = FIXED
) -> Iterator[dict[str, Any]]:
    """Yield planned and counted message bytes by phase and direction."""
    for (phase, direction), transfer in plan.rows.items():
        if phase not in phases:
            continue
        rows = [r for r in ledger if (r["phase"], r["direction"]) == (phase, direction)]
        num_bytes = sum(row["message_bytes"] for row in rows)
        size = transfer.message
        yield {
            "phase": phase,
            "direction": direction,
            "planned": asdict(size),
            "counted": num_bytes,
            "error": _distance(num_bytes, size.low, size.high),
            "within_bound": num_bytes <= (1 + BYTES_BAR) * size.most,
        }


def _distance(measured: float, low: float, high: float) -> float:
    """Return the relative distance from the planned range; negative: fewer than planned."""
    if measured > high:
        return (measured - high) / measured
    return (measured - low) / measured if measured < low else 0.0


def good(row: dict[str, Any]) -> bool:
    """Return True if a row meets its bar."""
    bar = SECONDS_BAR if "what" in row else BYTES_BAR
    return abs(row["error"]) <= bar and bool(row.get("within_bound", True))


def show(results: list[dict[str, Any]]) -> None:
    """Print the table."""
    for result in results:
        print(result["name"])
        if tcp := result.get("tcp"):
            rate = tcp["goodput_bits_per_s"] / 1e6
            print(f"  TCP sees             {rate:.2f} Mbit/s, {1000 * tcp['rtt_s']:.1f} ms")
        for row in result.get("seconds", ()):
            planned, measured = row["planned"], row["measured"]
            print(
                f"  {row['what']:<20} planned {_range(planned, '.2f'):>17} s   measured "
                f"{', '.join(f'{seconds:.2f}' for seconds in measured):>17} s   {_word(row)}"
            )
        for row in result["bytes"]:
            print(
                f"  {row['phase'] + ' ' + row['direction']:<20} planned "
                f"{_range(row['planned'], ','):>17} B   counted  {row['counted']:>16,} B   "
                f"{_word(row)}"
            )


def _range(planned: dict[str, Any], form: str) -> str:
    low, high = f"{planned['low']:{form}}", f"{planned['high']:{form}}"
    return high if low == high else f"{low}–{high}"


def _word(row: dict[str, Any]) -> str:
    return f"{row['error']:+.1%}" + ("" if good(row) else "  MISSED")


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Draw measured against planned seconds, with the bar, and the errors of the bytes."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for colour, result in enumerate(result for result in results if "seconds" in result):
        planned = [row["planned"]["high"] for row in result["seconds"] for _ in row["measured"]]
        measured = [seconds for row in result["seconds"] for seconds in row["measured"]]
        left.plot(planned, measured, "o", ms=5, color=f"C{colour}", label=result["name"])
        rows = [row for row in result["bytes"] if row["phase"] in FIXED]
        names = [f"{row['phase']} {row['direction']}" for row in rows]
        right.plot(names, [100 * row["error"] for row in rows], "o", color=f"C{colour}")
    ends = [0.2, 40.0]
    left.plot(ends, ends, color="0.6", lw=1)
    left.fill_between(
        ends, [e * (1 - SECONDS_BAR) for e in ends], [e * (1 + SECONDS_BAR) for e in ends],
        color="0.9", label="within 15 %",
    )  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="planned, seconds", ylabel="measured, seconds")
    left.legend(fontsize=8)
    right.axhspan(-100 * BYTES_BAR, 100 * BYTES_BAR, color="0.9")
    right.set(ylabel="bytes counted beyond the plan, %", ylim=(-1.5, 1.5))
    right.tick_params(axis="x", labelrotation=20, labelsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--client", nargs=2, metavar=("ADDRESS", "N"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args()
    if args.client:
        address, number = args.client
        asyncio.run(take_part(SCENARIOS[int(number)], address))
        return 0
    raise_on_sigterm()  # remove the link on SIGTERM, too
    began_s = time.monotonic()
    try:
        results = [*map(run_scenario, SCENARIOS), run_coded()]
    except LinkUnavailable as error:
        print(f"no shaped link on this machine, so nothing was measured: {error}", file=sys.stderr)
        return 2
    shaping = {"congestion_control": CONGESTION_CONTROL, "queue_s": QUEUE_S}
    environment.write(args.out / "plan_accuracy.json", {**shaping, "scenarios": results})
    if not args.no_plot:
        plot(results, args.out / "plan_accuracy.png")
    show(results)
    print(f"{time.monotonic() - began_s:.0f} s")
    rows = [row for result in results for row in (*result.get("seconds", ()), *result["bytes"])]
    return 0 if all(good(row) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
