"""Parts of updates from hostile clients are refused by name, before or after their bytes arrive."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ssfl.client.coding import write_reply
from ssfl.codec import masks
from ssfl.codec.errors import CodecError, DigestMismatch
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.server.errors import InvalidRequest, StaleBase
from ssfl.server.uploads.update_parts import ReadUpdate, check_parts, sections_of, whole_payload
from ssfl.strategies.contract import Answer, Received, UploadParts
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2, update_pb2

SETTINGS = RunSettings(strategy="feddst")
MANIFEST = Manifest(
    (
        TensorSpec("w", (20,), Role.MASKED, Init("ones")),
        TensorSpec("b", (2,), Role.DENSE, Init("zeros")),
    )
)
INITIAL = np.arange(1, 23, dtype=np.float32)
MASK = Mask.from_bools(np.arange(20) % 2 == 0)
OWN = Mask.from_bools(np.arange(20) % 4 < 2)
BASE = ModelState(MANIFEST, INITIAL, MASK, 1, MASK.gather(INITIAL))
PARTS = UploadParts(bits=True, max_kept=12, vectors=("control",), num_numbers=2)
TESTED = Evaluation(1, 2, 3.0)


def sent(
    coded: bool = False, mask: Mask | None = OWN, numbers: tuple[float, ...] = (1.0, 2.0)
) -> tuple[update_pb2.SparseUpdate, bytes]:
    """Return a valid update of every kind of part: its header and its bytes."""
    assert BASE.values is not None
    count = (mask or MASK).num_kept + 2
    values = np.arange(count, dtype=np.float32) / np.float32(8)
    answer = Answer(LocalResult(values, 0.5, TESTED, TESTED), mask, {"control": -values}, numbers)
    work = pb.TrainTask(
        base_digest=BASE.base_digest,
        update_encoding=(
            transfer_pb2.ENCODING_REFERENCE if coded else transfer_pb2.ENCODING_UNSPECIFIED
        ),
    )
    received = Received(MASK, BASE.values, 0, "adjust")
    coded_update = write_reply(answer, received, work, SETTINGS, MANIFEST, "ann", None)
    return coded_update.header, bytes(coded_update.data)


def check(header: update_pb2.SparseUpdate, parts: UploadParts = PARTS) -> None:
    check_parts(header, parts, BASE, SETTINGS)


def read(header: update_pb2.SparseUpdate, data: bytes) -> tuple[Mask, Vector]:
    update = ReadUpdate(header, BASE, SETTINGS, memoryview(data))
    mask = update.mask() if header.HasField("own_mask") else MASK
    return mask, np.concatenate([block for _, block in update.blocks(mask)])


@pytest.mark.parametrize("coded", [False, True])
def test_all_parts_arrive_as_they_were_sent(coded: bool) -> None:
    header, data = sent(coded)
    check(header)
    mask, values = read(header, data)
    assert mask == OWN
    expected = np.arange(OWN.num_kept + 2, dtype=np.float32) / 8
    assert values.tolist() == [*expected.tolist(), *(-expected).tolist()]
    assert whole_payload(header).num_bytes == len(data)


def test_without_coding_the_bytes_follow_from_the_counts() -> None:
    header, data = sent()
    bits, values, control = (section.payload.num_bytes for section in sections_of(header))
    count = OWN.num_kept + MANIFEST.num_unmasked
    assert (bits, values, control) == (masks.packed_bytes(20), 4 * count, 4 * count)
    assert len(data) == bits + values + control


def test_an_update_of_values_alone_is_announced_by_their_payload() -> None:
    header, _ = sent(mask=None, numbers=())
    del header.vectors[:]
    assert whole_payload(header) is header.values
    check(header, UploadParts())


def test_the_digest_of_an_update_covers_its_numbers() -> None:
    one, other = sent(numbers=(1.0,))[0], sent(numbers=(2.0,))[0]
    assert whole_payload(one).digest != whole_payload(other).digest


def set_kept(count: int) -> Callable[[update_pb2.SparseUpdate], None]:
    return lambda header: setattr(header.own_mask, "num_kept", count)


def set_size(extra: int) -> Callable[[update_pb2.SparseUpdate], None]:
    def change(header: update_pb2.SparseUpdate) -> None:
        header.values.num_bytes += extra

    return change


def set_number(number: float) -> Callable[[update_pb2.SparseUpdate], None]:
    def change(header: update_pb2.SparseUpdate) -> None:
        header.numbers[0] = number

    return change


HEADERS: dict[str, tuple[Callable[[update_pb2.SparseUpdate], Any], str]] = {
    "too many bits": (set_kept(13), "keeps 13 weights; expected 1 to 12"),
    "no bits": (set_kept(0), "keeps 0 weights"),
    "more than the model": (set_kept(2**63), "expected 1 to 12"),
    "fewer bits than values": (set_kept(9), "bytes announced; expected"),
    "a longer mask": (
        lambda header: setattr(header.own_mask.mask, "num_bytes", 2**40),
        "bytes announced; expected 3",
    ),
    "an unknown encoding of bits": (
        lambda header: setattr(header.own_mask.mask, "encoding", transfer_pb2.ENCODING_DENSE),
        "is not allowed",
    ),
    "bits against another mask": (
        lambda header: setattr(header.own_mask.mask, "reference_digest", bytes(32)),
        "coded against another",
    ),
    "bits without a payload": (lambda header: header.own_mask.ClearField("mask"), "has no bits"),
    "too many values": (set_size(4), "bytes announced; expected"),
    "too few values": (set_size(-4), "bytes announced; expected"),
    "a name that is not the step's": (
        lambda header: setattr(header.vectors[0], "name", "moments"),
        "the step expects: control",
    ),
    "no further vector": (lambda header: header.ClearField("vectors"), "0 further vectors"),
    "a vector too many": (lambda header: header.vectors.add(name="x"), "2 further vectors"),
    "a longer vector": (
        lambda header: setattr(header.vectors[0].values, "num_bytes", 2**40),
        "bytes announced; expected",
    ),
    "a vector with a reference": (
        lambda header: setattr(header.vectors[0].values, "reference_digest", bytes(32)),
        "without a reference",
    ),
    "too many numbers": (
        lambda header: header.numbers.extend([1.0] * 9),
        "11 numbers; expected 2",
    ),
    "too few numbers": (lambda header: header.numbers.pop(), "1 numbers; expected 2"),
    "no numbers": (lambda header: header.ClearField("numbers"), "0 numbers; expected 2"),
    "a number that is NaN": (set_number(float("nan")), "finite"),
    "an infinite number": (set_number(float("inf")), "finite"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_cannot_be_is_refused_by_name(name: str) -> None:
    change, message = HEADERS[name]
    header, _ = sent()
    change(header)
    with pytest.raises(InvalidRequest, match=message):
        check(header)


def test_parts_that_a_step_does_not_have_are_refused() -> None:
    header, _ = sent()
    with pytest.raises(InvalidRequest, match="no mask of its own"):
        check(header, UploadParts())
    with pytest.raises(InvalidRequest, match="has no values"):
        check(header, UploadParts(values=False, bits=True))
    header, _ = sent(mask=None)
    with pytest.raises(InvalidRequest, match="needs a mask"):
        check(header, UploadParts(bits=True, bits_required=True))


def test_values_against_another_base_are_stale() -> None:
    header, _ = sent(coded=True)
    header.values.reference_digest = bytes(32)
    with pytest.raises(StaleBase):
        check(header)


def with_bits(bits: bytes, encoding: Any = transfer_pb2.ENCODING_BITMASK) -> tuple[Any, bytes]:
    """Return an update whose mask payload is replaced."""
    header, data = sent()
    rest = data[header.own_mask.mask.num_bytes :]
    header.own_mask.mask.encoding = encoding
    header.own_mask.mask.num_bytes = len(bits)
    header.own_mask.mask.digest = hashlib.sha256(bits).digest()
    return header, bits + rest


def test_bits_that_differ_from_the_header_are_refused() -> None:
    for bits in (MASK.bits, bytes(3), b"\xff\xff\x0f"):
        header, data = with_bits(bits)
        check(header)
        with pytest.raises(InvalidRequest, match="does not match its digest"):
            read(header, data)


def test_spare_bits_that_are_set_are_refused() -> None:
    header, data = with_bits(b"\xff\xff\xff")
    with pytest.raises(InvalidRequest, match="bits behind the last"):
        read(header, data)


def test_a_compressed_mask_of_another_size_is_refused_before_it_is_unpacked() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    header, data = with_bits(frame[:3], transfer_pb2.ENCODING_BITMASK_ZSTD)
    with pytest.raises(InvalidRequest, match="mask of the update"):
        read(header, data)


def test_a_damaged_part_is_not_used() -> None:
    header, data = sent()
    for at in (0, 5, len(data) - 1):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(DigestMismatch):
            read(header, bytes(broken))


@given(st.binary(max_size=40), st.sampled_from([3, 4, 10]))
def test_any_bytes_of_a_mask_are_read_or_refused(bits: bytes, encoding: int) -> None:
    header, data = with_bits(bits, encoding)
    try:
        check(header)
        read(header, data)
    except (InvalidRequest, CodecError):
        return
