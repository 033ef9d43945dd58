import math
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.value_codes import patterns, random_words
from ssfl.codec import masks, sorted_bits
from ssfl.codec.errors import (
    CodecError,
    MalformedPayload,
    MaskError,
    TrailingBytes,
    TruncatedPayload,
)
from ssfl.codec.sorted_bits import Shape

Floats = npt.NDArray[np.float32]
SHAPES = st.lists(
    st.lists(st.integers(0, 5), min_size=0, max_size=5).map(tuple), min_size=0, max_size=4
)
RESNET: list[Shape] = [(16, 3, 3, 3), (32, 16, 3, 3), (32, 32, 1, 1), (10, 32)]


def size_of(shapes: list[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def packed(kept: npt.NDArray[np.bool_]) -> bytes:
    return np.packbits(kept, bitorder="little").tobytes()


def round_trip(bits: bytes, shapes: list[Shape], weights: Floats | None) -> int:
    """Check that a mask survives; return the bytes it took."""
    payload = sorted_bits.encode(bits, shapes, weights)
    assert len(payload) <= sorted_bits.max_encoded_bytes(shapes)
    assert payload == sorted_bits.encode(bits, shapes, weights), "not deterministic"
    assert sorted_bits.decode(payload, shapes, weights) == bits
    assert sorted_bits.decode(bytes(payload), shapes, weights) == bits
    return len(payload)


def test_golden_bytes_both_ways() -> None:
    # Coordinates 0 and 2 of 2 x 2: the first input channel is kept, the second is not. Quantiles
    # of 2.5/3 and 0.5/3 are +-0.967, 23 levels; both outputs are as dense as the whole: level 0.
    # Width 2: classes 23 >> 2 = 5 and -23 >> 2 = -6, plus 32; the lower first: bits 00, then 11.
    payload = bytes.fromhex("00 02  06000000 0000 17e9 0000  01000000 00  01000000 03")
    assert bytes(sorted_bits.encode(b"\x05", [(2, 2)])) == payload
    assert sorted_bits.decode(payload, [(2, 2)]) == b"\x05"


def test_golden_bytes_with_weights() -> None:
    # |1.0| is level 0x3f800000 >> 19 = 2032, 2.0 is 2048 and 0.5 is 2016; the median is 2032.
    # One input channel of density 1.5/4 (level -8), outputs 0 or 1 of 1 as quantiles of 0.25
    # and 0.75 (-16 and 16), less the whole's -8. Levels -8 + (-9, 24, -9) + (0, 16, -16):
    # from width 6 on two classes suffice, 31 with the bits 00 and 32 with the bit 1.
    weights = np.array([1.0, -2.0, 0.5], dtype=np.float32)
    payload = bytes.fromhex("01 06  06000000 f007 f8 f718f7  01000000 00  01000000 01")
    assert bytes(sorted_bits.encode(b"\x02", [(3,)], weights)) == payload
    assert sorted_bits.decode(payload, [(3,)], weights) == b"\x02"


@given(SHAPES, st.data())
def test_any_mask_of_any_shapes_survives(shapes: list[Shape], data: st.DataObject) -> None:
    size = size_of(shapes)
    number = data.draw(st.integers(0, (1 << min(size, 4000)) - 1))
    bits = number.to_bytes(masks.packed_bytes(size), "little")
    weights = random_words(size).view(np.float32)
    weights[: min(size, 20)] = data.draw(patterns(min(size, 20)))
    round_trip(bits, shapes, None)
    round_trip(bits, shapes, weights)


@pytest.mark.parametrize("size", range(66))
@pytest.mark.parametrize("weighted", [False, True])
def test_every_small_size_survives_all_kept_and_none_kept(size: int, weighted: bool) -> None:
    weights = random_words(size).view(np.float32) if weighted else None
    for number in (0, (1 << size) - 1, (1 << size) // 3):
        round_trip(number.to_bytes(masks.packed_bytes(size), "little"), [(size,)], weights)


@pytest.mark.parametrize("shapes", [[], [()], [(0,)], [(0, 3)], [(3, 0)], [(2, 2, 0)], [(), (1,)]])
def test_tensors_without_coordinates_survive(shapes: list[Shape]) -> None:
    size = size_of(shapes)
    bits = ((1 << size) - 1).to_bytes(masks.packed_bytes(size), "little")
    round_trip(bits, shapes, None)
    round_trip(bits, shapes, np.ones(size, dtype=np.float32))


@pytest.mark.parametrize(
    "shapes",
    [
        *([(1 << 20,)], [((1 << 20) + 1,)], [(1, (1 << 20) + 9)], [(3, 1, 1 << 19)]),
        *([(1025, 1024)], [(5, 7, 3, 3, 3), (2, 70_000, 9)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_masks_around_the_edges_of_a_block_survive(shapes: list[Shape], weighted: bool) -> None:
    rng = np.random.default_rng(0)
    size = size_of(shapes)
    weights = rng.normal(0, 0.05, size).astype(np.float32) if weighted else None
    round_trip(packed(rng.random(size) < 0.1), shapes, weights)


def test_weights_may_have_any_bits() -> None:
    size = size_of(RESNET)
    bits = packed(np.random.default_rng(1).random(size) < 0.2)
    for word in (0, 0x80000000, 0x7FC01234, 0x7F800000, 0xFF800000, 1, 0xFFFFFFFF):
        round_trip(bits, RESNET, np.full(size, word, dtype=np.uint32).view(np.float32))
    round_trip(bits, RESNET, random_words(size).view(np.float32))


def saliency_mask(shapes: list[Shape]) -> tuple[bytes, Floats]:
    """Return a realistic mask: the largest |gradient x weight|, with uneven channels."""
    rng = np.random.default_rng(2)
    weights, scores = [], []
    for shape in shapes:
        outputs, inputs, rest = shape[0], shape[1], math.prod(shape[2:])
        weight = rng.normal(0, 0.1, (outputs, inputs, rest))
        gradient = rng.normal(0, 1, weight.shape)
        gradient *= rng.lognormal(0, 1, (outputs, 1, 1)) * rng.lognormal(0, 1, (1, inputs, 1))
        weights.append(weight.reshape(-1).astype(np.float32))
        scores.append(np.abs(gradient * weight).reshape(-1))
    all_scores = np.concatenate(scores)
    return packed(all_scores > np.quantile(all_scores, 0.9)), np.concatenate(weights)


@cache
def saliency_payload() -> tuple[bytes, Floats]:
    """Return the payload of such a mask, and the weights needed to decode it."""
    bits, weights = saliency_mask(RESNET)
    return bytes(sorted_bits.encode(bits, RESNET, weights)), weights


def test_shared_knowledge_makes_a_mask_smaller() -> None:
    shapes: list[Shape] = [(128, 64, 3, 3), (128, 128, 3, 3)]
    bits, weights = saliency_mask(shapes)
    frame = masks.compress(bits)
    assert frame is not None
    with_weights, without = round_trip(bits, shapes, weights), round_trip(bits, shapes, None)
    assert with_weights < without < len(frame)


def test_incompressible_bits_stay_within_the_bound() -> None:
    rng = np.random.default_rng(3)
    cases: list[list[Shape]] = [RESNET, [(64,)] * 30, [(1, 1, 100_000)]]
    for shapes in cases:
        size = size_of(shapes)
        weights = random_words(size).view(np.float32)
        round_trip(packed(rng.random(size) < 0.5), shapes, weights)


@pytest.mark.parametrize("size", [0, 5, 7, 12])
def test_weights_of_another_size_are_refused_at_both_ends(size: int) -> None:
    weights = np.ones(size, dtype=np.float32)
    with pytest.raises(MaskError, match=f"{size} weights for a mask of 6 coordinates"):
        sorted_bits.encode(b"\x15", [(2, 3)], weights)
    payload = sorted_bits.encode(b"\x15", [(2, 3)])
    with pytest.raises(MaskError, match=f"{size} weights for a mask of 6 coordinates"):
        sorted_bits.decode(payload, [(2, 3)], weights)


def test_bits_that_do_not_match_the_shapes_are_refused() -> None:
    for bits in (b"", b"\x15\x00", b"\x40"):
        with pytest.raises(MaskError):
            sorted_bits.encode(bits, [(2, 3)])


def test_a_mask_coded_with_weights_needs_them_and_one_without_ignores_them() -> None:
    weights = np.ones(6, dtype=np.float32)
    with pytest.raises(MaskError, match="initial weights that this receiver does not have"):
        sorted_bits.decode(sorted_bits.encode(b"\x15", [(2, 3)], weights), [(2, 3)])
    plain = sorted_bits.encode(b"\x15", [(2, 3)])
    assert sorted_bits.decode(plain, [(2, 3)], weights) == b"\x15"


def test_unknown_flags_and_widths_and_spare_bits_are_refused() -> None:
    payload = bytearray(sorted_bits.encode(b"\x05", [(2, 2)]))
    for flags, width in ((2, 2), (3, 2), (0x80, 2), (0, 0), (0, 1), (0, 8), (0, 255)):
        payload[:2] = flags, width
        with pytest.raises(MalformedPayload, match=f"unknown flags {flags} or width {width} of"):
            sorted_bits.decode(payload, [(2, 2)], np.ones(4, dtype=np.float32))
    payload[:2] = 0, 2
    payload[-1] |= 4  # the last class has two coordinates
    with pytest.raises(MalformedPayload, match="bits behind the last coordinate"):
        sorted_bits.decode(payload, [(2, 2)])


def test_every_cut_and_every_extra_byte_is_found() -> None:
    payload = bytes(sorted_bits.encode(b"\x05\x01", [(2, 2), (5,)]))
    for length in range(len(payload)):
        with pytest.raises(TruncatedPayload):
            sorted_bits.decode(payload[:length], [(2, 2), (5,)])
    with pytest.raises(TrailingBytes):
        sorted_bits.decode(payload + b"\0", [(2, 2), (5,)])


@given(st.binary(max_size=80), SHAPES, st.booleans())
def test_any_bytes_are_a_mask_or_a_codec_error(
    payload: bytes, shapes: list[Shape], weighted: bool
) -> None:
    size = size_of(shapes)
    weights = random_words(size).view(np.float32) if weighted else None
    try:
        bits = sorted_bits.decode(payload, shapes, weights)
    except CodecError:
        return
    assert masks.checked(bits, size) == bits


@given(st.data())
def test_a_damaged_payload_is_a_mask_or_a_codec_error(data: st.DataObject) -> None:
    whole, weights = saliency_payload()
    payload = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = sorted_bits.decode(payload, RESNET, weights)
    except CodecError:
        return
    assert masks.checked(received, size_of(RESNET)) == received
