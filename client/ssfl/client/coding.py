"""Decode settings and payloads from the coordinator; encode scores, updates and weights."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from ssfl.client.errors import Refused, Resync
from ssfl.codec import (
    CodecError,
    UnfitValues,
    bfloat16,
    blocks,
    grid,
    int8,
    masks,
    reference,
    scores,
    sorted_bits,
    values_only,
)
from ssfl.codec.blocks import ValueCode
from ssfl.method.errors import SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import lossy_code, random_words, rounding_words
from ssfl.program.printable import printable
from ssfl.strategies.contract import Answer, Received
from ssfl.strategies.registry import (
    check_settings,
    criterion_names,
    identity,
    strategy_for,
    strategy_names,
)
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, settings_pb2, transfer_pb2, update_pb2

log = logging.getLogger("ssfl.client")

Vector = npt.NDArray[np.float32]

# Encodings that this version reads and writes.
ENCODINGS = [value.name for value in transfer_pb2.Encoding.DESCRIPTOR.values if value.number]
VALUE_CODES: dict[int, ValueCode] = {
    transfer_pb2.ENCODING_REFERENCE: reference.CODE,
    transfer_pb2.ENCODING_BFLOAT16: bfloat16.CODE,
    transfer_pb2.ENCODING_INT8: int8.CODE,
    transfer_pb2.ENCODING_GRID: grid.Grid(),  # each payload has its own number of bits
}


@dataclass(frozen=True)
class EncodedUpdate:
    """The parts of an update to send; `header` announces the bytes in `data`."""

    header: update_pb2.SparseUpdate  # the agent adds samples, loss and evaluations
    data: memoryview
    error: float = 0.0  # coding error, as a share of the update
    residual: Vector | None = None  # coding error, added to the next update


@dataclass(frozen=True)
class EncodedPayload:
    """A payload to send; `payload` describes the bytes in `data`."""

    payload: transfer_pb2.Payload
    data: memoryview
    error: float = 0.0  # coding error, as a share of the update
    residual: Vector | None = None  # coding error, added to the next update


def read_settings(message: settings_pb2.RunSettings) -> RunSettings:
    """Return the run settings of a Join response; raise Refused if they are not valid."""
    received = {}
    for field in fields(RunSettings):
        value = getattr(message, field.name)
        if value or not isinstance(field.default, str):  # older coordinators omit new strings
            received[field.name] = value
    settings = RunSettings(**received)
    for setting, names in (("strategy", strategy_names), ("criterion", criterion_names)):
        if (name := getattr(settings, setting)) not in names():
            raise Refused(
                f"the run's {setting} {printable(name[:200])} is not known at this site: give its "
                f"file with --{setting}, or install its package or a newer ssfl"
            )
    try:
        check_settings(settings)
    except SettingsError as error:
        raise Refused(
            f"this version cannot use the run's settings: {printable(str(error))}"
        ) from error
    return settings


def check_strategy(theirs: str, settings: RunSettings) -> None:
    """Raise Refused if the coordinator has another version of the run's strategy."""
    ours = identity(settings)
    if theirs and theirs != ours:
        raise Refused(
            f"the run has the strategy {printable(theirs[:200])}, and this client has "
            f"{ours or settings.strategy}: give the coordinator's file with --strategy, or install "
            "the same version"
        )


def check_size(payload: transfer_pb2.Payload, manifest: Manifest) -> None:
    """Raise Refused if an announced size is impossible, before memory is allocated for it."""
    if payload.encoding == transfer_pb2.ENCODING_BITMASK_SORTED:
        max_bytes = sorted_bits.max_encoded_bytes(manifest.masked_shapes)
    elif payload.encoding in (transfer_pb2.ENCODING_BITMASK, transfer_pb2.ENCODING_BITMASK_ZSTD):
        max_bytes = masks.packed_bytes(manifest.num_masked)
        # A compressed mask must be smaller than the packed bits.
        max_bytes -= payload.encoding == transfer_pb2.ENCODING_BITMASK_ZSTD
    elif code := VALUE_CODES.get(payload.encoding):
        max_bytes = blocks.max_encoded_bytes(code, manifest.size)
    else:
        max_bytes = values_only.encoded_bytes(manifest.size)
    if payload.num_bytes > max_bytes:
        raise Refused(
            f"the coordinator announced {payload.num_bytes} bytes; at most {max_bytes} are possible"
        )


