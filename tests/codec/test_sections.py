import struct

import numpy as np
import numpy.typing as npt
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ssfl.codec.errors import CodecError, MalformedPayload, TruncatedPayload
from ssfl.codec.sections import (
    HEADER_BYTES,
    MAX_EXPANSION,
    SectionReader,
    SectionWriter,
    check_can_hold,
)


def written(content: bytes, levels: tuple[int, ...] = ()) -> bytes:
    out = bytearray(b"\xaa" * (HEADER_BYTES + len(content)))
    array = np.frombuffer(content, dtype=np.uint8)
    return bytes(out[: SectionWriter(levels).write(array, memoryview(out))])


def section(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def random_bytes(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def test_short_content_is_written_raw() -> None:
    assert written(b"abc").hex() == "03000000616263"
    assert written(b"").hex() == "00000000"


def test_golden_bytes_of_a_frame_can_be_read() -> None:
    # RFC 8878: magic; descriptor 0x20: one byte of content size, single segment; size 100;
    # block header: last (1), RLE (1 << 1), of 100 bytes (100 << 3); the byte that is repeated.
    frame = bytes.fromhex("28b52ffd 20 64 230300 07")
    assert SectionReader(section(frame)).read(100).tobytes() == b"\x07" * 100


@pytest.mark.parametrize("levels", [(), (1,), (1, 19)])
@pytest.mark.parametrize("size", [*range(66), 255, 256, 257, 65535, 65536, 65537])
def test_random_bytes_are_written_raw_and_repeated_ones_as_a_frame(
    size: int, levels: tuple[int, ...]
) -> None:
    content = random_bytes(size)
    assert written(content, levels) == section(content)
    zeros = written(bytes(size), levels)
    assert len(zeros) <= HEADER_BYTES + min(size, 40)
    for payload, expected in ((section(content), content), (zeros, bytes(size))):
        reader = SectionReader(payload)
        assert reader.read(size).tobytes() == expected
        assert (reader.left, reader.at) == (0, len(payload))


@given(st.binary(max_size=300), st.integers(1, 200))
def test_any_content_survives_and_takes_at_most_4_bytes_more(piece: bytes, repeats: int) -> None:
    content = piece * repeats
    payload = written(content, (1,))
    assert len(payload) <= HEADER_BYTES + len(content)
    assert SectionReader(payload).read(len(content)).tobytes() == content


def test_the_smallest_of_the_levels_is_written() -> None:
    rng = np.random.default_rng(0)  # 100 words of 16 random bytes: only a search finds them
    content = rng.integers(0, 256, (100, 16), dtype=np.uint8)[rng.integers(0, 100, 4000)].tobytes()
    assert len(written(content)) > 3 * len(written(content, (1,)))
    assert len(written(content, (1, 19))) < len(written(content, (1,)))
    assert written(content, (1, 19)) == written(content, (19, 1))


def test_sections_are_read_one_after_the_other() -> None:
    reader = SectionReader(written(b"ab") + written(bytes(1000)) + b"xyz" + written(b""))
    assert reader.read(2).tobytes() == b"ab"
    assert reader.read(1000).tobytes() == bytes(1000)
    assert bytes(reader.read_raw(3)) == b"xyz"
    assert reader.read(0).size == 0
    assert reader.left == 0


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_can_be_read(form: type) -> None:
    assert SectionReader(form(written(bytes(500)))).read(500).tobytes() == bytes(500)
    words: npt.NDArray[np.uint32] = np.frombuffer(section(b"abcd"), dtype="<u4")
    assert SectionReader(words.data).read(4).tobytes() == b"abcd"


def test_a_cut_section_is_truncated_wherever_it_is_cut() -> None:
    payload = section(b"abcdef")
    for length in range(len(payload)):
        with pytest.raises(TruncatedPayload) as caught:
            SectionReader(payload[:length]).read(6)
        assert caught.value.actual == length < caught.value.expected


def test_more_bytes_than_the_content_has_are_refused() -> None:
    with pytest.raises(MalformedPayload, match="a section of 4 bytes, at most 3 are possible"):
        SectionReader(section(b"abcd")).read(3)
    with pytest.raises(MalformedPayload):
        SectionReader(b"\xff\xff\xff\xff").read(3)
    with pytest.raises(MalformedPayload):
        SectionReader(section(b"a")).read(0)


def test_a_frame_must_state_the_size_that_is_expected() -> None:
    for stated in (999, 1001):
        frame = zstandard.ZstdCompressor().compress(bytes(stated))
        with pytest.raises(MalformedPayload, match=f"a frame of {stated} bytes, 1000 are"):
            SectionReader(section(frame)).read(1000)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    with pytest.raises(MalformedPayload, match="a frame of -1 bytes, 1000 are"):
        SectionReader(section(silent)).read(1000)


def test_a_frame_of_the_stated_size_that_holds_something_else_is_refused() -> None:
    for held in (99, 101):  # as in the golden frame, which holds 100
        block = (1 | 1 << 1 | held << 3).to_bytes(3, "little") + b"\x07"
        with pytest.raises(MalformedPayload, match="not a zstd frame"):
            SectionReader(section(bytes.fromhex("28b52ffd2064") + block)).read(100)


def test_bytes_behind_a_frame_are_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(1000))
    for extra in (b"\0", frame, bytes.fromhex("502a4d1800000000")):
        with pytest.raises(MalformedPayload, match="unused data"):
            SectionReader(section(frame + extra)).read(1000)


def test_every_cut_of_a_frame_is_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(500) + random_bytes(100))
    for length in range(len(frame)):
        with pytest.raises(MalformedPayload):
            SectionReader(section(frame[:length])).read(600)


def test_content_too_large_for_the_frame_length_is_truncated() -> None:
    check_can_hold(0, 0)
    check_can_hold(3, 3 * MAX_EXPANSION)
    with pytest.raises(TruncatedPayload) as caught:
        check_can_hold(3, 3 * MAX_EXPANSION + 1)
    assert (caught.value.expected, caught.value.actual) == (4, 3)


@pytest.mark.parametrize("size", [1 << 17, 1 << 20, (1 << 24) + 1])
def test_the_shortest_frame_that_zstd_writes_can_hold_its_content(size: int) -> None:
    frame = zstandard.ZstdCompressor(level=19).compress(bytes(size))
    check_can_hold(len(frame), size)
    assert SectionReader(section(frame)).read(size).tobytes() == bytes(size)


def test_the_largest_possible_expansion_is_accepted() -> None:
    # 64 RLE blocks of 128 KiB each: 4 bytes a block, the most that RFC 8878 allows.
    header = bytes.fromhex("28b52ffd a0") + (64 << 17).to_bytes(4, "little")
    runs = [(1 << 1 | (1 << 17) << 3 | (n == 63)).to_bytes(3, "little") + b"\5" for n in range(64)]
    assert SectionReader(section(header + b"".join(runs))).read(64 << 17).tobytes() == (
        b"\5" * (64 << 17)
    )


@given(st.binary(max_size=60), st.integers(0, 200))
def test_any_bytes_are_a_section_or_a_codec_error(payload: bytes, size: int) -> None:
    try:
        content = SectionReader(payload).read(size)
    except CodecError:
        return
    assert content.size == size


@given(st.data())
def test_a_damaged_frame_is_a_section_or_a_codec_error(data: st.DataObject) -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(300) + b"\x55" * 100 + b"abc"))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        content = SectionReader(section(bytes(frame))).read(403)
    except CodecError:
        return
    assert content.size == 403
