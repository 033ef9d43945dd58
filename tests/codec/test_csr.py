import pytest

from ssfl.codec import csr
from ssfl.codec.coo import COO
from ssfl.codec.errors import MaskError


@pytest.mark.parametrize(
    ("shape", "num_kept", "num_bytes"),
    [
        ((2, 3), 4, 4 * 3 + 4 * 4 + 4 * 4),  # pointers, columns, values
        ((2, 3), 0, 12),
        ((64, 3, 3, 3), 1728, 4 * 65 + 8 * 1728),
        ((10,), 3, 4 * 2 + 8 * 3),  # one row
        ((), 1, 4 * 2 + 8),
        ((0, 5), 0, 4),
    ],
)
def test_row_pointers_columns_and_values_are_counted(
    shape: tuple[int, ...], num_kept: int, num_bytes: int
) -> None:
    assert csr.encoded_bytes(shape, num_kept) == num_bytes


def test_it_is_coo_and_the_row_pointers() -> None:
    assert csr.encoded_bytes((512, 4608), 1000) == COO.encoded_bytes(512 * 4608, 1000) + 4 * 513


def test_more_kept_values_than_the_tensor_has_are_refused() -> None:
    with pytest.raises(MaskError, match="cannot keep 7 of 6 coordinates"):
        csr.encoded_bytes((2, 3), 7)
