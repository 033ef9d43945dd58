"""Scores, mean and mask against an independent oracle, on stored inputs.

`minibatches.npz` holds the tensors of a small network and a minibatch of each of three clients
with different classes and 37, 120 and 1201 training samples. `oracle.py` does not import this
project. The scores must agree bit for bit (one thread, the same torch), the mean as a fraction
rounded once, and the mask except within one step of the threshold.
"""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paper import oracle
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.flatten import write_vector
from ssfl.learning.models import build_model
from ssfl.learning.saliency import score_locally
from ssfl.method.density import kept_for_sparsity
from ssfl.method.exact_sum import MAX_SCORE_FRACTION_BITS, ExactSum, fraction_bits
from ssfl.method.mask import top_k
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

Floats = npt.NDArray[np.float32]

with np.load(Path(__file__).with_name("minibatches.npz"), allow_pickle=False) as stored:
    INPUTS = dict(stored)
TENSORS = {name: array for name, array in INPUTS.items() if "." in name}
SAMPLES = INPUTS["samples"].tolist()
CLIENTS = range(len(SAMPLES))
SPARSITIES = ("0.5", "0.8", "0.9", "0.95", "0.98")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def minibatch(client: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    return INPUTS[f"x{client}"], INPUTS[f"y{client}"]


def our_scores(client: int) -> Floats:
    """Score as a client does; its shard is the stored minibatch."""
    x, y = minibatch(client)
    shard = Shard(x, y, x[:0], y[:0], num_classes=10)
    model = build_model("cnn-small", (1, 8, 8), 10)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, manifest.flatten(TENSORS))
    chosen = RunSettings(batch_size=len(y))
    return score_locally(model, manifest, image_task, shard, chosen, f"client {client}")


def our_mean(scores: list[Floats], samples: list[int]) -> Floats:
    """Average as the coordinator does."""
    largest = max(float(client.max()) for client in scores)
    bits = fraction_bits(largest, sum(samples), MAX_SCORE_FRACTION_BITS)
    total = ExactSum(scores[0].size, bits)
    for client, num_samples in zip(scores, samples, strict=True):
        total.fold(client, num_samples)
    return total.mean()


def our_mask(mean: Floats, k: int) -> set[int]:
    return set(np.flatnonzero(top_k(mean, k).bools()).tolist())


def oracle_scores() -> list[Floats]:
    return [oracle.scores(TENSORS, *minibatch(client)) for client in CLIENTS]


def check_masks(scores: list[Floats], samples: list[int], k: int, allowed: int) -> list[int]:
    """Compare our mask with that of a mean in float64; return what only the oracle keeps.

    At most `allowed` coordinates may differ, and only within one step of the threshold: a step
    of the grid that is summed on, or of float32, to which the mean is rounded.
    """
    plain = oracle.mean_in_float64(scores, samples)
    ours, theirs = our_mask(our_mean(scores, samples), k), oracle.top(plain, k)
    assert len(ours) == len(theirs) == k
    threshold = min(plain[place] for place in theirs)
    bits = oracle.grid_bits(max(float(client.max()) for client in scores), sum(samples))
    step = max(2.0**-bits, float(np.spacing(np.float32(threshold))))
    differing = sorted(ours ^ theirs)
    listed = "\n".join(
        f"coordinate {place}: mean {plain[place]!r}, {plain[place] - threshold:+.3g} from the "
        f"threshold {threshold!r}, one step is {step:.3g}"
        for place in differing
    )
    print(f"{len(differing)} coordinates differ for k = {k}\n{listed}")
    assert all(abs(plain[place] - threshold) <= step for place in differing), listed
    assert len(theirs - ours) <= allowed, listed
    return sorted(theirs - ours)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_scores_agree_bit_for_bit(client: int) -> None:
    ours, theirs = our_scores(client), oracle.scores(TENSORS, *minibatch(client))
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.tobytes() == theirs.tobytes()
    assert np.count_nonzero(ours) > ours.size / 2


@pytest.mark.parametrize("client", CLIENTS)
def test_the_scores_equal_exact_arithmetic_up_to_rounding(client: int) -> None:
    exact = np.abs(oracle.products(TENSORS, *minibatch(client), torch.float64))
    np.testing.assert_allclose(our_scores(client), exact, rtol=1e-3, atol=1e-6 * exact.max())


