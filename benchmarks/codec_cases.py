"""The cases of codec_speed.py: the hot paths, each next to a memcpy of the same float32 bytes.

A *group* shares one vector. Its cases and the memcpy take turns, so that noise hits all of them;
the minimum CPU time of each counts. Buffers exist and were touched before, like the target of the
memcpy: page faults of fresh memory are not a cost of the codec.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.codec import blocks, masks, reference, scores, sorted_bits
from ssfl.codec.contract import SparseVector
from ssfl.codec.values_only import VALUES_ONLY
from ssfl.method.exact_sum import MAX_FRACTION_BITS, ExactSum
from ssfl.method.mask import Mask, top_k

Floats = npt.NDArray[np.float32]

LARGE = 100_000_000  # values, 400 MB: more than any cache
RESNET18 = 11_164_352  # masked weights of ResNet-18 for CIFAR-10
RESNET18_SHAPES = [
    (64, 3, 3, 3),
    *[(64, 64, 3, 3)] * 4,
    *[(128, 64, 3, 3), *[(128, 128, 3, 3)] * 3, (128, 64, 1, 1)],
    *[(256, 128, 3, 3), *[(256, 256, 3, 3)] * 3, (256, 128, 1, 1)],
    *[(512, 256, 3, 3), *[(512, 512, 3, 3)] * 3, (512, 256, 1, 1)],
    (10, 512),
]
UPDATE = 1_126_045  # values of its update at 90 % sparsity, 4.5 MB: fits into a cache
KEPT = 0.1
BARS = {"values only": 3.0, "fold": 8.0, "reference": 20.0, "Top-k": 5.0}


@dataclass(frozen=True)
class SpeedCase:
    """A case; `bar` is a multiple of the memcpy."""

    name: str
    run: Callable[[], object]
    bar: float | None = None


@dataclass(frozen=True)
class SpeedRow:
    """A measurement."""

    name: str
    values: int  # number of float32 values of the memcpy
    seconds: float
    times_memcpy: float
    bar: float | None


def measure(source: Floats, cases: list[SpeedCase], budget_s: float) -> list[SpeedRow]:
    """Return a row for every case, and one for the memcpy of `source`."""
    target = np.ones_like(source)
    all_cases = [SpeedCase("memcpy", lambda: np.copyto(target, source)), *cases]
    min_s = take_turns({case.name: case.run for case in all_cases}, budget_s)
    copy_s = min_s["memcpy"]
    return [
        SpeedRow(case.name, source.size, min_s[case.name], min_s[case.name] / copy_s, case.bar)
        for case in all_cases
    ]


def take_turns(runs: dict[str, Callable[[], object]], budget_s: float) -> dict[str, float]:
    """Return the minimum CPU seconds of each, run in turns (at least three) within the budget."""
    min_s = dict.fromkeys(runs, float("inf"))
    began_s = time.monotonic()
    turns = 0
    while turns < 3 or time.monotonic() - began_s < budget_s:
        for name, run in runs.items():
            before_s = time.thread_time()
            run()
            min_s[name] = min(min_s[name], time.thread_time() - before_s)
        turns += 1
    return min_s


def value_rows(size: int, budget_s: float) -> list[SpeedRow]:
    """Measure the operations on an update: encoding, folding, coding against the base."""
    generator = np.random.default_rng(size)
    base = generator.standard_normal(size, dtype=np.float32)
    base *= np.float32(0.05)
    drift = generator.standard_normal(size, dtype=np.float32)
    total = ExactSum(size, MAX_FRACTION_BITS - 4)  # headroom for the many folds
    vector = SparseVector(size, Mask.full(size).bits, base)
    buffer = memoryview(bytearray(b"\1") * blocks.max_encoded_bytes(reference.CODE, size))
    sent = buffer[: 4 * size]
    cases = [
        SpeedCase("values only, encode", lambda: VALUES_ONLY.reader(vector).readinto(sent)),
        SpeedCase("fold into int64", lambda: total.fold_at(0, base, 100)),
    ]
    out = np.ones_like(base)
    for noise in (0.01, 0.1):  # relative change of a value in a round
        values = drift * np.float32(noise)
        values += 1
        values *= base
        cases += _reference_cases(values, base, buffer, out, f"change {noise:.0%}")
    if size == LARGE:
        cases = [SpeedCase(case.name, case.run, _bar(case.name)) for case in cases]
    return measure(base, cases, budget_s)


def _bar(name: str) -> float:
    return next(bar for word, bar in BARS.items() if name.startswith(word))


def _reference_cases(
    values: Floats, base: Floats, buffer: memoryview, out: Floats, note: str
) -> Iterator[SpeedCase]:
    payload = bytes(blocks.encode(reference.CODE, values, base))

    def decode() -> None:
        for start, block in blocks.decode_blocks(reference.CODE, payload, values.size, base):
            out[start : start + block.size] = block

    decode()
    if out.tobytes() != values.tobytes():
        raise AssertionError("reference coding lost a bit")
    share = len(payload) / values.nbytes
    encode = partial(blocks.encode_into, reference.CODE, values, base, buffer)
    yield SpeedCase(f"reference, encode, {note} ({share:.1%} of the bytes)", encode)
    yield SpeedCase(f"reference, decode, {note}", decode)


def layered(size: int) -> Floats:
    """Return scores like saliencies: |N * N|, each row of 4608 with its own scale."""
    generator = np.random.default_rng(1)
    scores = normal_products(size)
    rows = scores[: size // 4608 * 4608].reshape(-1, 4608)
    rows *= np.exp(generator.standard_normal(rows.shape[0], dtype=np.float32) * 2)[:, None]
    return scores


def normal_products(size: int) -> Floats:
    """Return |N * N|: a weight times an independent gradient."""
    generator = np.random.default_rng(0)
    product = generator.standard_normal(size, dtype=np.float32)
    product *= generator.standard_normal(size, dtype=np.float32)
    return np.abs(product, out=product)


def half_dead(size: int) -> Floats:
    scores = normal_products(size)
    scores[: size // 2] = 0
    return scores


def periodic(size: int) -> Floats:
    """Return scores of which every 223rd (cube root of ResNet-18's size) is large."""
    scores = normal_products(size)
    scores[:: round(size ** (1 / 3))] += 10
    return scores


def all_equal(size: int) -> Floats:
    return np.ones(size, dtype=np.float32)


SCORES: dict[str, Callable[[int], Floats]] = {
    "|N * N|": normal_products,
    "layers": layered,
    "half are zero": half_dead,
    "periodic": periodic,
    "all equal": all_equal,
}


def top_k_rows(size: int, kinds: list[str], budget_s: float) -> list[dict[str, Any]]:
    """Measure Top-k with its packed mask; check that it is exact, and its memory."""
    k = int(KEPT * size)
    rows = []
    for kind in kinds:
        values = SCORES[kind](size)
        bar = None if kind == "all equal" else BARS["Top-k"]
        case = SpeedCase(f"Top-k, {kind}", partial(top_k, values, k), bar)
        _, row = measure(values, [case], budget_s)
        tracemalloc.start()
        mask = top_k(values, k)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        exact = mask.bits == obvious_top_k(values, k)
        rows.append({**asdict(row), "exact": exact, "extra_bytes": peak})
    return rows


def obvious_top_k(values: Floats, k: int) -> bytes:
    """Return the packed mask by a full partition, without regard to memory."""
    threshold = np.partition(values, values.size - k)[values.size - k]
    kept = values > threshold
    kept[np.flatnonzero(values == threshold)[: k - int(np.count_nonzero(kept))]] = True
    return np.packbits(kept, bitorder="little").tobytes()


def model_rows(budget_s: float) -> list[SpeedRow]:
    """Measure the operations on a whole ResNet-18: gather, scatter, mask code, score code."""
    generator = np.random.default_rng(2)
    weights = generator.standard_normal(RESNET18, dtype=np.float32)
    saliency = _saliency(weights, generator)
    mask = top_k(saliency, int(KEPT * RESNET18))
    kept = mask.gather(weights)
    words = generator.integers(0, 1 << 32, RESNET18, dtype=np.uint32)
    num_coded = 3 * mask.num_kept
    frame = masks.compress(mask.bits)
    assert frame is not None
    bits = sorted_bits.encode(mask.bits, RESNET18_SHAPES, weights)
    if bytes(sorted_bits.decode(bits, RESNET18_SHAPES, weights)) != mask.bits:
        raise AssertionError("the mask code lost a bit")
    coded = scores.encode(saliency, num_coded, words)
    cases = [
        SpeedCase("gather kept values", lambda: mask.gather(weights)),
        SpeedCase("scatter kept values", lambda: mask.scatter(kept)),
        SpeedCase(f"mask, zstd, encode ({len(frame):,} B)", lambda: masks.compress(mask.bits)),
        SpeedCase("mask, zstd, decode", lambda: masks.decompress(frame, RESNET18)),
        SpeedCase(
            f"mask, sorted bits, encode ({len(bits):,} B)",
            lambda: sorted_bits.encode(mask.bits, RESNET18_SHAPES, weights),
        ),
        SpeedCase(
            "mask, sorted bits, decode",
            lambda: sorted_bits.decode(bits, RESNET18_SHAPES, weights),
        ),
        SpeedCase(
            f"scores, encode ({len(coded):,} B)", lambda: scores.encode(saliency, num_coded, words)
        ),
        SpeedCase("scores, decode", lambda: scores.decode(coded, RESNET18)),
    ]
    return measure(weights, cases, budget_s)


def _saliency(weights: Floats, generator: np.random.Generator) -> Floats:
    """Return |gradient x weight| whose gradients have scales by input and output channel."""
    saliency: Floats = np.abs(weights * generator.standard_normal(weights.size, dtype=np.float32))
    start = 0
    for shape in RESNET18_SHAPES:
        outputs, inputs = shape[:2]
        size = int(np.prod(shape))
        tensor = saliency[start : start + size].reshape(outputs, inputs, -1)
        for axis, count in ((0, outputs), (1, inputs)):
            scales = np.exp(generator.standard_normal(count, dtype=np.float32))
            tensor *= scales.reshape([-1 if axis == place else 1 for place in range(3)])
        start += size
    return saliency
