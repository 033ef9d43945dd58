"""Sections: byte strings whose size the reader knows, compressed where that is smaller.

    section   length u32 | data

The reader knows the section's `size` before reading. If `length` equals `size`, the data are the
raw bytes. If it is smaller, the data are a zstd frame of `length` bytes that states its content
size. A section thus takes at most 4 bytes more than its content. Allocation never depends on a
length the sender claims: the frame must state the expected size and be long enough to hold it
(`check_can_hold`).
"""

import struct
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import zstandard

from ssfl.codec.errors import MalformedPayload, TruncatedPayload

HEADER_BYTES = 4
Buffer = bytes | bytearray | memoryview
Bytes = npt.NDArray[np.uint8]

# A block of a zstd frame has at least 4 bytes and holds at most 128 KiB (RFC 8878, 3.1.1.2).
MAX_EXPANSION = (128 << 10) // 4

# Huffman codes with hardly any match search: the bytes of differences do not repeat. On planes of
# trained weights the result is within 1 % of the entropy, 3 times as fast as level 1.
_HUFFMAN = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    window_log=18,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    target_length=0,
    write_content_size=True,
)


def check_can_hold(num_bytes: int, content_bytes: int) -> None:
    """Raise TruncatedPayload if no frame of `num_bytes` can expand to `content_bytes`."""
    min_bytes = -(-content_bytes // MAX_EXPANSION)
    if num_bytes < min_bytes:
        raise TruncatedPayload(min_bytes, num_bytes)


# Compressors not in use: a new one for every block takes 5 % of the block's time. Two threads never
# share one, because pop and append are atomic.
_idle: deque[zstandard.ZstdCompressor] = deque()


def _huffman_coded(raw: Buffer) -> bytes:
    try:
        compressor = _idle.pop()
    except IndexError:
        compressor = zstandard.ZstdCompressor(compression_params=_HUFFMAN)
    try:
        return compressor.compress(raw)
    finally:
        _idle.append(compressor)


class SectionWriter:
    """Writes sections in the smallest form: raw, Huffman codes, or one of the zstd `levels`."""

    def __init__(self, levels: Sequence[int] = ()) -> None:
        self._others = [zstandard.ZstdCompressor(level=level) for level in levels]

    def write(self, content: Bytes, out: memoryview) -> int:
        """Write a section into the caller's buffer; return the number of bytes written."""
        raw = content.data.cast("B") if content.size else memoryview(b"")
        best: Buffer = raw
        if content.size:
            frames = (_huffman_coded(raw), *(other.compress(raw) for other in self._others))
            best = min(best, *frames, key=len)
        struct.pack_into("<I", out, 0, len(best))
        end = HEADER_BYTES + len(best)
        out[HEADER_BYTES:end] = best
        return end


class SectionReader:
    """Reads the sections of a payload in order."""

    def __init__(self, payload: Buffer) -> None:
        self._payload = memoryview(payload).cast("B")
        self._decompressor = zstandard.ZstdDecompressor()
        self.at = 0

    @property
    def left(self) -> int:
        """Number of bytes not yet read."""
        return len(self._payload) - self.at

    def read_raw(self, count: int) -> memoryview:
        """Return the next `count` bytes."""
        if count > self.left:
            raise TruncatedPayload(self.at + count, len(self._payload))
        self.at += count
        return self._payload[self.at - count : self.at]

    def read(self, size: int) -> Bytes:
        """Return the content of the next section, which must have `size` bytes."""
        (length,) = struct.unpack("<I", self.read_raw(HEADER_BYTES))
        if length > size:
            raise MalformedPayload(f"a section of {length} bytes, at most {size} are possible")
        data = self.read_raw(length)
        if length == size:
            return np.frombuffer(data, dtype=np.uint8)
        return np.frombuffer(self._decompress(data, size), dtype=np.uint8)

    def _decompress(self, frame: memoryview, size: int) -> bytes:
        try:
            stated = zstandard.frame_content_size(frame)
            if stated != size:
                raise MalformedPayload(f"a frame of {stated} bytes, {size} are expected")
            check_can_hold(len(frame), size)
            content = self._decompressor.decompress(
                frame, max_output_size=size, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise MalformedPayload(f"not a zstd frame: {error}") from error
        if len(content) != size:
            raise MalformedPayload(f"a frame of {len(content)} bytes, {size} are expected")
        return content
