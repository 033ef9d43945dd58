"""A run of bytes whose length the reader knows, entropy-coded where that is smaller.

    section   length u32 | data

The reader knows the section's `size` before it reads. `length` equal to `size` means that the
bytes stand there as they are; a smaller one, that they are a zstd frame of so many bytes, which
must state its content size. So a section never takes more than 4 bytes beyond its content.
Nothing is allocated on the word of the sender: the frame must say what the reader expects, and
be long enough to hold that (`check_can_hold`).
"""

import struct
import threading
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

# Huffman codes and hardly any search for repetitions: the bytes of differences do not repeat.
# Measured on planes of trained weights: within 1 % of their entropy, 3 times as fast as level 1.
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
    """Raise TruncatedPayload if `num_bytes` are too few for so much, however well it is coded."""
    least = -(-content_bytes // MAX_EXPANSION)
    if num_bytes < least:
        raise TruncatedPayload(least, num_bytes)


_of_thread = threading.local()


def _huffman() -> zstandard.ZstdCompressor:
    """Return this thread's compressor: a new one for every block takes 5 % of the block's time."""
    if not hasattr(_of_thread, "huffman"):
        _of_thread.huffman = zstandard.ZstdCompressor(compression_params=_HUFFMAN)
    found: zstandard.ZstdCompressor = _of_thread.huffman
    return found


class SectionWriter:
    """Entropy-codes sections; `levels` besides Huffman codes are zstd levels to try as well."""

    def __init__(self, levels: Sequence[int] = ()) -> None:
        self._others = [zstandard.ZstdCompressor(level=level) for level in levels]

    def write(self, content: Bytes, out: memoryview) -> int:
        """Write a section into the caller's buffer; return the bytes it took."""
        raw = content.data.cast("B") if content.size else memoryview(b"")
        best: Buffer = raw
        for compressor in (_huffman(), *self._others) if content.size else ():
            frame = compressor.compress(raw)
            if len(frame) < len(best):
                best = frame
        struct.pack_into("<I", out, 0, len(best))
        end = HEADER_BYTES + len(best)
        out[HEADER_BYTES:end] = best
        return end


class SectionReader:
    """Reads one section after the other."""

    def __init__(self, payload: Buffer) -> None:
        self._payload = memoryview(payload).cast("B")
        self._decompressor = zstandard.ZstdDecompressor()
        self.at = 0

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self._payload) - self.at

    def read_raw(self, count: int) -> memoryview:
        """Return the next `count` bytes as they are."""
        if count > self.left:
            raise TruncatedPayload(self.at + count, len(self._payload))
        self.at += count
        return self._payload[self.at - count : self.at]

    def read(self, size: int) -> Bytes:
        """Return the content of the next section, which must have `size` bytes."""
        (length,) = struct.unpack("<I", self.read_raw(HEADER_BYTES))
        if length > size:
            raise MalformedPayload(f"a section of {length} bytes where {size} are the most")
        data = self.read_raw(length)
        if length == size:
            return np.frombuffer(data, dtype=np.uint8)
        return np.frombuffer(self._decompress(data, size), dtype=np.uint8)

    def _decompress(self, frame: memoryview, size: int) -> bytes:
        try:
            stated = zstandard.frame_content_size(frame)
            if stated != size:
                raise MalformedPayload(f"a frame of {stated} bytes where {size} are expected")
            check_can_hold(len(frame), size)
            content = self._decompressor.decompress(
                frame, max_output_size=size, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise MalformedPayload(f"not a zstd frame: {error}") from error
        if len(content) != size:
            raise MalformedPayload(f"a frame of {len(content)} bytes where {size} are expected")
        return content