def test_the_mean_is_the_exact_fraction_on_the_grid_rounded_once() -> None:
    scores = oracle_scores()
    ours = our_mean([our_scores(client) for client in CLIENTS], SAMPLES)
    assert ours.tobytes() == oracle.mean_on_grid(scores, SAMPLES).tobytes()


def test_the_mean_is_that_in_float64_to_five_digits() -> None:
    scores = oracle_scores()
    np.testing.assert_allclose(
        our_mean(scores, SAMPLES), oracle.mean_in_float64(scores, SAMPLES), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("sparsity", SPARSITIES)
def test_the_mask_is_the_oracles(sparsity: str) -> None:
    scores = oracle_scores()
    k = kept_for_sparsity(sparsity, scores[0].size)
    assert k == int((1 - Fraction(sparsity)) * scores[0].size)
    check_masks(scores, SAMPLES, k, allowed=int(1e-5 * k))


@pytest.mark.parametrize("seed", range(3))
def test_a_large_mask_differs_in_one_of_a_hundred_thousand_at_most(seed: int) -> None:
    """Scores of three clients over twelve binary orders of magnitude, 300,000 coordinates."""
    scores = [
        np.exp2(-12 * Stream(seed, "scores", client).uniform(300_000)).astype(np.float32)
        for client in CLIENTS
    ]
    check_masks(scores, SAMPLES, k=150_000, allowed=1)


def test_differences_lie_within_one_step_of_the_threshold() -> None:
    """Means that differ in float64 but not in float32: the first coordinate is kept."""
    below, above = np.float32(1), np.nextafter(np.float32(1), np.float32(2))
    scores = [
        np.array([2, below, below, 0.5], dtype=np.float32),
        np.array([2, below, above, 0.5], dtype=np.float32),
    ]
    assert check_masks(scores, [3, 1], k=2, allowed=1) == [2]


def test_averaging_with_signs_would_give_another_mask() -> None:
    """Each client takes "|dL/dw * w|" before the mean is computed."""
    signed = [oracle.products(TENSORS, *minibatch(c), torch.float32) for c in CLIENTS]
    k = kept_for_sparsity("0.9", signed[0].size)
    ours = our_mask(our_mean([our_scores(client) for client in CLIENTS], SAMPLES), k)
    magnitudes = [np.abs(client).astype(np.float32) for client in signed]
    late = np.abs(oracle.mean_in_float64([client.astype(np.float32) for client in signed], SAMPLES))
    assert ours == oracle.top(oracle.mean_in_float64(magnitudes, SAMPLES), k)
    assert len(oracle.top(late, k) - ours) > 0.01 * k


def test_the_gradient_alone_would_give_another_mask() -> None:
    scores = oracle_scores()
    k = kept_for_sparsity("0.9", scores[0].size)
    weights = np.concatenate([np.abs(TENSORS[name]).ravel() for name in oracle.WEIGHTS])
    gradients = [client / weights for client in scores]
    ours = our_mask(our_mean([our_scores(client) for client in CLIENTS], SAMPLES), k)
    assert len(oracle.top(oracle.mean_in_float64(gradients, SAMPLES), k) - ours) > 0.1 * k


def test_the_plain_mean_would_give_another_mask() -> None:
    """Clients are weighted by their numbers of training samples: 37, 120 and 1201."""
    scores = oracle_scores()
    k = kept_for_sparsity("0.9", scores[0].size)
    ours = our_mask(our_mean([our_scores(client) for client in CLIENTS], SAMPLES), k)
    assert ours == oracle.top(oracle.mean_in_float64(scores, SAMPLES), k)
    assert len(oracle.top(oracle.mean_in_float64(scores, [1, 1, 1]), k) - ours) > 0.1 * k


@given(
    scores=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    share=st.floats(0, 1),
)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_of_equal_scores_the_first_are_kept_and_never_more_than_k(
    scores: list[int], share: float
) -> None:
    k = round(share * len(scores))
    ours = our_mask(np.array(scores, dtype=np.float32), k)
    assert len(ours) == k
    assert ours == oracle.top(scores, k)


@given(
    values=st.lists(st.floats(0, 1000, width=32), min_size=6, max_size=6),
    samples=st.lists(st.integers(1, 10**6), min_size=3, max_size=3),
)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_any_mean_is_the_exact_fraction_rounded_once(
    values: list[float], samples: list[int]
) -> None:
    scores = [np.array(values[i : i + 2], dtype=np.float32) for i in (0, 2, 4)]
    ours, theirs = our_mean(scores, samples), oracle.mean_on_grid(scores, samples)
    assert ours.tolist() == theirs.tolist()