def read_mask(
    data: memoryview,
    message: mask_pb2.MaskBroadcast,
    manifest: Manifest,
    initial: Vector,
    held: Mask | None,
) -> Mask:
    """Return the mask of a broadcast, verified; `held` is the mask a difference refers to."""
    if message.all_kept:
        mask = Mask.full(manifest.num_masked)
    elif not message.HasField("mask"):
        raise Resync("the task needs a mask that this client does not hold")
    else:
        against = message.mask.reference_digest
        if against and (held is None or held.digest != against):
            raise Resync("the mask is coded against one that this client does not hold")
        try:
            bits = _mask_bits(data, message.mask.encoding, manifest, initial)
            if against and held:
                bits = masks.difference(bits, held.bits)
            mask = Mask(masks.checked(bits, manifest.num_masked), manifest.num_masked)
        except CodecError as error:
            raise Refused(f"the mask from the coordinator does not fit: {error}") from error
    if mask.digest != message.mask_digest or mask.num_kept != message.num_kept:
        raise Refused("the mask from the coordinator does not match its digest")
    return mask


def _mask_bits(data: memoryview, encoding: int, manifest: Manifest, initial: Vector) -> bytes:
    if encoding == transfer_pb2.ENCODING_BITMASK_SORTED:
        weights = initial[: manifest.num_masked]
        return sorted_bits.decode(data, manifest.masked_shapes, weights)
    if encoding == transfer_pb2.ENCODING_BITMASK_ZSTD:
        return masks.decompress(data, manifest.num_masked)
    if encoding != transfer_pb2.ENCODING_BITMASK:
        raise Refused(f"the coordinator sent a mask in encoding {encoding}")
    return bytes(data)


def read_values(
    data: memoryview, payload: transfer_pb2.Payload, count: int, held: Mapping[bytes, Vector]
) -> Vector:
    """Return the `count` values of a payload; `held` maps digests to possible references."""
    code = VALUE_CODES.get(payload.encoding)
    plain = transfer_pb2.ENCODING_VALUES_ONLY, transfer_pb2.ENCODING_DENSE
    if code is None and payload.encoding not in plain:
        raise Refused(f"the coordinator sent values in encoding {payload.encoding}")
    if payload.reference_digest and payload.reference_digest not in held:
        raise Resync("the values are coded against others that this client does not hold")
    try:
        if code is None:
            return values_only.decode(data, count).copy()
        return blocks.decode(code, data, count, held.get(payload.reference_digest))
    except CodecError as error:
        raise Refused(f"the values from the coordinator do not fit: {error}") from error


def write_scores(
    found: Vector, work: pb.ScoreTask, settings: RunSettings, client_id: str
) -> EncodedPayload:
    """Encode scores as the task asks."""
    match work.report_encoding:
        case transfer_pb2.ENCODING_SCORES:
            epoch = [work.scoring_epoch] if work.scoring_epoch else []  # a refresh draws new words
            words = random_words(settings.seed, found.size, "scores", client_id, *epoch)
            try:
                data = scores.encode(found, work.num_coded, words)
            except UnfitValues as error:  # if they are invalid, the coordinator refuses them
                log.warning("sending the scores as float32: %s", error)
                return write_dense(found)
            return _encoded(transfer_pb2.ENCODING_SCORES, data)
        case transfer_pb2.ENCODING_UNSPECIFIED | transfer_pb2.ENCODING_DENSE:
            return write_dense(found)
        case unknown:
            raise Refused(f"the coordinator asks for scores in encoding {unknown}")


def write_dense(values: Vector) -> EncodedPayload:
    """Encode initial weights or scores as float32."""
    return _encoded(transfer_pb2.ENCODING_DENSE, values_only.encode(values))


