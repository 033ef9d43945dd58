import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from codec.conformance import vectors
from ssfl.codec import CodecError, MaskError, bitmask
from ssfl.codec.bitmask import BITMASK
from ssfl.codec.contract import SparseVector


@pytest.mark.parametrize(("size", "num_bytes"), [(0, 0), (1, 1), (7, 1), (8, 1), (9, 2), (65, 9)])
def test_eight_coordinates_to_a_byte(size: int, num_bytes: int) -> None:
    assert bitmask.packed_bytes(size) == num_bytes


@pytest.mark.parametrize("size", range(66))
def test_every_small_mask_survives_compression(size: int) -> None:
    bits = ((1 << size) - 1).to_bytes(bitmask.packed_bytes(size), "little")
    frame = zstandard.ZstdCompressor().compress(bits)
    assert bitmask.decompress(frame, size) == bits
    assert bitmask.checked(bits, size) == bits


def test_a_sparse_mask_is_compressed_and_a_random_one_is_not() -> None:
    sparse = bytes(5000) + b"\x01" + bytes(5000)
    frame = bitmask.compress(sparse)
    assert frame is not None and len(frame) < 100
    assert bitmask.decompress(frame, 8 * len(sparse)) == sparse
    assert bitmask.decompress(memoryview(frame), 8 * len(sparse)) == sparse
    assert bitmask.compress(bytes(range(256))) is None
    assert bitmask.compress(b"") is None


@given(st.binary(max_size=60), st.integers(0, 200))
def test_any_bytes_are_a_frame_of_a_mask_or_a_codec_error(frame: bytes, size: int) -> None:
    try:
        bits = bitmask.decompress(frame, size)
    except CodecError:
        return
    assert len(bits) == bitmask.packed_bytes(size)


@given(st.data())
def test_a_damaged_frame_is_a_mask_or_a_codec_error(data: st.DataObject) -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(300) + b"\x55" * 100))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    try:
        bits = bitmask.decompress(frame[:cut], 3200)
    except CodecError:
        return
    assert len(bits) == 400


@given(st.binary(max_size=10), st.integers(0, 70))
def test_any_bits_are_a_mask_or_a_codec_error(bits: bytes, size: int) -> None:
    number = int.from_bytes(bits, "little")
    sound = len(bits) == (size + 7) // 8 and number < 1 << size
    try:
        assert bitmask.checked(bits, size) == bits
    except CodecError:
        assert not sound
    else:
        assert sound


def test_a_frame_of_another_size_is_refused_naming_both() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(11))
    with pytest.raises(MaskError, match="the frame holds 11 bytes, a mask of 80 has 10"):
        bitmask.decompress(frame, 80)


def frame_that_states(content_bytes: int) -> bytes:
    """Return the head of a zstd frame that states a size, and a last, empty, raw block."""
    # RFC 8878: magic; descriptor 0xE0 = 8 bytes of content size, single segment; size; block.
    return b"\x28\xb5\x2f\xfd\xe0" + content_bytes.to_bytes(8, "little") + b"\x01\x00\x00"


def test_a_frame_that_states_a_huge_size_is_refused_before_allocation() -> None:
    for stated in (1 << 40, 1 << 62, (1 << 64) - 3):
        tracemalloc.start()
        try:
            with pytest.raises(MaskError):
                bitmask.decompress(frame_that_states(stated), 8000)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 1 << 20


def test_a_frame_that_states_the_right_size_but_holds_less_is_refused() -> None:
    with pytest.raises(MaskError):
        bitmask.decompress(frame_that_states(1000), 8000)


def test_a_frame_that_does_not_state_its_size_is_refused() -> None:
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(MaskError, match="the frame holds -1 bytes"):
        bitmask.decompress(silent, 8000)


def test_bytes_behind_the_frame_are_refused() -> None:
    frame = bitmask.compress(bytes(1000))
    assert frame is not None
    with pytest.raises(MaskError, match="unused data"):
        bitmask.decompress(frame + b"\0", 8000)
    with pytest.raises(MaskError, match="unused data"):
        bitmask.decompress(frame + frame, 8000)


def test_bits_behind_the_last_coordinate_are_refused() -> None:
    assert bitmask.checked(b"\x07", 3) == b"\x07"
    with pytest.raises(MaskError, match="bits behind the last coordinate"):
        bitmask.checked(b"\x08", 3)
    frame = zstandard.ZstdCompressor().compress(b"\x08")
    with pytest.raises(MaskError, match="bits behind the last coordinate"):
        bitmask.decompress(frame, 3)


# The encoding: packed bits, then the kept values.

VECTOR = SparseVector(10, b"\x0d\x02", np.array([1, -2, 0.5, 8], dtype=np.float32))
PAYLOAD = bytes.fromhex("0d02 0000803f 000000c0 0000003f 00000041")


def test_golden_bytes_both_ways() -> None:
    assert BITMASK.encode(VECTOR) == PAYLOAD
    assert BITMASK.decode(PAYLOAD, 10, 4) == VECTOR


@given(vectors())
def test_a_payload_is_the_packed_bits_then_the_values(vector: SparseVector) -> None:
    words = vector.values.view(np.uint32).tolist()
    assert BITMASK.encode(vector) == vector.bits + struct.pack(f"<{len(words)}I", *words)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        ("0d00", "the mask keeps 3 coordinates, not 4"),
        ("0f02", "the mask keeps 5 coordinates, not 4"),
        ("0d04", "bits behind the last coordinate are set"),
    ],
)
def test_bits_that_are_no_mask_of_these_counts_are_refused(packed: str, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        BITMASK.decode(bytes.fromhex(packed) + PAYLOAD[2:], 10, 4)


@pytest.mark.parametrize("size", [8, 16, 24, 32])
def test_values_are_aligned_behind_a_mask_of_any_length(size: int) -> None:
    vector = SparseVector(size, b"\xff" * (size // 8), np.arange(size, dtype=np.float32))
    decoded = BITMASK.decode(BITMASK.encode(vector), size, size)
    assert decoded == vector
    assert decoded.values.flags.aligned
