"""Write seed inputs for a target's corpus: parameters followed by real payloads.

python tests/fuzz/make_seeds.py TARGET FOLDER
"""

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.targets import ANY_BITS, TARGETS, any_floats
from ssfl.codec import bfloat16, blocks, int8, masks, planes, reference, scores, sorted_bits
from ssfl.codec.bitmask import BITMASK
from ssfl.codec.blocks import Floats, ValueCode
from ssfl.codec.contract import Encoding, SparseVector
from ssfl.codec.coo import COO
from ssfl.codec.dense import DENSE
from ssfl.codec.grid import Grid
from ssfl.codec.sections import SectionWriter
from ssfl.codec.values_only import VALUES_ONLY
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec

MAX_SEED_BYTES = 4096  # as run_target.py limits its inputs
SIZES = (0, 1, 3, 8, 65, 300, 4000, 65535)
CODES: dict[str, ValueCode] = {
    "reference": reference.CODE,
    "bfloat16": bfloat16.CODE,
    "int8": int8.CODE,
    "grid": Grid(),
}
ENCODINGS: dict[str, Encoding] = {
    "dense": DENSE,
    "values_only": VALUES_ONLY,
    "coo": COO,
    "bitmask": BITMASK,
}
SHAPES: list[list[sorted_bits.Shape]] = [
    [],
    [(7,)],
    [(3, 4), (2, 2, 3, 3)],
    [(0, 5), (16, 8, 3, 3)],
    [(2, 3, 2, 2, 2), (), (9,)],
]


def count(number: int) -> bytes:
    """Return the bytes that Input.count reads."""
    return number.to_bytes(2, "little") + b"\0"


def some_values(size: int) -> list[Floats]:
    """Return small numbers, mostly equal ones, and none but zeros."""
    rng = np.random.default_rng(size)
    small = rng.normal(0, 0.01, size).astype(np.float32)
    return [small, np.where(rng.random(size) < 0.05, small, 0).astype(np.float32), 0 * small]


def section(content: bytes) -> bytes:
    out = bytearray(4 + len(content))
    array = np.frombuffer(content, dtype=np.uint8)
    return bytes(out[: SectionWriter((1,)).write(array, memoryview(out))])


def seeds_of_values(code: ValueCode) -> Iterator[bytes]:
    for size in SIZES:
        for values in some_values(size):
            yield count(size) + b"\0" + blocks.encode(code, values, None)
            yield count(size) + b"\2" + blocks.encode(code, values, None, ANY_BITS[:size])
            if code.lossless:
                yield count(size) + b"\1" + blocks.encode(code, values, any_floats(size))
    two_blocks = np.ones(65535 * 2, dtype=np.float32)
    yield b"\xff\xff\1\0" + blocks.encode(code, two_blocks, None)


def seeds_of_encoding(encoding: Encoding) -> Iterator[bytes]:
    for size in (0, 1, 8, 9, 65, 300):
        for flags in (0, 1, 1 | 127 << 1, 1 | 12 << 1):
            kept = ANY_BITS[:size] < np.uint32((flags >> 1) << 25)
            vector = SparseVector.from_dense(any_floats(size), kept)
            head = count(size) + bytes([flags])
            if flags:
                yield head + bytes(3) + encoding.encode(vector)
            yield (
                count(size)
                + b"\0"
                + vector.num_kept.to_bytes(3, "little")
                + encoding.encode(vector)
            )


def seeds(target: str) -> Iterator[bytes]:
    if target in CODES:
        yield from seeds_of_values(CODES[target])
    elif target in ENCODINGS:
        yield from seeds_of_encoding(ENCODINGS[target])
    for size in SIZES:
        zeros, some = bytes(size), ANY_BITS.tobytes()[:size] if size < 4000 else b"\x11" * size
        for content in (zeros, some):
            if target == "sections":
                yield count(size) + b"\0" + section(content)
                yield count(size) + b"\1" + 2 * section(content)
            elif target == "masks":
                if frame := masks.compress(content):
                    yield (8 * size).to_bytes(3, "little") + frame
            elif target == "packed_bits" and size < 32:
                yield bytes([8 * size, size // 4]) + content
        for number, dtype in enumerate((np.uint8, np.uint16, np.uint32)):
            if target == "planes":
                integers = (ANY_BITS[:size] & np.uint32(0x10F)).astype(dtype)
                out = bytearray(planes.bound(size, integers.itemsize))
                used = planes.write(integers, memoryview(out))
                yield count(size) + bytes([number]) + out[:used]
        for values in some_values(size) if target == "scores" else ():
            for mantissa_bits in (0, 3, 7):
                words = ANY_BITS[:size]
                yield count(size) + scores.encode(np.abs(values), size, words, mantissa_bits)
    for shapes in SHAPES if target == "sorted_bits" else ():
        size = sum(int(np.prod(shape)) for shape in shapes)
        head = bytes([len(shapes)]) + b"".join(bytes([len(s), *s]) for s in shapes)
        bits = np.packbits(ANY_BITS[:size] < np.uint32(1 << 29), bitorder="little").tobytes()
        yield head + b"\0" + sorted_bits.encode(bits, shapes)
        yield head + b"\1" + sorted_bits.encode(bits, shapes, any_floats(size))
    if target == "chunks":
        yield b"\x06\0\0\0" + b"\3\3abc" + b"\3\3def"
        yield b"\x06\0\0\2" + b"\2\3" + bytes([2, *bytes(7)]) + b"abc"
        yield b"\x03\0\0\0" + b"\1\3abc" + zlib.crc32(b"abc").to_bytes(4, "little")
        yield b"\0\0\x20\0" + b"\7\x80" + bytes(128) + b"\7\x81" + bytes(129)
        yield b"\0\0\x20\0" + 2 * (b"\7\x80" + bytes(128)) + b"\3\1a"
    if target == "manifest":
        yield from seeds_of_manifest()


def seeds_of_manifest() -> Iterator[bytes]:
    masked = TensorSpec("fc.weight", (2, 2), Role.MASKED, Init("normal", 1.0))
    dense = TensorSpec("fc.bias", (2,), Role.DENSE, Init("zeros"))
    buffer = TensorSpec("mean", (), Role.BUFFER, Init("sent"))
    uniform = TensorSpec("ä", (1, 2, 3, 4), Role.MASKED, Init("uniform", 0.1))
    yield Manifest((masked,)).json
    yield Manifest((masked, dense), {"model": "tiny"}).json
    yield Manifest((buffer, uniform, dense, masked), {"a": [1, None, {"b": 1.5}]}).json
    yield b'{"format":2}'
    yield b'[{"format":NaN}]'


def main(target: str, folder: Path) -> None:
    if target not in TARGETS:
        sys.exit(f"which target? one of {', '.join(TARGETS)}")
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        if len(seed) <= MAX_SEED_BYTES:
            (folder / f"seed-{number:03}").write_bytes(seed)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
