from decimal import Decimal
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.method.density import kept_for_bytes, kept_for_sparsity, parse_bytes, parse_sparsity
from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest


@pytest.mark.parametrize(
    ("sparsity", "num_masked", "kept"),
    [
        ("0.9", 1000, 100),  # (1 - 0.9) * 1000 is 99.99999999999997 in floats
        ("0.7", 10, 3),
        ("0.1", 10, 9),
        ("0.5", 11, 5),
        ("0.95", 11_172_342, 558_617),
        ("5e-1", 4, 2),
        (" 0.5 ", 4, 2),
        ("0.999", 1000, 1),
        ("1e-35", 1000, 999),  # more digits than Decimal's usual 28
    ],
)
def test_the_share_that_is_kept_is_a_decimal_floor(
    sparsity: str, num_masked: int, kept: int
) -> None:
    assert kept_for_sparsity(sparsity, num_masked) == kept


@given(
    st.decimals(min_value=0, max_value=1, allow_nan=False).filter(lambda d: 0 < d < 1),
    st.integers(1, 2**31),
)
def test_the_floor_is_exact_for_any_decimal(sparsity: Decimal, num_masked: int) -> None:
    kept = floor((1 - Fraction(sparsity)) * num_masked)
    if kept:
        assert kept_for_sparsity(str(sparsity), num_masked) == kept
    else:
        with pytest.raises(DensityError, match="keeps none"):
            kept_for_sparsity(str(sparsity), num_masked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a number such as 0.9, got ''"),
        ("most", "must be a number such as 0.9, got 'most'"),
        ("nan", "must be a number such as 0.9, got 'nan'"),
        ("sNaN", "must be a number such as 0.9, got 'sNaN'"),
        ("0", "must lie strictly between 0 and 1, got 0"),
        ("1", "must lie strictly between 0 and 1, got 1"),
        ("-0.5", "must lie strictly between 0 and 1, got -0.5"),
        ("inf", "must lie strictly between 0 and 1, got inf"),
        ("90", r"strictly between 0 and 1, got 90 \(write 0.9 for 90 %\)"),
    ],
)
def test_an_invalid_sparsity_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(DensityError, match=f"^sparsity .*{message}$"):
        parse_sparsity(text)


def test_a_model_too_small_for_the_sparsity_is_refused() -> None:
    with pytest.raises(DensityError, match=r"0\.999 keeps none of the model's 999 masked weights"):
        kept_for_sparsity("0.999", 999)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("2MB", 2_000_000), ("2mb", 2_000_000), ("1.5 MiB", 1_572_864), ("7", 7), (" 7 B ", 7),
        ("0.5kB", 500), ("1KiB", 1024), ("3GB", 3 * 10**9), ("1GiB", 2**30), ("0.0001kB", 0),
    ],
)  # fmt: skip
def test_sizes_are_read_in_decimal_and_binary_units(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "MB", "2 TB", "-1MB", "1e6", "2MB per round", "1.MB", ".5MB"])
def test_an_invalid_size_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(DensityError, match="a size is a number and B, kB, MB, GB, KiB, MiB or GiB"):
        parse_bytes(text)


def test_a_byte_budget_pays_for_dense_values_first(manifest: Manifest) -> None:
    # Four unmasked values are 16 bytes; each kept weight is 4 more.
    assert kept_for_bytes(20, manifest) == 1
    assert kept_for_bytes(23, manifest) == 1
    assert kept_for_bytes(24, manifest) == 2
    assert kept_for_bytes(56, manifest) == 10


def test_a_budget_for_more_than_the_model_keeps_all_of_it(manifest: Manifest) -> None:
    assert kept_for_bytes(10**9, manifest) == 10


def test_a_budget_below_one_weight_is_refused_with_the_minimum(manifest: Manifest) -> None:
    with pytest.raises(DensityError, match="alone need 16 bytes, so at least 20"):
        kept_for_bytes(19, manifest)
