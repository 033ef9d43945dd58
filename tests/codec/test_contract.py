import io
import shutil
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from codec.conformance import (
    SPECIAL,
    check_any_bytes,
    check_chunks,
    check_round_trip,
    of_words,
    random_vector,
    vectors,
)
from ssfl.codec.choose import ENCODINGS
from ssfl.codec.contract import BLOCK, MAX_SIZE, Encoding, SparseVector, check_mask
from ssfl.codec.errors import ChunkError, CodecError, MaskError, TrailingBytes, TruncatedPayload
from ssfl.codec.values_only import ValuesOnly

BLOCK_EDGES = (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 9)
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)


def some_vector() -> SparseVector:
    return of_words(np.array([1, 0, 1, 1, 0], dtype=np.bool_), np.arange(5, dtype=np.uint32))


# Every encoding keeps the contract.


@every_encoding
@given(vector=vectors())
def test_any_vector_survives_bit_for_bit(encoding: Encoding, vector: SparseVector) -> None:
    check_round_trip(encoding, vector)


@every_encoding
def test_special_numbers_survive_bit_for_bit(encoding: Encoding) -> None:
    words = np.array(SPECIAL, dtype=np.uint32)
    check_round_trip(encoding, of_words(np.ones(words.size, dtype=np.bool_), words))


@every_encoding
@pytest.mark.parametrize("density", [0, 0.5, 1])
@pytest.mark.parametrize("size", range(66))
def test_every_small_size_survives(encoding: Encoding, size: int, density: float) -> None:
    check_round_trip(encoding, random_vector(size, density, seed=size))


@every_encoding
@pytest.mark.parametrize("density", [0, 0.001, 0.1, 1])
@pytest.mark.parametrize("size", BLOCK_EDGES)
def test_sizes_around_a_block_survive_in_chunks(
    encoding: Encoding, size: int, density: float
) -> None:
    vector = random_vector(size, density)
    check_round_trip(encoding, vector)
    for chunk_bytes in (4099, 65536, 1 << 20):
        check_chunks(encoding, vector, chunk_bytes)


@every_encoding
@given(vector=vectors(), chunk_bytes=st.integers(1, 300), data=st.data())
def test_chunks_of_any_size_from_any_byte_join_to_the_payload(
    encoding: Encoding, vector: SparseVector, chunk_bytes: int, data: st.DataObject
) -> None:
    end = encoding.encoded_bytes(vector.size, vector.num_kept)
    check_chunks(encoding, vector, chunk_bytes, at=data.draw(st.integers(0, end)))


@every_encoding
def test_every_odd_chunk_size_cuts_values_in_half_and_loses_nothing(encoding: Encoding) -> None:
    vector = random_vector(77, 0.6)
    for chunk_bytes in range(1, 4 * 77 + 2, 2):
        check_chunks(encoding, vector, chunk_bytes)


