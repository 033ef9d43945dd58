"""The figure of simulator_speed.py: updates per CPU second, and fast minus exact by sparsity."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssfl.program.palette import BLUE, ORANGE, SKY

COLOURS = {"fast": BLUE, "exact": SKY, "Flower": ORANGE}


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw both comparisons."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    rates = result["updates_per_cpu_s"]
    for place, (name, rate) in enumerate(rates.items()):
        left.barh(place, rate["median"], color=COLOURS[name.split(", ")[1]], height=0.7)
        left.plot(rate["all"], [place] * len(rate["all"]), "o", color="black", ms=3)
        left.annotate(
            f"{rate['median']:.0f}", (max(rate["all"]), place), (6, 0), va="center",
            textcoords="offset points",
        )  # fmt: skip
    left.set_yticks(range(len(rates)), list(rates))
    left.invert_yaxis()
    left.margins(x=0.12)
    left.set(xlabel="client updates per CPU second, one core; points: repetitions")
    left.set_title("one client, one epoch of 200 samples, CNN of 35,434 weights", fontsize=10)
    for place, row in enumerate(result["modes"]):
        interval, sd = row["fast_minus_exact"], row["seed_sd"]
        mean = interval["mean"]
        right.fill_between(
            [place - 0.3, place + 0.3], -sd, sd, color="0.88", lw=0,
            label="± standard deviation between seeds" if place == 0 else None,
        )  # fmt: skip
        right.errorbar(
            place, mean, [[mean - interval["low"]], [interval["high"] - mean]],
            fmt="o", color=COLOURS["fast"], capsize=4,
            label="mean and 95 % interval, paired by seed" if place == 0 else None,
        )  # fmt: skip
    right.axhline(0, color="black", lw=0.6)
    right.set_xticks(range(len(result["modes"])), [row["sparsity"] for row in result["modes"]])
    right.set(ylabel="accuracy, fast - exact, points", xlabel="sparsity")
    right.set_title(f"{len(result['modes'][0]['exact'])} seeds, last 10 rounds", fontsize=10)
    right.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