def write_reply(
    reply: Answer,
    received: Received,
    work: pb.TrainTask,
    settings: RunSettings,
    manifest: Manifest,
    client_id: str,
    residual: Vector | None,
) -> EncodedUpdate:
    """Encode the answer to a training step: mask, values, further vectors and numbers.

    `residual` is the coding error of earlier updates, on the mask of the values that are sent.
    """
    header = update_pb2.SparseUpdate(numbers=reply.numbers)
    mask, base, payloads = received.mask, received.values, list[memoryview]()
    coded: EncodedPayload | None = None
    is_coded = work.update_encoding == transfer_pb2.ENCODING_REFERENCE
    if reply.bits is not None:
        is_small = work.update_encoding in VALUE_CODES  # in a lossy run on every link
        own = _write_own_mask(reply.bits, mask, manifest, is_coded=is_small)
        header.own_mask.CopyFrom(own[0])
        payloads += own[1]
        base, mask = reply.bits.gather(mask.scatter(base)), reply.bits
    if strategy_for(settings).parts(received.task, manifest).values:
        coded = write_update(
            reply.trained.values, base, work, settings, client_id, residual,
        )  # fmt: skip
        header.values.CopyFrom(coded.payload)
        payloads.append(coded.data)
    for name, vector in reply.vectors.items():
        if is_coded:
            data = blocks.encode(reference.CODE, vector, None)
            part = _encoded(transfer_pb2.ENCODING_REFERENCE, data)
        else:
            data = values_only.encode(vector)
            part = _encoded(transfer_pb2.ENCODING_VALUES_ONLY, data)
        header.vectors.append(transfer_pb2.NamedVector(name=name, values=part.payload))
        payloads.append(part.data)
    data = payloads[0] if len(payloads) == 1 else memoryview(b"".join(payloads))
    if coded is None:
        return EncodedUpdate(header, data)
    return EncodedUpdate(header, data, coded.error, coded.residual)


def _write_own_mask(
    mask: Mask, of_task: Mask, manifest: Manifest, *, is_coded: bool
) -> tuple[mask_pb2.MaskBroadcast, list[memoryview]]:
    """Encode the client's own mask: plain bits or, if `is_coded`, the smallest form."""
    message = mask_pb2.MaskBroadcast(mask_digest=mask.digest, num_kept=mask.num_kept)
    if mask.num_kept == mask.size:
        message.all_kept = True
        return message, []
    forms = [_encoded(transfer_pb2.ENCODING_BITMASK, memoryview(mask.bits))]
    if is_coded:
        moved = masks.difference(mask.bits, of_task.bits)
        for bits, against in ((mask.bits, b""), (moved, of_task.digest)):
            data = sorted_bits.encode(bits, manifest.masked_shapes, None)
            forms.append(_encoded(transfer_pb2.ENCODING_BITMASK_SORTED, data, against))
            if frame := masks.compress(bits):
                zstd = transfer_pb2.ENCODING_BITMASK_ZSTD
                forms.append(_encoded(zstd, memoryview(frame), against))
    smallest = min(forms, key=lambda form: len(form.data))
    message.mask.CopyFrom(smallest.payload)
    return message, [smallest.data]


def write_update(
    trained: Vector,
    base: Vector,
    work: pb.TrainTask,
    settings: RunSettings,
    client_id: str,
    residual: Vector | None,
) -> EncodedPayload:
    """Encode trained values as the task asks; `residual` is the coding error so far."""
    match work.update_encoding:
        case transfer_pb2.ENCODING_UNSPECIFIED | transfer_pb2.ENCODING_VALUES_ONLY:
            return _encoded(transfer_pb2.ENCODING_VALUES_ONLY, values_only.encode(trained))
        case transfer_pb2.ENCODING_REFERENCE:
            data = blocks.encode(reference.CODE, trained, base)
            return _encoded(work.update_encoding, data, work.base_digest)
        case _:
            code, asked = lossy_code(settings), VALUE_CODES.get(work.update_encoding)
            if code is None or asked is None or asked.name != code.name:
                raise Refused(f"the coordinator asks for values in encoding {work.update_encoding}")
    target = trained if residual is None else trained + residual
    words = rounding_words(settings, target.size, "update", work.round_number, client_id)
    try:
        data = blocks.encode(code, target, base, words)
    except UnfitValues as error:
        log.warning("sending the values losslessly: %s", error)
        data = blocks.encode(reference.CODE, trained, base)
        return _encoded(transfer_pb2.ENCODING_REFERENCE, data, work.base_digest)
    sent = blocks.decode(code, data, target.size, base)
    error_share = blocks.relative_error(target, sent, base)
    rest = target - sent if settings.error_feedback else None
    coded = _encoded(work.update_encoding, data, work.base_digest)
    return replace(coded, error=error_share, residual=rest)


def _encoded(
    encoding: transfer_pb2.Encoding, data: memoryview, reference_digest: bytes = b""
) -> EncodedPayload:
    payload = transfer_pb2.Payload(
        encoding=encoding,
        num_bytes=len(data),
        digest=hashlib.sha256(data).digest(),
        reference_digest=reference_digest,
    )
    return EncodedPayload(payload, data)
