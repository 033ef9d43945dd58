"""Payloads that claim far more than they hold; each must be refused without allocation.

Run as a script, it decodes all of them under a memory limit that none would survive. The limit
includes the memory of zstd and numpy, which tracemalloc does not see. The script prints a line
for every bomb and exits with 1 if one went off.
"""

import resource
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import zstandard

from ssfl.codec import bfloat16, blocks, int8, masks, reference, scores, sorted_bits
from ssfl.codec.bitmask import BITMASK
from ssfl.codec.coo import COO
from ssfl.codec.dense import DENSE
from ssfl.codec.errors import CodecError
from ssfl.codec.grid import Grid
from ssfl.codec.sections import SectionReader
from ssfl.codec.values_only import VALUES_ONLY

HUGE = 1 << 40
SPARE_BYTES = 16 << 20
MAGIC = bytes.fromhex("28b52ffd")
LAST_BLOCK = bytes.fromhex("010000")  # raw and empty

# Hand-made frames, RFC 8878 section 3.1.1. Descriptor: bits 6-7 are the width of the content
# size, bit 5 is single segment (no window byte), bits 0-1 are the width of a dictionary id.


def frame_of_size(content_bytes: int, blocks: bytes = LAST_BLOCK) -> bytes:
    return MAGIC + b"\xe0" + content_bytes.to_bytes(8, "little") + blocks


def run_of(byte: int, length: int, last: bool) -> bytes:
    return (last | 1 << 1 | length << 3).to_bytes(3, "little") + bytes([byte])


SILENT = MAGIC + b"\x00\xa8" + run_of(0, 1000, last=True)  # no content size, a window of 2 GiB
WIDE = MAGIC + b"\xc0\xa8" + (1000).to_bytes(8, "little")  # content of 1000, a window of 2 GiB
WIDEST = MAGIC + b"\xc0\xff" + (1000).to_bytes(8, "little")  # a window of 3.75 TiB
WITH_DICTIONARY = MAGIC + b"\x61\x07" + (1000 - 256).to_bytes(2, "little")
SKIPPABLE = bytes.fromhex("502a4d18") + (0xFFFFFFFF).to_bytes(4, "little")
ONE_RUN = run_of(0, 1000, last=True)
LONG = b"".join(run_of(0, 1 << 17, last=False) for _ in range(200)) + ONE_RUN  # 25 MiB and more
LARGE = zstandard.ZstdCompressor().compress(bytes(1 << 26))  # 64 MiB of zeros

FRAMES = {
    "a frame that states 2^40 bytes": frame_of_size(HUGE),
    "a frame that states 2^62 bytes": frame_of_size(1 << 62),
    "a frame that states 2^64 - 3 bytes": frame_of_size((1 << 64) - 3),
    "a frame that states 1000 and holds 25 MiB": frame_of_size(1000, LONG),
    "a frame that states 1000 and holds nothing": frame_of_size(1000),
    "a frame that does not state its size": SILENT,
    "a frame with a window of 2 GiB, cut": WIDE + ONE_RUN[:-1],
    "a frame with a window of 4 TiB": WIDEST + ONE_RUN,
    "a frame with a dictionary": WITH_DICTIONARY + ONE_RUN,
    "a frame to be skipped": SKIPPABLE,
    "a frame to be skipped before a sound one": SKIPPABLE[:4]
    + bytes(4)
    + frame_of_size(1000, ONE_RUN),
    "two frames": 2 * frame_of_size(1000, ONE_RUN),
    "64 MiB of zeros": LARGE,
    "nothing": b"",
}


def section(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def read_section(data: bytes, size: int) -> object:
    return SectionReader(data).read(size)


def _frames() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield frames that are invalid for an expected content of 1000 bytes."""
    for name, frame in FRAMES.items():
        data = section(frame)
        yield f"sections, {name}", partial(read_section, data, 1000)
        yield f"masks, {name}", partial(masks.decompress, frame, 8000)
        yield f"scores, {name}", partial(scores.decode, b"\3\1\0" + data, 1000)
        yield f"reference, {name}", partial(blocks.decode, reference.CODE, data, 1000, None)
        yield f"sorted bits, {name}", partial(sorted_bits.decode, b"\0\2" + data, [(499, 499)])


def _counts() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield payloads too short for the size the receiver expects."""
    whole = section(frame_of_size(HUGE))
    short = {"empty": b"", "a few bytes": bytes(9), "a frame": whole, "zeros": bytes(10_000)}
    for name, data in short.items():
        for code in (reference.CODE, bfloat16.CODE, int8.CODE, Grid()):
            label = f"2^40 values in {code.name}, {name}"
            yield label, partial(blocks.decode, code, data, HUGE, None)
        for encoding in (DENSE, VALUES_ONLY, COO, BITMASK):
            label = f"2^31 coordinates in {encoding.name}, {name}"
            yield label, partial(encoding.decode, data, 1 << 31, 1 << 30)
        yield f"2^40 bytes in a section, {name}", partial(read_section, data, HUGE)
        yield f"2^40 scores, {name}", partial(scores.decode, b"\3\1\0" + data, HUGE)
        yield f"2^40 bytes of a mask, {name}", partial(masks.decompress, data[4:], 8 * HUGE)
        for shape in ((HUGE,), (1, HUGE), (1, 1, HUGE), (1 << 20, 1 << 20)):
            label = f"2^40 sorted bits as {shape}, {name}"
            yield label, partial(sorted_bits.decode, b"\0\2" + data, [shape])
    side = b"\0\2" + section(bytes(4))  # of a tensor with one output and one input channel
    label = "2^40 sorted bits of one channel, sound side information"
    yield label, partial(sorted_bits.decode, side, [(1, 1, HUGE)])


BOMBS = {**dict(_frames()), **dict(_counts())}


def main() -> int:
    """Decode every bomb under the limit; return the exit code."""
    masks.decompress(frame_of_size(1000, ONE_RUN), 8000)  # load lazy modules before the limit
    np.zeros(1000, dtype=np.float32).sum()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        bytearray(2 * SPARE_BYTES)
    except MemoryError:
        pass
    else:
        print("the memory limit has no effect")
        return 1
    failed = 0
    for name, bomb in BOMBS.items():
        try:
            bomb()
        except CodecError as error:
            print(f"{name}: {error}")
        except Exception as error:  # noqa: BLE001  # any other error counts as a failure
            failed += 1
            print(f"{name}: WENT OFF: {error!r}")
        else:
            failed += 1
            print(f"{name}: WENT OFF: it was decoded")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
