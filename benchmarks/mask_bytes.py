"""How many bytes does a mask take, compared with a random one of its density?

    python -m benchmarks.mask_bytes            # about 2 minutes on two cores
    python -m benchmarks.mask_bytes --quick    # 5 clients and three densities

Masks of real saliency scores of ResNet-18 (resnet_scores.py), at five densities s: of the mean of
20 clients, Dirichlet 0.3, and of a single client. The reference is W·H(s)/8, the minimum for W
independent bits of that density; the bar is 0.80 of it, for sorted bits with and without the
initial weights. For a refresh: the difference to the previous mask, when some of the 20 voters have
been replaced. Every payload is decoded and compared. Writes benchmarks/results/mask_bytes.json and
.png; exit code 1 if a bar is missed.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from benchmarks import environment
from benchmarks.fashion import Vector, mean_scores, parsed, training_parser
from benchmarks.resnet_scores import add_scores_flag, read, resnet, score_clients

from ssfl.codec import masks, sorted_bits
from ssfl.codec.sorted_bits import Shape
from ssfl.method.mask import Mask, top_k

DENSITIES: tuple[float, ...] = (0.5, 0.2, 0.1, 0.05, 0.01)
VOTERS = 20
# Voters, and how many of them are replaced at the refresh. With fewer voters a mask changes more.
REFRESHES: tuple[tuple[int, int], ...] = ((20, 1), (20, 2), (20, 4), (5, 1), (5, 2), (5, 5))
REFRESH_DENSITY = 0.1
BAR = 0.80


@dataclass(frozen=True)
class MaskRow:
    """One mask: bytes as shares of the entropy bound."""

    mask: str
    density: float
    bound_bytes: float
    packed: float
    zstd: float
    sorted_bits: float
    with_weights: float
    encode_s: float
    decode_s: float

    @property
    def met(self) -> bool:
        return max(self.sorted_bits, self.with_weights) <= BAR


@dataclass(frozen=True)
class Refresh:
    """Bytes of a mask that follows another."""

    voters: int
    replaced: int
    overlap: float  # share of the kept coordinates that stay kept
    whole: int  # sorted bits of the new mask, with weights
    difference: int  # of the exclusive or
    zstd: int  # exclusive or, zstd alone


@dataclass(frozen=True, eq=False)
class NetworkModel:
    """The model as both ends know it."""

    shapes: Sequence[Shape]
    weights: Vector


def entropy_bytes(density: float, size: int) -> float:
    """Return the minimum bytes for `size` independent bits of a density."""
    rest = 1 - density
    return -(density * math.log2(density) + rest * math.log2(rest)) * size / 8


def measure(name: str, scores: Vector, density: float, network: NetworkModel) -> MaskRow:
    """Encode the mask of the largest scores in each way."""
    mask = top_k(scores, round(density * scores.size))
    bound = entropy_bytes(mask.num_kept / mask.size, mask.size)
    begin = time.process_time()
    best = sorted_bits.encode(mask.bits, network.shapes, network.weights)
    encoded = time.process_time()
    if sorted_bits.decode(best, network.shapes, network.weights) != mask.bits:
        raise AssertionError("sorted bits with weights: the decoded mask differs")
    decoded = time.process_time()
    without = sorted_bits.encode(mask.bits, network.shapes)
    if sorted_bits.decode(without, network.shapes) != mask.bits:
        raise AssertionError("sorted bits: the decoded mask differs")
    return MaskRow(
        name, density, bound, len(mask.bits) / bound, _zstd(mask.bits) / bound,
        len(without) / bound, len(best) / bound, encoded - begin, decoded - encoded,
    )  # fmt: skip


def refresh(voters: int, replaced: int, held: Mask, new: Mask, network: NetworkModel) -> Refresh:
    """Encode a mask against the previous one, which every client holds."""
    difference = masks.difference(new.bits, held.bits)
    coded = sorted_bits.encode(difference, network.shapes, network.weights)
    came_back = sorted_bits.decode(coded, network.shapes, network.weights)
    if masks.difference(came_back, held.bits) != new.bits:
        raise AssertionError("mask difference: the decoded mask differs")
    whole = sorted_bits.encode(new.bits, network.shapes, network.weights)
    shared = np.count_nonzero(held.bools() & new.bools())
    return Refresh(
        voters, replaced, float(shared) / new.num_kept, len(whole), len(coded), _zstd(difference)
    )


def _zstd(bits: bytes) -> int:
    return len(masks.compress(bits) or bits)


def show(rows: list[MaskRow], refreshes: list[Refresh]) -> None:
    """Print the tables."""
    print(f"{'ResNet-18, share of W·H(s)/8':<30}{'bound':>12}{'packed':>9}{'zstd':>8}"
          f"{'sorted':>8}{'+ weights':>11}{'s to code':>11}")  # fmt: skip
    for row in rows:
        print(f"{row.mask + f', density {row.density}':<30}{row.bound_bytes:>12,.0f}"
              f"{row.packed:>9.2f}{row.zstd:>8.3f}{row.sorted_bits:>8.3f}{row.with_weights:>11.3f}"
              f"{row.encode_s:>11.2f}")  # fmt: skip
    word = "met" if all(row.met for row in rows) else "FAILED"
    print(f"bar {BAR} for sorted bits with and without weights: {word}")
    print(f"\n{'refresh at density 0.1':<30}{'overlap':>12}{'whole':>12}{'difference':>12}"
          f"{'saved':>8}{'zstd of it':>12}")  # fmt: skip
    for refresh in refreshes:
        what = f"{refresh.replaced} of {refresh.voters} voters replaced"
        saved = 1 - refresh.difference / refresh.whole
        print(f"{what:<30}{refresh.overlap:>12.3f}{refresh.whole:>12,}"
              f"{refresh.difference:>12,}{saved:>8.0%}{refresh.zstd:>12,}")  # fmt: skip


def plot(rows: list[MaskRow], path: Path) -> None:
    """Draw the shares by density."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row.mask for row in rows))
    figure, axes = plt.subplots(
        1, len(names), figsize=(10, 3.8), layout="constrained", sharey=True, squeeze=False
    )
    series = {"packed": "packed bits", "zstd": "zstd", "sorted_bits": "sorted bits",
              "with_weights": "sorted bits, initial weights known"}  # fmt: skip
    for axis, name in zip(axes[0], names, strict=True):
        some = [row for row in rows if row.mask == name]
        for field, label in series.items():
            shares = [getattr(row, field) for row in some]
            axis.plot([row.density for row in some], shares, marker="o", ms=4, label=label)
        axis.axhline(1, color="black", lw=0.8)
        axis.axhline(BAR, color="grey", lw=0.8, ls="--")
        axis.text(0.0095, BAR + 0.01, f"bar {BAR}", fontsize=8, color="grey", va="bottom")
        axis.set_xscale("log")
        axis.set_xticks([row.density for row in some], [f"{row.density:g}" for row in some])
        axis.minorticks_off()
        axis.set(xlabel="density", title=name, ylim=(0, 1.6))
    axes[0][0].set_ylabel("share of W·H(s)/8")
    axes[0][0].legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = training_parser(__doc__, "fewer clients and densities")
    add_scores_flag(parser)
    args = parsed(parser)
    voters, densities, cases = (VOTERS, DENSITIES, REFRESHES)
    if args.quick:
        voters, densities, cases = (5, DENSITIES[::2], ((5, 1),))
    _, manifest, initial = resnet()
    network = NetworkModel(
        [tensor.shape for tensor, _ in manifest.masked()], initial[: manifest.num_masked]
    )
    with score_clients(args, max(sum(case) for case in cases)) as paths:
        weights = {path.stem: 600 for path in paths}  # samples: the same for all clients
        mean = mean_scores(read(paths[:voters]), weights)
        scores_of_one = np.load(paths[0])
        rows = [measure(f"{voters} clients", mean, density, network) for density in densities]
        rows += [measure("one client", scores_of_one, density, network) for density in densities]
        kept = round(REFRESH_DENSITY * mean.size)
        refreshes = []
        for some, replaced in cases:
            held = top_k(mean_scores(read(paths[:some]), weights), kept)
            new = top_k(mean_scores(read(paths[replaced : replaced + some]), weights), kept)
            refreshes.append(refresh(some, replaced, held, new, network))
    met = all(row.met for row in rows)
    environment.write(
        args.out / "mask_bytes.json",
        {
            "masks": [asdict(row) for row in rows],
            "refreshes": [asdict(refresh) for refresh in refreshes],
            "met": met,
            "quick": args.quick,
        },
    )
    if not args.no_plot:
        plot(rows, args.out / "mask_bytes.png")
    show(rows, refreshes)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
