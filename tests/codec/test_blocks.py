from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.value_codes import (
    BLOCK_EDGES,
    CODES,
    LOSSY,
    bits,
    patterns,
    random_changes,
    random_words,
    round_trip,
)
from ssfl.codec import blocks, reference
from ssfl.codec.blocks import BLOCK, ValueCode
from ssfl.codec.errors import CodecError, TrailingBytes, TruncatedPayload, UnfitValues

every_code = pytest.mark.parametrize("code", CODES.values(), ids=CODES)
every_lossy_code = pytest.mark.parametrize("code", LOSSY.values(), ids=LOSSY)


@every_code
@pytest.mark.parametrize("size", [*range(66), *BLOCK_EDGES])
def test_incompressible_values_of_every_size_stay_within_the_bound(
    code: ValueCode, size: int
) -> None:
    values = random_changes(code, size)
    assert round_trip(code, values, None).shape == (size,)
    base = np.zeros(size, dtype=np.float32)
    assert blocks.encode(code, values, base) == blocks.encode(code, values, None)
    if not code.lossless:
        assert round_trip(code, values, None, np.zeros(size, dtype=np.uint32)).shape == (size,)


@every_code
def test_blocks_do_not_depend_on_each_other(code: ValueCode) -> None:
    values, noise = random_changes(code, 2 * BLOCK + 5), random_words(2 * BLOCK + 5)
    used = None if code.name == "bfloat16" else noise  # could round the largest to infinity
    edges = [*range(0, values.size, BLOCK), values.size]
    apart = [
        bytes(blocks.encode(code, values[a:b], None, None if used is None else used[a:b]))
        for a, b in pairwise(edges)
    ]
    assert bytes(blocks.encode(code, values, None, used)) == b"".join(apart)


@every_code
def test_blocks_arrive_in_order_with_their_places(code: ValueCode) -> None:
    values = random_changes(code, 2 * BLOCK + 5)
    payload = blocks.encode(code, values, None)
    arrived = [*blocks.decode_blocks(code, payload, values.size, None)]
    assert [start for start, _ in arrived] == [0, BLOCK, 2 * BLOCK]
    whole = blocks.decode(code, payload, values.size, None)
    assert bits(np.concatenate([block for _, block in arrived])) == bits(whole)


@every_code
def test_a_strided_vector_is_coded_as_its_values(code: ValueCode) -> None:
    values = random_changes(code, 100)
    base = np.zeros(100, dtype=np.float32)
    base[::2] = values[::2]
    apart = blocks.encode(code, values[::3].copy(), base[::3].copy())
    assert blocks.encode(code, values[::3], base[::3]) == apart
    received = blocks.decode(code, apart, 34, base[::3])
    assert bits(received) == bits(blocks.decode(code, apart, 34, base[::3].copy()))


@every_code
def test_nothing_is_written_behind_the_payload_and_inputs_stay_as_they_are(
    code: ValueCode,
) -> None:
    values, base = random_changes(code, 1000), np.zeros(1000, dtype=np.float32)
    before = bits(values), bits(base)
    bound = blocks.max_encoded_bytes(code, 1000)
    buffer = bytearray(b"\xaa" * (bound + 8))
    length = blocks.encode_into(code, values, base, memoryview(buffer)[:bound])
    assert buffer[length:] == b"\xaa" * (bound + 8 - length)
    assert buffer[:length] == blocks.encode(code, values, base)
    blocks.decode(code, buffer[:length], 1000, base)
    assert (bits(values), bits(base)) == before


@every_code
def test_a_reference_of_another_size_is_refused_at_both_ends(code: ValueCode) -> None:
    values = random_changes(code, 5)
    payload = blocks.encode(code, values, None)
    for size in (0, 4, 6):
        base = np.zeros(size, dtype=np.float32)
        with pytest.raises(CodecError, match=f"a reference of {size} values for 5"):
            blocks.encode(code, values, base)
        with pytest.raises(CodecError, match=f"a reference of {size} values for 5"):
            blocks.decode(code, payload, 5, base)


