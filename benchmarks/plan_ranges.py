"""How much smaller than its bound is an entropy-coded payload?

    .venv/bin/python -m benchmarks.plan_ranges

`ssfl plan` gives a hard bound and an expected range for scores, masks and coded values. This
measures them on scikit-learn's digits: real saliency of five networks at five sparsities, and
real federated training of three, with every update and base encoded in every value code. The
ranges in tools/ssfl/tools/plan/sizes.py must contain all sizes. Writes
benchmarks/results/plan_ranges.json; exit code 1 if a size lies outside. About 1.5 minutes.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from benchmarks import environment

from ssfl.client.local_work import Site
from ssfl.codec import blocks, masks, reference, scores, sorted_bits
from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.load_task import load_task
from ssfl.method.mask import Mask, top_k
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import commit_values, lossy_code
from ssfl.strategies.contract import ScoringRequest
from ssfl.strategies.registry import strategy_for
from ssfl.tools.plan.sizes import Coding, Size, mask_size

CLIENTS, SAMPLES = 4, 200
ROUNDS = 12
SPARSITIES = ("0.5", "0.8", "0.9", "0.95", "0.99")
VALUE_TYPES = ("bfloat16", "int8", "grid")
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DigitsCase:
    """A network, on digits enlarged by a factor."""

    model: str
    times: int = 1
    channels: int = 1


@dataclass(frozen=True)
class Training:
    """The settings of one training run; sparsity empty: dense."""

    case: DigitsCase
    sparsity: str
    learning_rate: float = 0.1
    local_epochs: int = 2


NETWORKS = (
    DigitsCase("mlp"),
    DigitsCase("cnn"),
    DigitsCase("cnn", 4, 3),
    DigitsCase("lenet5", 4),
    DigitsCase("resnet18", 2, 3),
)
TRAININGS = (
    Training(DigitsCase("mlp"), "0.9"),
    Training(DigitsCase("cnn"), "0.9"),
    Training(DigitsCase("cnn", 2), "0.5"),
    Training(DigitsCase("cnn", 2), "0.95", learning_rate=0.01),
    Training(DigitsCase("mlp"), "", local_epochs=1),
)


@dataclass(frozen=True)
class MeasuredSize:
    """One measured size, next to the planned one."""

    kind: str
    where: str
    num_bytes: int
    planned: Size

    @property
    def good(self) -> bool:
        return self.planned.low <= self.num_bytes <= self.planned.high

    @property
    def in_range(self) -> float:
        """Return its position: 0 at the low end of the range, 1 at the high end."""
        return (self.num_bytes - self.planned.low) / (self.planned.high - self.planned.low)


def sites_of(case: DigitsCase, settings: RunSettings) -> list[Site]:
    """Return clients with digits in the input size of a network."""
    whole, task = digits(), load_task("image")
    images = whole.train_x.repeat(case.times, axis=2).repeat(case.times, axis=3)
    images = images.repeat(case.channels, axis=1)
    sites = []
    for number in range(CLIENTS):
        mine = slice(number * SAMPLES, (number + 1) * SAMPLES)
        shard = Shard(
            images[mine], whole.train_y[mine], images[:10], whole.train_y[:10], whole.num_classes
        )
        name, cpu = f"shard_{number:02}", torch.device("cpu")
        sites.append(Site.build(task, shard, settings, name, cpu))
    return sites


def measure_scoring(case: DigitsCase) -> Iterator[MeasuredSize]:
    """Yield the sizes of compact scores and of the resulting mask."""
    settings = RunSettings(model=case.model)
    sites = sites_of(case, settings)
    manifest, initial = sites[0].manifest, sites[0].initial
    found = [site.score(ScoringRequest(initial)) for site in sites]
    mean = _mean(found)
    random = np.random.default_rng(0)
    words = random.integers(0, 1 << 32, manifest.num_masked, dtype=np.uint32)
    for sparsity in SPARSITIES:
        strategy = strategy_for(replace(settings, sparsity=sparsity))
        where = f"{case.model}, {manifest.num_masked:,} weights, sparsity {sparsity}"
        coded = strategy.num_decisive(manifest)
        planned = Coding(settings, reference=True).scores(manifest.num_masked, coded).size
        payload = scores.encode(found[0], coded, words)
        yield MeasuredSize("scores", where, len(payload), planned)
        kept = strategy.num_kept(manifest)
        bits = top_k(mean, kept).bits
        weights = initial[: manifest.num_masked]
        sorted_form = sorted_bits.encode(bits, manifest.masked_shapes, weights)
        forms = [sorted_form, masks.compress(bits) or bits]
        yield MeasuredSize("mask", where, min(map(len, forms)), mask_size(manifest, kept))


def measure_training(training: Training) -> Iterator[MeasuredSize]:
    """Yield the sizes of every update and base of a run, in every value code."""
    settings = RunSettings(
        model=training.case.model,
        learning_rate=training.learning_rate,
        local_epochs=training.local_epochs,
    )
    sites = sites_of(training.case, settings)
    manifest, initial = sites[0].manifest, sites[0].initial
    mask = Mask.full(manifest.num_masked)
    if training.sparsity:
        strategy = strategy_for(replace(settings, sparsity=training.sparsity))
        mean = _mean([site.score(ScoringRequest(initial)) for site in sites])
        mask = top_k(mean, strategy.num_kept(manifest))
    first = base = mask.gather(initial)
    where = f"{training.case.model}, {base.size:,} values, learning rate {training.learning_rate:g}"
    for number in range(ROUNDS):
        updates = [site.train(mask, base, number, lambda *_: None).values for site in sites]
        after = _mean(updates)
        for values in (*updates, after):
            yield from _coded(values, base, where, settings)
        nothing, to_first = (
            len(blocks.encode(reference.CODE, after, against)) for against in (None, first)
        )
        if number:  # in round 0 the previous base is the first one
            planned = Coding(settings, reference=True).base(after.size, holds_previous=False).size
            yield MeasuredSize(
                "values, previous base not held", where, min(nothing, to_first), planned
            )
        yield from _coded_values(after, where, settings)
        base = after


def _mean(vectors: list[Vector]) -> Vector:
    mean: npt.NDArray[np.float64] = np.stack(vectors).mean(axis=0, dtype=np.float64)
    return mean.astype(np.float32)


def _coded(
    values: Vector, base: Vector, where: str, settings: RunSettings
) -> Iterator[MeasuredSize]:
    planned = Coding(settings, reference=True).update(values.size).size
    yield MeasuredSize("values", where, len(blocks.encode(reference.CODE, values, base)), planned)
    for value_type in VALUE_TYPES:
        lossy = replace(settings, value_type=value_type)
        code = lossy_code(lossy)
        assert code is not None
        planned = Coding(lossy, reference=True).update(values.size).size
        yield MeasuredSize(
            f"values, {value_type}", where, len(blocks.encode(code, values, base)), planned
        )


def _coded_values(values: Vector, where: str, settings: RunSettings) -> Iterator[MeasuredSize]:
    for value_type in VALUE_TYPES:
        lossy = replace(settings, value_type=value_type, downloads="values")
        _, payload, _ = commit_values(lossy, values, None)
        assert payload is not None
        planned = Coding(lossy, reference=True).base(values.size, holds_previous=False).size
        yield MeasuredSize(f"coded values, {value_type}", where, len(payload), planned)


def show(found: list[MeasuredSize]) -> None:
    """Print the used part of the range by kind, and all sizes outside it."""
    print(f"{'':<32}{'sizes':>8}{'lowest':>9}{'highest':>9}   (0 and 1: the ends of the range)")
    for kind in dict.fromkeys(measured.kind for measured in found):
        places = [measured.in_range for measured in found if measured.kind == kind]
        print(f"{kind:<32}{len(places):>8}{min(places):>9.2f}{max(places):>9.2f}")
    for measured in found:
        if not measured.good:
            print(
                f"OUTSIDE: {measured.kind} of {measured.where}: "
                f"{measured.num_bytes:,} bytes, {measured.planned}"
            )


def summary(found: list[MeasuredSize]) -> list[dict[str, Any]]:
    """Return the smallest and largest size for every kind and network."""
    rows = []
    for kind, where in dict.fromkeys((measured.kind, measured.where) for measured in found):
        group = [measured for measured in found if (measured.kind, measured.where) == (kind, where)]
        sizes = [measured.num_bytes for measured in group]
        planned = asdict(group[0].planned)
        rows.append({"kind": kind, "where": where, "smallest": min(sizes), "largest": max(sizes),
                     "planned": planned})  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = [measured for case in NETWORKS for measured in measure_scoring(case)]
    found += [measured for training in TRAININGS for measured in measure_training(training)]
    environment.write(args.out / "plan_ranges.json", {"sizes": summary(found)})
    show(found)
    return 0 if all(measured.good for measured in found) else 1


if __name__ == "__main__":
    sys.exit(main())
