import math
from statistics import NormalDist

import numpy as np
import pytest

from ssfl.method import initialize
from ssfl.method.initialize import initial_vector, normal
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.model_state import values_digest

# float32 bits of the sample manifest at seed 0, in vector order. They may never change: both
# ends of a federation build the weights, perhaps with different versions of ssfl and numpy.
CONV_NORMAL = ["bc430eb7", "be62bfb6", "3cf56ade", "3dad5deb", "be01886f", "3b727e4c"]
FC_UNIFORM = ["3eb129bb", "3e5a60b8", "3e0d96e8", "bef38422"]


def bits(vector: np.ndarray[tuple[int], np.dtype[np.float32]]) -> list[str]:
    return [f"{word:08x}" for word in vector.view(np.uint32).tolist()]


def one_tensor(rule: str, scale: float, size: int, name: str = "w") -> Manifest:
    return Manifest((TensorSpec(name, (size,), Role.MASKED, Init(rule, scale)),))


def test_the_bits_never_change(manifest: Manifest) -> None:
    rest = ["00000000"] * 2 + ["3f800000"] * 2  # bias: zeros, buffer: ones
    assert bits(initial_vector(manifest, seed=0)) == CONV_NORMAL + FC_UNIFORM + rest


def test_the_bits_of_a_large_tensor_never_change() -> None:
    vector = initial_vector(one_tensor("normal", 1.0, 210_000), seed=0)
    assert values_digest(vector).hex() == (
        "96e6fb67291cc39cd34df137ad6be6b0f030229d475e1ff87c1898b657e12c4f"
    )


def test_the_size_of_a_block_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = one_tensor("normal", 1.0, 1000)
    whole = initial_vector(manifest, seed=3)
    monkeypatch.setattr(initialize, "_BLOCK", 7)
    assert bits(initial_vector(manifest, seed=3)) == bits(whole)


def test_a_tensor_depends_on_its_name_and_the_seed_only(manifest: Manifest) -> None:
    alone = Manifest((manifest.tensors[3],))
    assert bits(initial_vector(alone, seed=0)) == FC_UNIFORM
    assert bits(initial_vector(alone, seed=1)) != FC_UNIFORM
    renamed = one_tensor("uniform", 0.5, 4, name="fc2.weight")
    assert bits(initial_vector(renamed, seed=0)) != FC_UNIFORM


def test_weights_that_are_sent_are_left_zero() -> None:
    assert initial_vector(one_tensor("sent", 0.0, 3), seed=0).tolist() == [0, 0, 0]


# Quantiles of the standard normal distribution from tables (Abramowitz and Stegun 26; the outer
# ones by high-precision inversion), one or more for each of the three approximations.
KNOWN = {
    0.5: 0.0,
    0.75: 0.674489750196082,
    0.9: 1.281551565544600,
    0.95: 1.644853626951473,
    0.975: 1.959963984540054,
    0.99: 2.326347874040841,
    0.999: 3.090232306167813,
    1 - 1e-6: 4.753424308817088,
    1e-10: -6.361340902404056,
    1e-15: -7.941345326170998,
}


@pytest.mark.parametrize(("probability", "quantile"), KNOWN.items())
def test_quantiles_agree_with_published_ones(probability: float, quantile: float) -> None:
    found = normal(np.array([probability])).item()
    # 1 - 1e-6 is itself rounded to a double, which moves its quantile by 1e-11.
    assert found == pytest.approx(quantile, rel=1e-11, abs=1e-15)


def test_quantiles_are_the_inverse_of_the_distribution_function() -> None:
    probabilities = np.concatenate([2.0 ** -np.arange(1, 54), np.linspace(0.001, 0.999, 999)])
    quantiles = normal(probabilities)
    back = [math.erfc(-x / math.sqrt(2)) / 2 for x in quantiles.tolist()]
    # A quantile x that is off by e, relatively, moves its tail by x^2 e; here x^2 <= 69.
    np.testing.assert_allclose(back, probabilities, rtol=69 * 4e-16)


def test_quantiles_agree_with_the_standard_library_to_the_last_bits() -> None:
    probabilities = np.linspace(1e-9, 1 - 1e-9, 5001)
    expected = [NormalDist().inv_cdf(p) for p in probabilities.tolist()]
    # Both are AS 241; only the logarithm differs, by an ulp or two.
    np.testing.assert_allclose(normal(probabilities), expected, rtol=1e-15, atol=1e-18)


def test_quantiles_are_symmetric() -> None:
    probabilities = np.arange(1, 512) / 1024  # exact, and so is 1 - p
    np.testing.assert_array_equal(normal(1 - probabilities), -normal(probabilities))


def test_the_logarithm_is_good_to_a_few_ulps() -> None:
    x = np.concatenate([2.0 ** -np.arange(0, 60), np.linspace(1e-3, 0.999, 1000)])
    expected = np.array([math.log(value) for value in x.tolist()])
    # Near 1 the series cancels against ln(4/3), so the error is absolute there.
    np.testing.assert_allclose(initialize._log(x), expected, rtol=4e-16, atol=2e-16)


def test_normal_weights_have_the_mean_and_deviation_they_are_meant_to_have() -> None:
    vector = initial_vector(one_tensor("normal", 0.25, 100_000), seed=1).astype(np.float64)
    # Five standard errors: 5 * 0.25 / sqrt(1e5) = 0.004, and 5 * 0.25 / sqrt(2e5) = 0.0028.
    assert abs(vector.mean()) < 0.004
    assert abs(vector.std() - 0.25) < 0.0028


def test_uniform_weights_fill_their_range() -> None:
    vector = initial_vector(one_tensor("uniform", 0.5, 100_000), seed=1).astype(np.float64)
    assert -0.5 <= vector.min() < -0.4999 and 0.4999 < vector.max() <= 0.5
    # Five standard errors of the mean: 5 * 0.2887 / sqrt(1e5) = 0.0046.
    assert abs(vector.mean()) < 0.0046