@every_code
def test_every_cut_and_every_extra_byte_is_found(code: ValueCode) -> None:
    payload = bytes(blocks.encode(code, random_changes(code, 9), None))
    for length in range(len(payload)):
        with pytest.raises(CodecError):
            blocks.decode(code, payload[:length], 9, None)
    with pytest.raises(TrailingBytes) as caught:
        blocks.decode(code, payload + b"\0", 9, None)
    assert (caught.value.expected, caught.value.actual) == (len(payload), len(payload) + 1)
    with pytest.raises(TrailingBytes):
        blocks.decode(code, payload, 0, None)


@every_code
def test_an_empty_payload_decodes_only_to_no_values(code: ValueCode) -> None:
    assert blocks.max_encoded_bytes(code, 0) == 0
    assert blocks.decode(code, b"", 0, None).shape == (0,)
    for count in (1, BLOCK, 2**40, 2**62):
        with pytest.raises(TruncatedPayload):
            blocks.decode(code, b"", count, None)


@every_code
@given(st.binary(max_size=80), st.integers(0, 20), st.data())
def test_any_bytes_decode_or_are_a_codec_error(
    code: ValueCode, payload: bytes, count: int, data: st.DataObject
) -> None:
    base = data.draw(st.one_of(st.none(), patterns(count)))
    try:
        values = blocks.decode(code, payload, count, base)
    except CodecError:
        return
    assert values.shape == (count,)


@every_code
@given(st.data())
def test_a_damaged_payload_decodes_or_is_a_codec_error(
    code: ValueCode, data: st.DataObject
) -> None:
    # Half random, half zeros: sections as they are and sections that are frames.
    values = random_changes(code, 400)
    values[200:] = 0
    payload = bytearray(blocks.encode(code, values, None))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        received = blocks.decode(code, payload, 400, None)
    except CodecError:
        return
    assert received.shape == (400,)


@every_lossy_code
@pytest.mark.parametrize("bad", [0x7FC01234, 0x7F801234, 0xFFC00001, 0x7F800000, 0xFF800000])
def test_a_lossy_code_refuses_nan_and_infinity_at_any_place(code: ValueCode, bad: int) -> None:
    good = np.zeros(BLOCK + 2, dtype=np.float32)
    values = good.copy()
    values[-1:] = np.array([bad], dtype=np.uint32).view(np.float32)
    for pair in ((values, good), (good, values), (values, values), (values, None)):
        with pytest.raises(UnfitValues):
            blocks.encode(code, *pair)


def test_the_relative_error_is_the_share_of_the_change() -> None:
    base: npt.NDArray[np.float32] = np.zeros(2, dtype=np.float32)
    values = np.array([3, 4], dtype=np.float32)
    assert blocks.relative_error(values, values, base) == 0.0
    assert blocks.relative_error(values, base, base) == 1.0
    assert blocks.relative_error(values, np.array([3, 3.5], dtype=np.float32), base) == 0.1
    assert blocks.relative_error(base, base, base) == 0.0


def test_names_are_unique_but_for_the_grids() -> None:
    assert len({code.name for code in CODES.values()}) == 4
    assert reference.CODE.lossless and not any(code.lossless for code in LOSSY.values())


@every_code
@pytest.mark.parametrize("wrong", ["float64", "float16", "int64", "two rows", "list"])
def test_nothing_is_converted_silently(code: ValueCode, wrong: str) -> None:
    good = np.zeros(4, dtype=np.float32)
    made = {"two rows": good.reshape(2, 2), "list": [0.0] * 4}
    bad = made[wrong] if wrong in made else good.astype(wrong)
    payload = blocks.encode(code, good, None)
    with pytest.raises(TypeError, match="values must be one row of float32"):
        blocks.encode(code, bad, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the reference must be one row of float32"):
        blocks.encode(code, good, bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the reference must be one row of float32"):
        blocks.decode(code, payload, 4, bad)  # type: ignore[arg-type]


@every_lossy_code
def test_random_words_must_be_one_uint32_per_value(code: ValueCode) -> None:
    values = np.ones(4, dtype=np.float32)
    with pytest.raises(TypeError, match="random words must be one row of uint32"):
        blocks.encode(code, values, None, np.ones(4, dtype=np.uint64))
    with pytest.raises(CodecError, match="1 random words for 4 values"):
        blocks.encode(code, values, None, np.ones(1, dtype=np.uint32))
