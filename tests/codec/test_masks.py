import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ssfl.codec import masks
from ssfl.codec.errors import CodecError, MaskError, TruncatedPayload


@pytest.mark.parametrize(("size", "num_bytes"), [(0, 0), (1, 1), (7, 1), (8, 1), (9, 2), (65, 9)])
def test_a_byte_holds_eight_coordinates(size: int, num_bytes: int) -> None:
    assert masks.packed_bytes(size) == num_bytes


@pytest.mark.parametrize("size", range(66))
def test_masks_of_every_small_size_survive(size: int) -> None:
    for number in (0, (1 << size) - 1, (1 << size) // 3):  # none kept, all kept, every other
        bits = number.to_bytes(masks.packed_bytes(size), "little")
        assert masks.checked(bits, size) == bits
        frame = zstandard.ZstdCompressor().compress(bits)
        assert masks.decompress(frame, size) == bits


@pytest.mark.parametrize("size", [65535 * 8, 65536 * 8 - 1, 65536 * 8 + 1, 131073 * 8])
def test_a_sparse_mask_is_compressed_and_a_random_one_is_not(size: int) -> None:
    sparse = bytearray(masks.packed_bytes(size))
    sparse[len(sparse) // 2] = 4
    frame = masks.compress(bytes(sparse))
    assert frame is not None and len(frame) < 100
    assert masks.decompress(memoryview(frame), size) == sparse
    assert masks.compress(np.random.default_rng(0).bytes(masks.packed_bytes(size))) is None
    assert masks.compress(b"") is None


@given(st.binary(max_size=10), st.integers(0, 70))
def test_any_bits_are_a_mask_or_a_mask_error(bits: bytes, size: int) -> None:
    sound = len(bits) == (size + 7) // 8 and int.from_bytes(bits, "little") < 1 << size
    if sound:
        assert masks.checked(memoryview(bits), size) == bits
    else:
        with pytest.raises(MaskError):
            masks.checked(bits, size)


@given(st.integers(0, 40).flatmap(lambda n: st.tuples(*[st.binary(min_size=n, max_size=n)] * 2)))
def test_the_difference_is_its_own_inverse(pair: tuple[bytes, bytes]) -> None:
    bits, reference = pair
    between = masks.difference(bits, reference)
    assert masks.difference(between, reference) == bits
    assert masks.difference(between, bits) == reference
    assert masks.difference(reference, bits) == between
    assert masks.difference(bits, bits) == bytes(len(bits))
    assert masks.difference(bits, bytes(len(bits))) == bits


def test_the_difference_of_masks_of_two_sizes_is_refused() -> None:
    assert masks.difference(b"\x0d\x02", b"\x0c\x03").hex() == "0101"
    with pytest.raises(MaskError, match="a mask of 2 bytes against one of 1"):
        masks.difference(b"\x0d\x02", b"\x0c")


def test_a_frame_of_another_size_is_refused_naming_both() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(11))
    with pytest.raises(MaskError, match="the frame holds 11 bytes, a mask of 80 has 10"):
        masks.decompress(frame, 80)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10))
    with pytest.raises(MaskError, match="the frame holds -1 bytes"):
        masks.decompress(silent, 80)


def test_bytes_behind_the_frame_are_refused() -> None:
    frame = masks.compress(bytes(1000))
    assert frame is not None
    for extra in (b"\0", frame):
        with pytest.raises(MaskError, match="unused data"):
            masks.decompress(frame + extra, 8000)


def test_a_frame_too_short_for_its_mask_is_truncated() -> None:
    stated = (1 << 37).to_bytes(8, "little")
    with pytest.raises(TruncatedPayload):
        masks.decompress(bytes.fromhex("28b52ffde0") + stated + b"\1\0\0", 1 << 40)


@given(st.data())
def test_a_damaged_frame_is_a_mask_or_a_codec_error(data: st.DataObject) -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(300) + b"\x55" * 100))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        bits = masks.decompress(frame[: data.draw(st.integers(0, len(frame)))], 3197)
    except CodecError:
        return
    assert len(bits) == 400 and bits[-1] < 1 << 5


def test_bits_behind_the_last_coordinate_are_refused() -> None:
    assert masks.checked(b"\x07", 3) == b"\x07"
    with pytest.raises(MaskError, match="bits behind the last coordinate"):
        masks.checked(b"\x08", 3)
    frame = zstandard.ZstdCompressor().compress(b"\x08")
    with pytest.raises(MaskError, match="bits behind the last coordinate"):
        masks.decompress(frame, 3)


def test_a_frame_that_does_not_state_its_size_is_refused() -> None:
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(MaskError, match="the frame holds -1 bytes"):
        masks.decompress(silent, 8000)
