import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ssfl.codec import planes
from ssfl.codec.errors import CodecError, TruncatedPayload
from ssfl.codec.sections import SectionReader

DTYPES = [np.uint8, np.uint16, np.uint32]


def written(integers: planes.Integers) -> bytes:
    bound = planes.bound(integers.size, integers.itemsize)
    out = bytearray(bound)
    return bytes(out[: planes.write(integers, memoryview(out))])


def test_golden_bytes_lowest_plane_first() -> None:
    integers = np.array([0x04030201, 0x14131211], dtype=np.uint32)
    payload = bytes.fromhex("02000000 0111  02000000 0212  02000000 0313  02000000 0414")
    assert written(integers) == payload
    assert planes.read(SectionReader(payload), 2, np.uint32).tolist() == integers.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.data())
def test_any_integers_survive(dtype: type[np.uint32], data: st.DataObject) -> None:
    integers = data.draw(hnp.arrays(dtype, st.integers(0, 65)))
    payload = written(integers)
    reader = SectionReader(payload)
    received = planes.read(reader, integers.size, dtype)
    assert reader.left == 0
    assert (received.dtype, received.tolist()) == (integers.dtype, integers.tolist())


def test_high_planes_of_small_integers_cost_next_to_nothing() -> None:
    small: npt.NDArray[np.uint32] = np.random.default_rng(0).integers(0, 256, 50_000, np.uint32)
    assert len(written(small)) < 50_000 + 4 * 4 + 3 * 40


@given(st.binary(max_size=80), st.integers(0, 20), st.sampled_from(DTYPES))
def test_any_bytes_are_planes_or_a_codec_error(
    payload: bytes, count: int, dtype: type[np.uint32]
) -> None:
    try:
        integers = planes.read(SectionReader(payload), count, dtype)
    except CodecError:
        return
    assert integers.shape == (count,)


def test_a_missing_plane_is_truncated() -> None:
    payload = written(np.arange(5, dtype=np.uint32))
    with pytest.raises(TruncatedPayload):
        planes.read(SectionReader(payload[: len(payload) // 4]), 5, np.uint32)
