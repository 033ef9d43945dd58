import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.conformance import vectors
from ssfl.codec.choose import ENCODINGS, choose, sizes
from ssfl.codec.contract import SparseVector
from ssfl.codec.errors import MaskError


@given(vectors(max_size=200), st.booleans())
def test_no_legal_payload_is_smaller_and_the_receiver_can_read_it(
    vector: SparseVector, mask_shared: bool
) -> None:
    chosen = choose(vector.size, vector.num_kept, mask_shared=mask_shared)
    payload = chosen.encode(vector)
    bits = vector.bits if mask_shared else None
    decoded = chosen.decode(payload, vector.size, vector.num_kept, bits)
    assert decoded.dense().tobytes() == vector.dense().tobytes()
    legal = [code for code in ENCODINGS.values() if mask_shared or code.name != "values_only"]
    assert len(payload) == min(len(code.encode(vector)) for code in legal)


@pytest.mark.parametrize(
    ("size", "num_kept", "shared", "alone"),
    [
        (3200, 320, "values_only", "bitmask"),
        (3200, 101, "values_only", "bitmask"),
        (3200, 100, "values_only", "coo"),  # 1 in 32: 800 bytes either way
        (3200, 1, "values_only", "coo"),
        (3200, 3099, "values_only", "bitmask"),
        (3200, 3100, "values_only", "dense"),  # 31 in 32: 12,800 bytes either way
        (3200, 3200, "dense", "dense"),  # the same bytes as values_only
        (3200, 0, "values_only", "coo"),  # nothing to send
        (0, 0, "dense", "dense"),
    ],
)
def test_the_choice_at_edges_and_ties(size: int, num_kept: int, shared: str, alone: str) -> None:
    assert choose(size, num_kept, mask_shared=True).name == shared
    assert choose(size, num_kept, mask_shared=False).name == alone


def test_the_table_of_a_resnet_18_at_ninety_per_cent() -> None:
    assert sizes(11_164_352, 1_116_435) == {
        "dense": 44_657_408,
        "values_only": 4_465_740,
        "coo": 8_931_480,
        "bitmask": 5_861_284,
    }


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(MaskError, match="cannot keep 4 of 3"):
        choose(3, 4, mask_shared=True)
    with pytest.raises(MaskError, match="cannot keep 4 of 3"):
        sizes(3, 4)


def test_every_encoding_is_found_by_its_name() -> None:
    assert list(ENCODINGS) == ["dense", "values_only", "coo", "bitmask"]
    assert all(ENCODINGS[name].name == name for name in ENCODINGS)
