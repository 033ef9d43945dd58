"""Split a payload into chunks and check them on arrival.

The sender splits with `pieces`, the receiver checks with `Receiver`. A gap, a repeat, a
reordering, a flipped bit or an extra byte is detected at the chunk where it occurs.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence

from ssfl.codec.errors import ChecksumMismatch, ChunkError, TrailingBytes

MIN_CHUNK_BYTES = 1 << 16
MAX_CHUNK_BYTES = 1 << 20  # one gRPC message; larger chunks only cost memory
_TARGET_S = 0.5  # a broken connection loses about this much sending time

Piece = tuple[int, memoryview, int]  # offset, data, CRC-32 of data


class ChunkSizer:
    """Adapts the chunk size to about half a second of the link's measured throughput.

    Buffers along the way absorb bursts, so the throughput is measured over at least half a
    second.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.size = 1 << 18
        self._clock = clock
        self._since_s = clock()
        self._num_bytes = 0  # handed over since `_since_s`

    def record_sent(self, num_bytes: int) -> None:
        """Record that `num_bytes` were handed over since the last call."""
        self._num_bytes += num_bytes
        elapsed_s = self._clock() - self._since_s
        if elapsed_s < _TARGET_S:
            return
        target = int(self._num_bytes / elapsed_s * _TARGET_S)
        target = min(max(target, self.size // 2), self.size * 2)  # damp short stalls
        self.size = min(max(target, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
        self._since_s += elapsed_s
        self._num_bytes = 0


def pieces(buffers: Sequence[memoryview], offset: int, sizer: ChunkSizer) -> Iterator[Piece]:
    """Yield the concatenation of `buffers` as chunks, starting at byte `offset`."""
    if offset < 0:
        raise ChunkError(f"a payload has no byte {offset}")
    start = 0  # offset of the current buffer in the payload
    for buffer in (view.cast("B") for view in buffers):
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
        """Accept the next chunk; raise a CodecError if it is not the next or is damaged."""
        if not 1 <= len(data) <= MAX_CHUNK_BYTES:
            raise ChunkError(f"a chunk has 1 to {MAX_CHUNK_BYTES} bytes, this one {len(data)}")
        if offset != self.offset:
            raise ChunkError(f"expected the chunk at byte {self.offset}, got one at {offset}")
        if offset + len(data) > self.num_bytes:
            raise TrailingBytes(self.num_bytes, offset + len(data))
        if zlib.crc32(data) != crc32:
            raise ChecksumMismatch(offset)
        self.offset += len(data)
