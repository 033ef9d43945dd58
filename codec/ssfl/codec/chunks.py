"""A payload in pieces, every one accounted for.

The sender cuts with `pieces`; the receiver checks each with `Receiver`, so a gap, a repeat, a
reordering, a flipped bit or a byte too many is found at the chunk where it happens.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence

from ssfl.codec.errors import ChecksumMismatch, ChunkError, TrailingBytes

MIN_CHUNK_BYTES = 1 << 16
MAX_CHUNK_BYTES = 1 << 20  # one gRPC message: larger ones cost memory and gain nothing
_TARGET_S = 0.5  # a cut wire then loses at most about half a second of sending

Piece = tuple[int, memoryview, int]  # offset, data, CRC-32 of data


class ChunkSizer:
    """Chunk size that follows the link: about half a second of its measured throughput.

    What is handed over is not sent yet: buffers on the way take a burst at once, then nothing
    for a while. So the throughput is measured over at least half a second.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.size = 1 << 18
        self._clock = clock
        self._since_s = clock()
        self._num_bytes = 0  # handed over since then

    def record_sent(self, num_bytes: int) -> None:
        """Learn that `num_bytes` went out since the last call."""
        self._num_bytes += num_bytes
        elapsed_s = self._clock() - self._since_s
        if elapsed_s < _TARGET_S:
            return
        wanted = int(self._num_bytes / elapsed_s * _TARGET_S)
        wanted = min(max(wanted, self.size // 2), self.size * 2)  # a slow moment is no slow link
        self.size = min(max(wanted, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
        self._since_s += elapsed_s
        self._num_bytes = 0


def pieces(buffers: Sequence[memoryview], offset: int, sizer: ChunkSizer) -> Iterator[Piece]:
    """Yield the concatenation of `buffers` from byte `offset` on."""
    if offset < 0:
        raise ChunkError(f"a payload has no byte {offset}")
    start = 0  # of the current buffer in the whole
    for buffer in (one.cast("B") for one in buffers):
        end = start + len(buffer)
        while offset < end:
            data = buffer[offset - start : offset - start + sizer.size]
            yield offset, data, zlib.crc32(data)
            offset += len(data)
            sizer.record_sent(len(data))
        start = end


class Receiver:
    """Checks that chunks make up a payload of `num_bytes`, starting at `offset`."""

    def __init__(self, num_bytes: int, offset: int = 0) -> None:
        self.num_bytes = num_bytes
        self.offset = offset

    @property
    def complete(self) -> bool:
        return self.offset == self.num_bytes

    def check(self, offset: int, data: bytes, crc32: int) -> None:
        """Raise unless this chunk is the next one and arrived whole; then count it."""
        if not 1 <= len(data) <= MAX_CHUNK_BYTES:
            raise ChunkError(f"a chunk has 1 to {MAX_CHUNK_BYTES} bytes, this one {len(data)}")
        if offset != self.offset:
            raise ChunkError(f"expected the chunk at byte {self.offset}, got one at {offset}")
        if offset + len(data) > self.num_bytes:
            raise TrailingBytes(self.num_bytes, offset + len(data))
        if zlib.crc32(data) != crc32:
            raise ChecksumMismatch(offset)
        self.offset += len(data)
