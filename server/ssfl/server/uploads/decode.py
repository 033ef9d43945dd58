"""Encodings of uploads: which are allowed, how large they may be, and their values in blocks."""

from collections.abc import Iterator, Mapping

from ssfl.codec import blocks, reference, scores, values_only
from ssfl.codec.blocks import ValueCode
from ssfl.method.model_state import Vector
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import lossy_code
from ssfl.server.errors import InvalidRequest, StaleBase
from ssfl.server.uploads.encoding_choice import LOSSY
from ssfl.v1 import transfer_pb2 as pb

Sizes = Mapping[pb.Encoding, tuple[int, int]]  # smallest and largest payload
DIGEST_BYTES = 32


def check_payload(payload: pb.Payload, allowed: Sizes) -> None:
    """Raise InvalidRequest unless the announced encoding, size and digest are allowed."""
    if payload.encoding not in allowed:
        names = " or ".join(pb.Encoding.Name(one) for one in allowed)
        raise InvalidRequest(f"encoding {payload.encoding} is not allowed; expected {names}")
    least, most = allowed[payload.encoding]
    if not least <= payload.num_bytes <= most:
        expected = str(most) if least == most else f"at most {most}"
        raise InvalidRequest(f"{payload.num_bytes} bytes announced; expected {expected}")
    if len(payload.digest) != DIGEST_BYTES:
        raise InvalidRequest(f"a digest has {DIGEST_BYTES} bytes, not {len(payload.digest)}")


def check_update(
    payload: pb.Payload, count: int, base_digest: bytes, settings: RunSettings
) -> None:
    """Raise a refusal unless `payload` is valid for an update of `count` values."""
    fixed = values_only.encoded_bytes(count)
    allowed = {pb.ENCODING_VALUES_ONLY: (fixed, fixed)}
    for encoding, code in _codes(settings).items():
        allowed[encoding] = (1, blocks.max_encoded_bytes(code, count))
    check_payload(payload, allowed)
    if payload.reference_digest not in (b"", base_digest):
        raise StaleBase("the update is coded against other values: ask for the task again")


def check_scores(payload: pb.Payload, count: int, settings: RunSettings) -> None:
    """Raise InvalidRequest unless `payload` is valid for `count` scores."""
    fixed = values_only.encoded_bytes(count)
    allowed = {pb.ENCODING_DENSE: (fixed, fixed)}
    if settings.scores == "compact":
        allowed[pb.ENCODING_SCORES] = (1, scores.max_encoded_bytes(count))
    check_payload(payload, allowed)


def update_blocks(
    data: memoryview, payload: pb.Payload, base: Vector, settings: RunSettings
) -> Iterator[tuple[int, Vector]]:
    """Yield the values of an update in blocks, each with its offset."""
    if payload.encoding == pb.ENCODING_VALUES_ONLY:
        yield 0, values_only.decode(data, base.size)
        return
    code = _codes(settings)[payload.encoding]
    against = base if payload.reference_digest else None
    yield from blocks.decode_blocks(code, data, base.size, against)


def score_blocks(data: memoryview, payload: pb.Payload, count: int) -> Iterator[tuple[int, Vector]]:
    """Yield the scores of a report in blocks, each with its offset."""
    if payload.encoding == pb.ENCODING_DENSE:
        yield 0, values_only.decode(data, count)
        return
    yield from scores.decode_blocks(data, count)


def _codes(settings: RunSettings) -> dict[pb.Encoding, ValueCode]:
    codes: dict[pb.Encoding, ValueCode] = {pb.ENCODING_REFERENCE: reference.CODE}
    if lossy := lossy_code(settings):
        codes[LOSSY[settings.value_type]] = lossy
    return codes
