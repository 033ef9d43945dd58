"""The figure of bytes_on_wire: encodings, one-off costs, and bytes by round."""

from pathlib import Path
from typing import Any

from benchmarks.bytes_encodings import DENSITIES, EncodingRow
from benchmarks.bytes_rounds import Budget, Cost
from benchmarks.bytes_run import MeasuredRun

MODEL = "ResNet-18"
MB = 1e6
ENCODINGS = {
    "dense": "dense",
    "csr": "CSR (counted)",
    "coo": "COO",
    "bitmask": "bitmask",
    "values_only": "values only",
}
LINES = {
    "fedavg": ("dense FedAvg, 4 bytes per value", "0.35", "-"),
    "fedavg coded": ("dense FedAvg, values coded (measured)", "0.35", ":"),
    "paper": ("as the paper counts, one-off added", "C3", "-"),
    "ours": ("ours, 4 bytes per value", "C0", "-"),
    "coded": ("ours, values coded (measured)", "C2", "--"),
}
PARTS = (("initial", "initial weights", "C7"), ("scores", "scores", "C1"), ("mask", "mask", "C4"))


def plot(rows: list[EncodingRow], found: list[Budget], runs: list[MeasuredRun], path: Path) -> None:
    """Draw ResNet-18; the other networks differ only in size."""
    import matplotlib.pyplot as plt

    chosen = [budget for budget in found if budget.model == MODEL]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
    _encodings(axes[0, 0], [row for row in rows if row.model == MODEL])
    _one_off(axes[0, 1], chosen)
    for axis, budget, run in zip(axes[1], chosen, runs[1:], strict=True):
        measured = {"fedavg coded": runs[0].cost(), "coded": run.cost()}
        _rounds(axis, budget.density, {**budget.costs, **measured}, rounds=5)
    figure.suptitle(f"{MODEL} (11,173,962 parameters), one client", fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _encodings(axis: Any, rows: list[EncodingRow]) -> None:
    """Draw bars of measured bytes, with ticks at the values of the paper's table."""
    height = 0.38
    for group, density in enumerate(float(d) for d in DENSITIES):
        for place, (name, _) in enumerate(reversed(ENCODINGS.items())):
            (row,) = (r for r in rows if (r.density, r.encoding) == (density, name))
            at = place + (0.5 - group) * height
            percent = row.percent(row.ours_bytes)
            style = {"alpha": 0.45, "hatch": "//"} if name == "csr" else {}
            axis.barh(at, percent, height * 0.92, color=f"C{group}", **style)
            axis.text(
                percent + 1.5, at, f"{percent:.1f} %  {row.ours_bytes / MB:.2f} MB",
                va="center", fontsize=7.5,
            )  # fmt: skip
            if (printed := row.as_printed()) is not None:
                axis.plot([printed] * 2, [at - height / 2, at + height / 2], color="k", lw=1.4)
        axis.barh(-9, 0, color=f"C{group}", label=f"density {density:g}")
    axis.plot([], [], color="k", lw=1.4, label="the paper's table")
    axis.set_yticks(range(len(ENCODINGS)), list(reversed(ENCODINGS.values())))
    axis.set_ylim(-0.6, len(ENCODINGS) - 0.4)
    axis.set_xlim(0, 138)
    axis.set_xticks([0, 25, 50, 75, 100])
    axis.set_xlabel("payload in one direction, % of dense")
    axis.set_title("What an update takes, by encoding", fontsize=10)
    axis.legend(fontsize=8, loc="lower right")


def _one_off(axis: Any, found: list[Budget]) -> None:
    """Draw stacked bars of the bytes before the first round."""
    bars = [("paper", found[0], "paper")]
    bars += [("ours", budget, f"ours, density {budget.density:g}") for budget in found]
    for place, (name, budget, _) in enumerate(reversed(bars)):
        cost, left = budget.costs[name], 0.0
        for part, label, colour in PARTS:
            size = getattr(cost, part) / MB
            axis.barh(
                place, size, 0.55, left=left, color=colour, label=label if not place else None
            )
            if size > 12:
                axis.text(left + size / 2, place, f"{size:.1f}", ha="center", va="center")
            left += size
        parts = f"   scores {cost.scores / MB:.1f}, mask {cost.mask / MB:.2f}"
        note = f"{left:.1f} MB" + (parts if name != "paper" else "")
        axis.text(left + 1, place, note, va="center", fontsize=8)
    axis.set_yticks(range(len(bars)), [label for *_, label in reversed(bars)])
    axis.set_xlim(0, 112)
    axis.set_ylim(-0.6, len(bars) - 0.2)
    axis.set_xlabel("MB")
    axis.set_title("Once, before the first round", fontsize=10)
    axis.legend(fontsize=8, loc="lower right")


def _rounds(axis: Any, density: float, costs: dict[str, Cost], rounds: int) -> None:
    """Draw total bytes up and down, with the break-even points against dense FedAvg."""
    for name, (what, colour, style) in LINES.items():
        cost, label = costs[name], what
        if name not in ("fedavg", "fedavg coded"):
            own = cost.rounds_to_beat(costs["fedavg"])
            axis.plot(
                [own], [cost.after(own) / MB], "o", color=colour, ms=5, zorder=3, clip_on=False
            )
            label += f": less from round {own:.2f}"
        ends = (cost.once / MB, cost.after(rounds) / MB)
        axis.plot((0, rounds), ends, style, color=colour, label=label)
    axis.set_xlim(0, rounds)
    axis.set_ylim(0, 1.45 * costs["fedavg"].after(rounds) / MB)
    axis.set_xlabel("rounds the client took part in")
    axis.set_ylabel("MB up and down since the start")
    axis.set_title(f"density {density:g}: where it becomes less than dense FedAvg", fontsize=10)
    axis.legend(fontsize=8, loc="upper left")
