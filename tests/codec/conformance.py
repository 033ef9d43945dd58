"""Checks that every encoding of a sparse vector must pass; see ssfl.codec.contract.

test_contract.py runs them for each of ENCODINGS: a new encoding is checked by listing it.
"""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ssfl.codec.contract import Encoding, SparseVector
from ssfl.codec.errors import CodecError
from ssfl.codec.sections import Buffer

# Quiet and signalling NaN with payloads, both zeros, both infinities, subnormals.
SPECIAL = (0x7FC01234, 0x7F801234, 0xFFC00001, 0, 0x80000000, 0x7F800000, 0xFF800000, 1, 0x807FFFFF)


def of_words(kept: npt.NDArray[np.bool_], words: npt.NDArray[np.uint32]) -> SparseVector:
    """Return the vector that keeps `kept`, with the bits of one word per coordinate."""
    return SparseVector.from_dense(words.view(np.float32), kept)


@st.composite
def vectors(draw: st.DrawFn, max_size: int = 65) -> SparseVector:
    """Draw any mask and any bits, of small sizes."""
    size = draw(st.integers(0, max_size))
    word = st.one_of(st.sampled_from(SPECIAL), st.integers(0, 2**32 - 1))
    return of_words(
        draw(hnp.arrays(np.bool_, size)), draw(hnp.arrays(np.uint32, size, elements=word))
    )


def random_vector(size: int, density: float, seed: int = 0) -> SparseVector:
    """Return random bits, about one value in 2**8 a NaN; densities 0 and 1 are exact."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, size, dtype=np.uint32)
    return of_words(rng.random(size) < density, words)


def check_round_trip(encoding: Encoding, vector: SparseVector) -> None:
    payload = encoding.encode(vector)
    assert len(payload) == encoding.encoded_bytes(vector.size, vector.num_kept)
    counts = vector.size, vector.num_kept
    for form in (bytes(payload), payload, memoryview(payload)):
        assert encoding.decode(form, *counts, vector.bits) == vector
    if not encoding.needs_mask:
        alone = encoding.decode(payload, *counts)
        assert alone.dense().tobytes() == vector.dense().tobytes()
        assert alone.num_kept in (vector.num_kept, vector.size)


def check_chunks(encoding: Encoding, vector: SparseVector, chunk_bytes: int, at: int = 0) -> None:
    """Check that all chunks but the last are full, and join to the payload from byte `at`."""
    reader = encoding.reader(vector, at)
    buffer = bytearray(b"\xaa" * (chunk_bytes + 1))
    chunks = []
    while filled := reader.readinto(memoryview(buffer)[:chunk_bytes]):
        chunks.append(bytes(buffer[:filled]))
    assert buffer[-1] == 0xAA, "written beyond the caller's buffer"
    assert b"".join(chunks) == encoding.encode(vector)[at:]
    assert all(len(chunk) == chunk_bytes for chunk in chunks[:-1])
    assert reader.readinto(buffer) == 0, "the reader continued after its end"


def check_any_bytes(
    encoding: Encoding, payload: Buffer, size: int, num_kept: int, bits: bytes | None
) -> SparseVector | None:
    """Check that bytes raise CodecError, or decode to a vector whose payload they are."""
    try:
        vector = encoding.decode(payload, size, num_kept, bits)
    except CodecError:
        return None
    assert vector.size == size
    assert vector.bits == bits or bits is None
    assert encoding.encode(vector) == payload
    return vector