@every_encoding
def test_a_payload_is_resumed_at_any_byte_around_a_block(encoding: Encoding) -> None:
    vector = random_vector(2 * BLOCK + 9, 0.5)
    end = encoding.encoded_bytes(vector.size, vector.num_kept)
    for at in (1, end // 3, 4 * BLOCK - 1, 4 * BLOCK, 4 * BLOCK + 1, end - 1, end):
        check_chunks(encoding, vector, 50_001, min(at, end))


@every_encoding
@pytest.mark.parametrize("outside", [-1, 25 * 8])
def test_a_payload_cannot_begin_outside_itself(encoding: Encoding, outside: int) -> None:
    with pytest.raises(ChunkError, match=f"cannot begin at byte {outside}"):
        encoding.reader(some_vector(), at=outside)


@every_encoding
def test_a_reader_is_a_file_to_the_standard_library(encoding: Encoding) -> None:
    vector, out = random_vector(BLOCK + 9, 0.3), io.BytesIO()
    shutil.copyfileobj(encoding.reader(vector), out, 1000)
    assert out.getvalue() == encoding.encode(vector) == encoding.reader(vector).read()


@every_encoding
def test_a_strided_vector_has_the_payload_of_its_values(encoding: Encoding) -> None:
    vector = random_vector(BLOCK + 9, 0.9)
    apart = np.repeat(vector.values.view(np.uint32), 2).view(np.float32)[::2]
    assert not apart.flags.c_contiguous
    assert encoding.encode(SparseVector(vector.size, vector.bits, apart)) == encoding.encode(vector)


@every_encoding
@pytest.mark.parametrize("contiguous", [True, False])
def test_streaming_takes_the_memory_of_a_block_not_of_the_vector(
    encoding: Encoding, contiguous: bool
) -> None:
    size = 32 * BLOCK
    values = np.ones(size, dtype=np.float32) if contiguous else np.ones(2 * size, "f4")[::2]
    vector = SparseVector(size, b"\xff" * (size // 8), values)
    buffer = bytearray(1 << 16)
    tracemalloc.start()
    try:
        reader = encoding.reader(vector)
        while reader.readinto(buffer):
            pass
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 24 * BLOCK < values.nbytes / 5


# Hostile bytes.


@every_encoding
@given(
    payload=st.binary(max_size=60),
    size=st.integers(-2, 60),
    num_kept=st.integers(-2, 60),
    bits=st.none() | st.binary(max_size=8),
)
def test_any_bytes_decode_or_are_a_codec_error(
    encoding: Encoding, payload: bytes, size: int, num_kept: int, bits: bytes | None
) -> None:
    check_any_bytes(encoding, payload, size, num_kept, bits)


@every_encoding
@given(vector=vectors(max_size=30), knows_mask=st.booleans(), data=st.data())
def test_random_bytes_of_the_right_length_decode_or_are_a_codec_error(
    encoding: Encoding, vector: SparseVector, knows_mask: bool, data: st.DataObject
) -> None:
    length = encoding.encoded_bytes(vector.size, vector.num_kept)
    payload = data.draw(st.binary(min_size=length, max_size=length))
    bits = vector.bits if knows_mask else None
    check_any_bytes(encoding, payload, vector.size, vector.num_kept, bits)


@every_encoding
@given(vector=vectors(), knows_mask=st.booleans(), data=st.data())
def test_a_flipped_bit_is_another_vector_or_a_codec_error(
    encoding: Encoding, vector: SparseVector, knows_mask: bool, data: st.DataObject
) -> None:
    payload = encoding.encode(vector)
    assume(payload)
    place = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[place // 8] ^= 1 << place % 8
    bits = vector.bits if knows_mask else None
    assert check_any_bytes(encoding, payload, vector.size, vector.num_kept, bits) != vector


@every_encoding
@given(vector=vectors(), extra=st.binary(min_size=1, max_size=9), data=st.data())
def test_a_truncated_and_an_extended_payload_raise_different_errors(
    encoding: Encoding, vector: SparseVector, extra: bytes, data: st.DataObject
) -> None:
    payload = encoding.encode(vector)
    with pytest.raises(TrailingBytes):
        encoding.decode(payload + extra, vector.size, vector.num_kept, vector.bits)
    if payload:
        cut = data.draw(st.integers(0, len(payload) - 1))
        with pytest.raises(TruncatedPayload):
            encoding.decode(payload[:cut], vector.size, vector.num_kept, vector.bits)


@every_encoding
@pytest.mark.parametrize(
    ("size", "num_kept"),
    [(1 << 40, 1), (1 << 40, 1 << 40), (MAX_SIZE, MAX_SIZE), (MAX_SIZE + 1, 0), (1 << 70, 2)],
)
def test_a_huge_count_is_refused_before_memory_is_taken(
    encoding: Encoding, size: int, num_kept: int
) -> None:
    tracemalloc.start()
    try:
        for bits in (None, b"\x01"):
            with pytest.raises(CodecError):
                encoding.decode(bytes(8), size, num_kept, bits)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 16


@every_encoding
@pytest.mark.parametrize(("size", "num_kept"), [(3, 4), (-1, -1), (3, -1), (-8, 0)])
def test_the_size_of_impossible_counts_is_refused(
    encoding: Encoding, size: int, num_kept: int
) -> None:
    with pytest.raises(MaskError, match=f"cannot keep {num_kept} of {size} coordinates"):
        encoding.encoded_bytes(size, num_kept)


@pytest.mark.parametrize("name", ["dense", "coo", "bitmask"])  # values_only cannot detect it
def test_a_payload_of_another_mask_is_refused(name: str) -> None:
    vector = some_vector()  # keeps 0, 2 and 3; coordinate 2 is not zero
    other = bytes([0b01011])
    with pytest.raises(MaskError, match=r"off the mask|other coordinates"):
        ENCODINGS[name].decode(ENCODINGS[name].encode(vector), 5, 3, other)


@every_encoding
def test_a_mask_that_does_not_fit_the_counts_is_refused(encoding: Encoding) -> None:
    vector = some_vector()
    payload = encoding.encode(vector)
    for bits in (b"", b"\x0d\x00", b"\x0f", b"\x05", b"\x2d"):
        with pytest.raises(MaskError):
            encoding.decode(payload, vector.size, vector.num_kept, bits)


def test_only_values_only_needs_the_mask() -> None:
    assert [code.name for code in ENCODINGS.values() if code.needs_mask] == ["values_only"]


# The vector itself.


@given(vectors())
def test_the_dense_form_holds_each_kept_value_at_its_coordinate(vector: SparseVector) -> None:
    words = vector.dense().view(np.uint32)
    values = iter(vector.values.view(np.uint32).tolist())
    for i in range(vector.size):
        kept = vector.bits[i // 8] >> i % 8 & 1
        assert words[i] == (next(values) if kept else 0)
    assert next(values, None) is None


def test_vectors_are_equal_when_every_bit_is() -> None:
    nan = SparseVector(2, b"\x01", np.array([np.nan], dtype=np.float32))
    assert nan == SparseVector(2, b"\x01", nan.values.copy())
    assert nan != SparseVector(2, b"\x02", nan.values)
    assert nan != SparseVector(3, b"\x01", nan.values)
    zero = SparseVector(2, b"\x01", np.array([0.0], dtype=np.float32))
    assert zero != SparseVector(2, b"\x01", -zero.values)
    assert zero != "a vector"


@pytest.mark.parametrize(
    ("size", "bits", "message"),
    [
        (9, b"\x03", "1 bytes for a mask of 9 coordinates"),
        (3, b"\x0b", "bits behind the last coordinate are set"),
        (8, b"\x07", "the mask keeps 3 coordinates, not 2"),
        (1, b"\x01", "cannot keep 2 of 1 coordinates"),
        (MAX_SIZE + 1, b"", "more than the limit"),
    ],
)
def test_a_vector_that_contradicts_itself_is_refused(size: int, bits: bytes, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        SparseVector(size, bits, np.zeros(2, dtype=np.float32))


def test_values_of_another_type_or_shape_are_refused() -> None:
    with pytest.raises(TypeError, match=r"got \(1,\) of float64"):
        SparseVector(1, b"\x01", np.zeros(1))  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(TypeError, match=r"got \(1, 1\) of float32"):
        SparseVector(1, b"\x01", np.zeros((1, 1), dtype=np.float32))
    with pytest.raises(MaskError, match=r"shape \(3,\) for a vector of shape \(2,\)"):
        SparseVector.from_dense(np.zeros(2, np.float32), np.ones(3, np.bool_))


def test_a_mask_is_counted_whole() -> None:
    check_mask(b"\xff" * 1000, 8000, 8000)  # more than a byte can count
    with pytest.raises(MaskError, match="keeps 8000 coordinates, not 64"):
        check_mask(b"\xff" * 1000, 8000, 64)


# The checks themselves: a faulty encoding must not pass them.


class LosesSigns(ValuesOnly):
    def parts(self, vector: SparseVector) -> Iterator[memoryview]:
        return super().parts(SparseVector(vector.size, vector.bits, vector.values + np.float32(0)))


class PromisesTooLittle(ValuesOnly):
    def encoded_bytes(self, size: int, num_kept: int) -> int:
        return super().encoded_bytes(size, num_kept) - 4


class IgnoresAByte(ValuesOnly):
    def unpack(
        self, payload: memoryview, size: int, num_kept: int, bits: bytes | None
    ) -> SparseVector:
        return super().unpack(memoryview(b"\0" + payload[1:]), size, num_kept, bits)


def test_the_checks_find_a_value_that_changed() -> None:
    vector = SparseVector(1, b"\x01", np.array([-0.0], dtype=np.float32))
    check_round_trip(ValuesOnly(), vector)
    with pytest.raises(AssertionError):
        check_round_trip(LosesSigns(), vector)


def test_the_checks_find_a_wrong_size() -> None:
    with pytest.raises((AssertionError, CodecError)):
        check_round_trip(PromisesTooLittle(), some_vector())
    with pytest.raises(AssertionError):
        check_chunks(PromisesTooLittle(), some_vector(), 5)


def test_the_checks_find_two_payloads_of_one_vector() -> None:
    check_any_bytes(ValuesOnly(), b"\1\2\3\4", 1, 1, b"\x01")
    with pytest.raises(AssertionError):
        check_any_bytes(IgnoresAByte(), b"\1\2\3\4", 1, 1, b"\x01")
