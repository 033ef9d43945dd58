import numpy as np
import pytest

from ssfl.method.controls import client_random_mask, magnitude_scores, random_mask, shuffled
from ssfl.method.density import kept_for_sparsity
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask

SIZES = {"first": 300, "second": 700, "tiny": 3}


@pytest.fixture
def layers() -> Manifest:
    return Manifest(
        tuple(TensorSpec(n, (size,), Role.MASKED, Init("ones")) for n, size in SIZES.items())
    )


def kept_counts(mask: Mask, manifest: Manifest) -> dict[str, int]:
    return {name: kept for name, (kept, _) in mask.kept_by_tensor(manifest).items()}


# -- one random mask for all


@pytest.mark.parametrize("k", [0, 1, 500, 1003])
def test_a_random_mask_keeps_exactly_k(k: int) -> None:
    mask = random_mask(1003, k, seed=0, epoch=0)
    assert (mask.size, mask.num_kept) == (1003, k)


def test_a_random_mask_follows_from_seed_and_epoch() -> None:
    """Every machine must compute these bits."""
    assert random_mask(24, 8, seed=0, epoch=0).bits.hex() == "1e084c"
    masks = {random_mask(1000, 500, seed, epoch).bits for seed in range(3) for epoch in range(3)}
    assert len(masks) == 9


def test_every_coordinate_is_equally_likely() -> None:
    """Of 400 masks that keep 30 of 100, about 120 keep a coordinate; 6 deviations are 55."""
    counts = np.sum([random_mask(100, 30, seed, 0).bools() for seed in range(400)], axis=0)
    assert counts.sum() == 400 * 30
    assert np.abs(counts - 120).max() < 55
    assert counts.std() > 3  # about 9, so not all equal


def test_a_random_mask_cannot_keep_more_than_there_are() -> None:
    with pytest.raises(ValueError, match="cannot keep 11 of 10"):
        random_mask(10, 11, seed=0, epoch=0)


# -- a mask for every client


def test_a_clients_mask_keeps_the_same_share_of_every_tensor(layers: Manifest) -> None:
    mask = client_random_mask(layers, "0.9", seed=0, client_id="a")
    assert kept_counts(mask, layers) == {"first": 30, "second": 70, "tiny": 1}
    assert kept_for_sparsity("0.9", 700) == 70


def test_only_a_tensor_that_would_lose_everything_keeps_more_than_its_share(
    layers: Manifest,
) -> None:
    """Sparsity 0.6 keeps 1.2 of 3 weights; 0.7 keeps 0.9, so one is kept."""
    for sparsity, tiny in (("0.3", 2), ("0.6", 1), ("0.7", 1), ("0.99", 1)):
        mask = client_random_mask(layers, sparsity, seed=0, client_id="a")
        assert kept_counts(mask, layers)["tiny"] == tiny


def test_every_client_has_its_own_mask_in_every_tensor(layers: Manifest) -> None:
    a, again, b = (client_random_mask(layers, "0.5", 0, name).bools() for name in "aab")
    np.testing.assert_array_equal(a, again)
    for _, place in list(layers.masked())[:2]:
        assert 0.4 < np.mean(a[place] == b[place]) < 0.6
    assert (a != client_random_mask(layers, "0.5", 1, "a").bools()).any()


def test_clients_together_hold_everything(layers: Manifest) -> None:
    """At 50 %, one weight in a million is held by none of 20 clients."""
    masks = [client_random_mask(layers, "0.5", 0, f"c{i}").bools() for i in range(20)]
    held = np.sum(masks, axis=0)[:1000]
    assert held.min() > 0 and held.max() < 20


@pytest.mark.parametrize("sparsity", ["1", "half", "0"])
def test_an_invalid_sparsity_is_refused_for_any_tensors(layers: Manifest, sparsity: str) -> None:
    with pytest.raises(DensityError, match="sparsity must"):
        client_random_mask(layers, sparsity, seed=0, client_id="a")


# -- the same counts elsewhere


def test_a_shuffled_mask_keeps_every_tensors_count_and_really_differs(layers: Manifest) -> None:
    bools = np.zeros(1003, dtype=np.bool_)
    bools[:250] = bools[300:310] = bools[1000:1002] = True
    mask = Mask.from_bools(bools)
    moved = shuffled(mask, layers, seed=0, epoch=0)
    assert kept_counts(moved, layers) == {"first": 250, "second": 10, "tiny": 2}
    first, second = moved.bools()[:300], moved.bools()[300:1000]
    assert 30 < np.count_nonzero(first[250:]) < 50  # 250 of 300: about 42 of the last 50
    assert np.count_nonzero(second[:10]) < 5  # 10 of 700: hardly any in the first 10
    np.testing.assert_array_equal(mask.bools(), bools)  # the mask itself is unchanged


def test_a_shuffle_follows_from_seed_and_epoch(layers: Manifest) -> None:
    mask = random_mask(1003, 500, seed=0, epoch=0)
    shuffles = [shuffled(mask, layers, *name).bits for name in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert shuffles[0] == shuffles[1] and len({*shuffles, mask.bits}) == 4


def test_tensors_of_the_same_size_are_shuffled_differently() -> None:
    twins = Manifest(
        tuple(TensorSpec(n, (100,), Role.MASKED, Init("ones")) for n in ("one", "other"))
    )
    mask = Mask.from_bools(np.arange(200) % 100 < 50)
    first, second = np.split(shuffled(mask, twins, 0, 0).bools(), 2)
    assert (first != second).any()


def test_a_full_and_an_empty_tensor_stay_so(manifest: Manifest) -> None:
    mask = Mask.from_bools(np.arange(10) < 6)  # all of conv, none of fc
    assert shuffled(mask, manifest, seed=0, epoch=0) == mask


def test_a_mask_of_another_model_is_not_shuffled(manifest: Manifest) -> None:
    with pytest.raises(ValueError, match="a mask of 9 weights for a model of 10"):
        shuffled(Mask.full(9), manifest, seed=0, epoch=0)


# -- magnitudes


def test_magnitudes_are_those_of_the_masked_weights_alone(manifest: Manifest) -> None:
    vector = np.array([1, -2, 3, -4, 5, -6, 0.5, -0.0, 0, -7, 99, -99, 50, -50], dtype=np.float32)
    scores = magnitude_scores(vector, manifest)
    assert scores.tolist() == [1, 2, 3, 4, 5, 6, 0.5, 0, 0, 7] and scores.dtype == np.float32
    assert not np.signbit(scores).any()
    with pytest.raises(ValueError, match=r"shape \(10,\) for a model of 14 values"):
        magnitude_scores(vector[:10], manifest)
