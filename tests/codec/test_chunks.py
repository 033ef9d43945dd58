import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.codec import (
    MAX_CHUNK_BYTES,
    ChecksumMismatch,
    ChunkError,
    ChunkSizer,
    CodecError,
    Receiver,
    TrailingBytes,
    chunks,
    pieces,
)


class Link:
    """A simulated link of a given throughput, with its own clock."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.now_s = 100.0
        self.sizer = ChunkSizer(lambda: self.now_s)

    def send_one(self) -> int:
        """Send a chunk of the sizer's size; return that size."""
        size = self.sizer.size
        self.now_s += size / self.bytes_per_s
        self.sizer.record_sent(size)
        return size


def still() -> ChunkSizer:
    """Return a sizer with a stopped clock: an infinitely fast link."""
    return ChunkSizer(lambda: 0.0)


def receive(receiver: Receiver, *data: bytes) -> None:
    for chunk in data:
        receiver.check(receiver.offset, chunk, zlib.crc32(chunk))


def test_chunks_in_order_make_up_the_payload() -> None:
    receiver = Receiver(9)
    assert not receiver.complete
    receive(receiver, b"abc", b"d", b"efghi")
    assert receiver.complete and receiver.offset == 9


def test_an_empty_payload_is_complete_at_once() -> None:
    assert Receiver(0).complete


def test_a_resumed_payload_begins_at_its_offset() -> None:
    receiver = Receiver(9, offset=6)
    receiver.check(6, b"ghi", zlib.crc32(b"ghi"))
    assert receiver.complete


@pytest.mark.parametrize(
    ("what", "offset"), [("a gap", 5), ("a repeat", 0), ("a reordering", 8), ("far away", 1 << 63)]
)
def test_a_chunk_at_another_offset_is_refused_naming_both(what: str, offset: int) -> None:
    receiver = Receiver(20)
    receive(receiver, b"abcd")
    with pytest.raises(ChunkError, match=f"expected the chunk at byte 4, got one at {offset}"):
        receiver.check(offset, b"efgh", zlib.crc32(b"efgh"))
    assert receiver.offset == 4, what


def test_an_empty_chunk_is_refused() -> None:
    with pytest.raises(ChunkError, match="1 to 1048576 bytes, this one 0"):
        Receiver(5).check(0, b"", 0)


def test_an_oversized_chunk_is_refused_and_the_largest_is_not() -> None:
    data = bytes(MAX_CHUNK_BYTES)
    receiver = Receiver(3 * MAX_CHUNK_BYTES)
    receive(receiver, data)
    with pytest.raises(ChunkError, match="this one 1048577"):
        receiver.check(receiver.offset, data + b"\0", zlib.crc32(data + b"\0"))


def test_a_chunk_beyond_the_end_is_refused() -> None:
    receiver = Receiver(6)
    receive(receiver, b"abcd")
    with pytest.raises(TrailingBytes) as caught:
        receiver.check(4, b"efg", zlib.crc32(b"efg"))
    assert (caught.value.expected, caught.value.actual) == (6, 7)
    receive(receiver, b"ef")
    with pytest.raises(CodecError):
        receiver.check(6, b"g", zlib.crc32(b"g"))


@given(st.binary(min_size=1, max_size=50), st.data())
def test_any_flipped_bit_is_found_and_the_chunk_can_come_again(
    data: bytes, draw: st.DataObject
) -> None:
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    receiver = Receiver(len(data))
    with pytest.raises(ChecksumMismatch, match="at byte 0") as caught:
        receiver.check(0, bytes(flipped), zlib.crc32(data))
    assert caught.value.offset == 0 and receiver.offset == 0
    receive(receiver, data)
    assert receiver.complete


BUFFERS = st.lists(st.binary(max_size=40), max_size=4)


@given(BUFFERS, st.integers(0, 170), st.integers(1, 13))
def test_pieces_over_several_buffers_rebuild_the_payload_from_any_offset(
    buffers: list[bytes], offset: int, size: int
) -> None:
    payload = b"".join(buffers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MIN_CHUNK_BYTES", size)
        patch.setattr(chunks, "MAX_CHUNK_BYTES", size)
        sizer = still()
        sizer.size = size
        receiver = Receiver(max(len(payload), offset), offset)
        rebuilt = bytearray()
        for at, data, crc32 in pieces([memoryview(b) for b in buffers], offset, sizer):
            receiver.check(at, bytes(data), crc32)
            assert len(data) <= size
            rebuilt += data
    assert rebuilt == payload[offset:]
    assert receiver.complete


def test_pieces_are_views_not_copies() -> None:
    buffer = bytearray(b"abcdef")
    _, data, _ = next(pieces([memoryview(buffer)], 2, still()))
    buffer[2] = ord("X")
    assert bytes(data) == b"Xdef"


def test_pieces_follow_the_sizer_while_they_are_made() -> None:
    payload = memoryview(bytes(3 << 20))
    now_s = iter(range(100))  # one second per chunk
    sizes = [
        len(data) for _, data, _ in pieces([payload], 0, ChunkSizer(lambda: float(next(now_s))))
    ]
    assert sizes[:4] == [1 << 18, 1 << 17, 1 << 16, 1 << 16]
    assert sum(sizes) == 3 << 20


def test_a_fast_link_grows_to_the_largest_chunk_by_doubling() -> None:
    link = Link(bytes_per_s=1e8)
    sizes = [link.send_one() for _ in range(1000)]
    assert sorted(set(sizes)) == [1 << 18, 1 << 19, 1 << 20]
    assert sizes == sorted(sizes)


def test_a_burst_into_buffers_is_not_taken_for_a_fast_link() -> None:
    """Buffers absorb 2 MB at once; then the link carries 625,000 bytes per second."""
    link = Link(bytes_per_s=1e9)
    for _ in range(8):
        link.send_one()
    link.bytes_per_s = 625_000
    sizes = [link.send_one() for _ in range(40)]
    assert max(sizes) <= 1 << 19
    assert sizes[-1] == pytest.approx(312_500, abs=1)


def test_a_slow_link_shrinks_to_the_smallest_chunk_by_halving() -> None:
    link = Link(bytes_per_s=1000)
    assert [link.send_one() for _ in range(4)] == [1 << 18, 1 << 17, 1 << 16, 1 << 16]


def test_a_medium_link_settles_at_half_a_second_of_its_throughput() -> None:
    link = Link(bytes_per_s=1_000_000)
    for _ in range(4):
        link.send_one()
    # Rounding: the clock adds seconds in floats.
    assert link.send_one() == pytest.approx(500_000, abs=1)


def test_one_slow_moment_only_halves_the_chunk() -> None:
    link = Link(bytes_per_s=1e8)
    for _ in range(1000):
        link.send_one()
    link.now_s += 1000
    sizes = [link.send_one() for _ in range(300)]
    assert (sizes[0], sizes[1], sizes[-1]) == (1 << 20, 1 << 19, 1 << 20)


def test_a_stopped_clock_does_not_divide_by_zero() -> None:
    sizer = still()
    for _ in range(3):
        sizer.record_sent(sizer.size)
    assert sizer.size == 1 << 18
