"""What does a download of Top-k updates cost, where most of the change is exactly zero?

    python -m benchmarks.union_bytes

Real runs of `--strategy topk-updates` on scikit-learn's digits, in the simulator, with 2 to 20
clients that send 0.1 to 10 % of the weights. A round changes the union of what the clients sent.
The bytes of each change, per weight of the model, as

    int8       the coded change of an int8 run, as it is sent
    places     the same codes: packed bits of the codes that are not zero, then these codes
    own steps  packed bits of the changed weights, then int8 of these alone, a step per 256 of them
    lossless   the change of a float32 run, as it is sent

and of the uploads of the int8 run, `bits` (a plain mask has 0.125) and `values`.

Sections are compressed as on the wire. The last row is FedAvg, where every weight changes. The
plan's ranges (tools/ssfl/tools/plan/sizes.py) must contain what is sent, also with bfloat16 and on
a grid. Writes benchmarks/results/union_bytes.json; exit code 1 if a size lies outside. About two
minutes.
"""

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from benchmarks import environment

from ssfl.codec import blocks, int8, planes, reference
from ssfl.codec.sections import SectionReader, SectionWriter
from ssfl.learning.load_task import load_task
from ssfl.method.settings import RunSettings
from ssfl.simulator.batched_executor import fast_executor
from ssfl.simulator.federation import SimulatedFederation
from ssfl.study.data import DataSpec, build_shards
from ssfl.tools.plan.rule_rounds import RuleRounds
from ssfl.tools.plan.sizes import Coding, Size

ROUNDS = 8
CASES = ((2, 0.001), (2, 0.02), (5, 0.02), (10, 0.001), (10, 0.02), (10, 0.1), (20, 0.02))
DENSE = 0.0  # FedAvg
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class UnionRow:
    """Means over the rounds of a run, in bytes per weight of the model."""

    clients: int
    share: float
    changed: float  # share of the weights
    int8: float
    places: float
    own_steps: float
    lossless: float
    bits_up: float
    values_up: float
    inside: bool  # the plan's ranges contain all sizes that are sent


def settings_of(clients: int, share: float, value_type: str) -> RunSettings:
    name = "topk-updates" if share else "fedavg"
    return RunSettings(
        strategy=name, strategy_options=f"{name}.share={share}" if share else "", model="cnn",
        rounds=ROUNDS, clients=clients, local_epochs=1, evaluate_every=0, reproducible=True,
        value_type=value_type, seed=1,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Change:
    """A round: the model before and after it, and the coded change of a lossy run."""

    before: Vector
    after: Vector
    coded: memoryview | None


def run_of(settings: RunSettings) -> tuple[SimulatedFederation, list[Change], Size]:
    """Return a finished run, its rounds, and the planned size of a download."""
    shards = build_shards(DataSpec(clients=settings.clients), seed=1)
    run = SimulatedFederation(load_task("image"), shards, settings, make_executor=fast_executor)
    coding = Coding(settings, reference=True)
    planned = RuleRounds(run.model.manifest, settings, coding, settings.clients).base()
    rounds = []
    while run.next_work is not None:
        before = run.model.values
        run.run_step()
        after = run.model.values
        if before is not None and after is not None and after is not before:
            rounds.append(Change(before, after, run.model.change))
    run.close()
    return run, rounds, planned


def uploaded(run: SimulatedFederation, phase: str) -> float:
    """Return the bytes that a client sends in a round, per weight of the model."""
    rows = [row for row in run.document()["ledger"] if row["direction"] == "up"]
    total = sum(row["payload_bytes"] for row in rows if row["phase"] == phase)
    return float(total / run.settings.clients / ROUNDS / run.model.manifest.size)


def section_bytes(content: npt.NDArray[np.uint8]) -> int:
    return SectionWriter(levels=(1,)).write(content, memoryview(bytearray(content.size + 4)))


def bits_bytes(chosen: npt.NDArray[np.bool_]) -> int:
    return section_bytes(np.packbits(chosen, bitorder="little"))


def as_places(change: memoryview, count: int) -> int:
    """Return the bytes of an int8 change whose codes are sent only where they are not zero."""
    reader, total = SectionReader(change), 0
    for start in range(0, count, blocks.BLOCK):
        size = min(blocks.BLOCK, count - start)
        total += len(reader.read_raw(4 * -(-size // int8.GROUP)))
        codes = planes.read(reader, size, np.uint8)
        total += bits_bytes(codes != 0) + section_bytes(codes[codes != 0])
    return total


def measure(clients: int, share: float) -> UnionRow:
    """Run one case in every value type."""
    lossy, rounds, planned = run_of(settings_of(clients, share, "int8"))
    rows, sent = [], list[tuple[int, Size]]()
    for one in rounds:
        assert one.coded is not None
        moved = one.after != one.before
        own = len(blocks.encode(int8.CODE, one.after[moved], one.before[moved]))
        own += bits_bytes(moved)
        sent.append((len(one.coded), planned))
        counts = [moved.sum(), len(one.coded), as_places(one.coded, one.after.size), own]
        rows.append(np.array(counts) / one.after.size)
    _, rounds, planned = run_of(settings_of(clients, share, "float32"))
    lossless = [len(blocks.encode(reference.CODE, one.after, one.before)) for one in rounds]
    sent += [(size, planned) for size in lossless]
    for value_type in ("bfloat16", "grid"):
        _, rounds, planned = run_of(settings_of(clients, share, value_type))
        sent += [(len(one.coded), planned) for one in rounds if one.coded is not None]
    changed, as_sent, places, own_steps = np.mean(rows, axis=0).tolist()
    return UnionRow(
        clients, share, changed, as_sent, places, own_steps,
        lossless=float(np.mean(lossless) / rounds[0].after.size),
        bits_up=uploaded(lossy, "round_masks"), values_up=uploaded(lossy, "values"),
        inside=not share or all(size.low <= found <= size.high for found, size in sent),
    )  # fmt: skip


def show(rows: list[UnionRow]) -> None:
    print(f"{'clients':>8}{'share':>8}{'changed':>9}{'int8':>8}{'places':>8}{'own steps':>11}"
          f"{'lossless':>10}{'bits up':>9}{'values up':>11}   bytes per weight")  # fmt: skip
    for row in rows:
        share = f"{row.share:.1%}" if row.share else "FedAvg"
        word = "" if row.inside else "   OUTSIDE the plan's range"
        print(f"{row.clients:>8}{share:>8}{row.changed:>9.3f}{row.int8:>8.3f}{row.places:>8.3f}"
              f"{row.own_steps:>11.3f}{row.lossless:>10.3f}{row.bits_up:>9.3f}"
              f"{row.values_up:>11.3f}{word}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(*case) for case in (*CASES, (10, DENSE))]
    environment.write(args.out / "union_bytes.json", {"rows": [asdict(row) for row in rows]})
    show(rows)
    return 0 if all(row.inside for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
