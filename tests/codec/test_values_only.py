import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from codec.conformance import SPECIAL, random_vector
from ssfl.codec import CodecError, TrailingBytes, TruncatedPayload, values_only
from ssfl.codec.contract import BLOCK, SparseVector
from ssfl.codec.errors import MaskError
from ssfl.codec.values_only import VALUES_ONLY

Words = npt.NDArray[np.uint32]


def bits(values: npt.NDArray[np.float32]) -> list[int]:
    return [int(word) for word in values.view(np.uint32)]


def test_golden_bytes_both_ways() -> None:
    values = np.array([1.0, -2.0, 0.5], dtype=np.float32)
    payload = bytes.fromhex("0000803f000000c00000003f")
    assert bytes(values_only.encode(values)) == payload
    assert values_only.decode(payload, 3).tolist() == [1.0, -2.0, 0.5]


@given(hnp.arrays(np.uint32, st.integers(0, 65)))
def test_any_pattern_of_bits_survives(words: Words) -> None:
    values = words.view(np.float32)
    payload = values_only.encode(values)
    assert bytes(payload) == struct.pack(f"<{words.size}I", *words.tolist())
    assert bits(values_only.decode(payload, words.size)) == words.tolist()


def test_special_numbers_survive_bit_for_bit() -> None:
    values = np.array(SPECIAL, dtype=np.uint32).view(np.float32)
    assert bits(values_only.decode(values_only.encode(values), len(SPECIAL))) == list(SPECIAL)


@pytest.mark.parametrize("size", range(66))
def test_every_small_size_survives_and_has_the_promised_length(size: int) -> None:
    values = np.arange(size, dtype=np.float32)
    payload = values_only.encode(values)
    assert len(payload) == values_only.encoded_bytes(size) == 4 * size
    for form in (payload, bytes(payload), bytearray(payload)):
        assert values_only.decode(form, size).tolist() == values.tolist()


def test_encoding_a_contiguous_vector_makes_no_copy() -> None:
    values = np.zeros(4, dtype=np.float32)
    payload = values_only.encode(values)
    values[0] = 1
    assert bytes(payload[:4]) == bytes.fromhex("0000803f")


def test_a_strided_or_foreign_vector_is_encoded_as_its_values() -> None:
    values = np.arange(6, dtype=np.float32)
    assert bytes(values_only.encode(values[::2])) == struct.pack("<3f", 0, 2, 4)
    foreign = values.astype(">f4")
    assert bytes(values_only.encode(foreign)) == struct.pack("<6f", *range(6))


def test_too_few_and_too_many_bytes_raise_different_errors() -> None:
    with pytest.raises(TruncatedPayload, match="payload has 11 bytes, 12 were promised") as short:
        values_only.decode(bytes(11), 3)
    assert (short.value.expected, short.value.actual) == (12, 11)
    with pytest.raises(TrailingBytes, match="payload has 13 bytes, only 12 were promised") as long:
        values_only.decode(bytes(13), 3)
    assert (long.value.expected, long.value.actual) == (12, 13)


@given(st.binary(max_size=40), st.integers(0, 10))
def test_any_bytes_decode_or_are_a_codec_error(payload: bytes, count: int) -> None:
    try:
        values = values_only.decode(payload, count)
    except CodecError:
        assert len(payload) != 4 * count
    else:
        assert values.tobytes() == payload


def test_a_huge_count_is_refused_before_allocation() -> None:
    with pytest.raises(TruncatedPayload):
        values_only.decode(b"", 2**62)


def test_the_encoding_has_the_bytes_of_the_bare_values() -> None:
    vector = SparseVector(4, b"\x0d", np.array([1, -2, 0.5], dtype=np.float32))
    payload = bytes.fromhex("0000803f000000c00000003f")
    assert VALUES_ONLY.encode(vector) == payload
    assert VALUES_ONLY.decode(payload, 4, 3, b"\x0d") == vector
    larger = random_vector(2 * BLOCK + 9, 0.9)
    assert VALUES_ONLY.encode(larger) == values_only.encode(larger.values)


def test_values_cannot_be_placed_without_the_mask() -> None:
    with pytest.raises(MaskError, match="the mask is needed"):
        VALUES_ONLY.decode(bytes(12), 4, 3)


def test_parts_are_views_of_the_vector_and_decoded_values_of_the_payload() -> None:
    vector = random_vector(2 * BLOCK, 1)
    for part in VALUES_ONLY.parts(vector):
        assert np.shares_memory(np.frombuffer(part, np.uint8), vector.values)
    payload = VALUES_ONLY.encode(vector)
    values = VALUES_ONLY.decode(payload, vector.size, vector.num_kept, vector.bits).values
    assert np.shares_memory(values, np.frombuffer(payload, np.uint8))
