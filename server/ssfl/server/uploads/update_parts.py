"""The parts of an update: its own mask, its values, further vectors, and numbers.

Their payloads are sent one after the other, in this order, as one upload. An update that has only
values is announced by their payload; any other by a payload over all parts, whose digest is the
SHA-256 of the digests of the parts and of the numbers.
"""

import hashlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ssfl.codec import CodecError, blocks, masks, reference, sorted_bits, values_only
from ssfl.codec.errors import DigestMismatch
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import MASK, ROUND_MASKS, VALUES
from ssfl.server.errors import InvalidRequest
from ssfl.server.storage.upload_files import Block
from ssfl.server.uploads.decode import check_payload, check_update, update_blocks
from ssfl.strategies.contract import UploadParts
from ssfl.v1 import mask_pb2, update_pb2
from ssfl.v1 import transfer_pb2 as pb

MAX_NUMBERS = 4096


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an update with bytes of its own."""

    phase: str  # in the ledger
    payload: pb.Payload


def sections_of(header: update_pb2.SparseUpdate, *, is_round: bool = True) -> tuple[Section, ...]:
    """Return the parts with bytes, in the order in which they are sent.

    `is_round`: the step counts as a round, so that its masks recur.
    """
    found = []
    if header.HasField("own_mask") and header.own_mask.HasField("mask"):
        found.append(Section(ROUND_MASKS if is_round else MASK, header.own_mask.mask))
    if header.values.encoding:
        found.append(Section(VALUES, header.values))
    found += [Section(VALUES, vector.values) for vector in header.vectors]
    return tuple(found)


def whole_payload(header: update_pb2.SparseUpdate) -> pb.Payload:
    """Return the announcement of all bytes of an update."""
    sections = sections_of(header)
    if [section.payload for section in sections] == [header.values] and not header.numbers:
        return header.values
    named = hashlib.sha256()
    for section in sections:
        named.update(section.payload.digest)
    named.update(struct.pack(f"<{len(header.numbers)}d", *header.numbers))
    return pb.Payload(
        encoding=header.values.encoding or header.own_mask.mask.encoding,
        num_bytes=sum(section.payload.num_bytes for section in sections),
        digest=named.digest(),
    )


def check_parts(
    header: update_pb2.SparseUpdate, parts: UploadParts, base: ModelState, settings: RunSettings
) -> None:
    """Raise InvalidRequest unless the header has the parts of the step, with possible lengths."""
    assert base.mask is not None
    num_kept = base.mask.num_kept
    if header.HasField("own_mask"):
        _check_own_mask(header.own_mask, parts, base.manifest, base.mask)
        num_kept = header.own_mask.num_kept
    elif parts.bits_required:
        raise InvalidRequest("an update of this step needs a mask of the client's own")
    count = num_kept + base.manifest.num_unmasked
    if parts.values:
        check_update(header.values, count, base.base_digest, settings)
    elif header.HasField("values"):
        raise InvalidRequest("an update of this step has no values")
    names = tuple(vector.name for vector in header.vectors)
    if names != parts.vectors:
        wanted = ", ".join(parts.vectors) or "none"
        raise InvalidRequest(f"{len(names)} further vectors; the step expects: {wanted}")
    fixed, most = values_only.encoded_bytes(count), blocks.max_encoded_bytes(reference.CODE, count)
    for vector in header.vectors:
        check_payload(
            vector.values,
            {pb.ENCODING_VALUES_ONLY: (fixed, fixed), pb.ENCODING_REFERENCE: (1, most)},
        )
        if vector.values.reference_digest:
            raise InvalidRequest("a further vector is coded without a reference")
    num_numbers = min(parts.num_numbers, MAX_NUMBERS)
    if len(header.numbers) != num_numbers:
        raise InvalidRequest(f"{len(header.numbers)} numbers; expected {num_numbers}")
    if not all(map(math.isfinite, header.numbers)):
        raise InvalidRequest("the numbers of an update must be finite")


def _check_own_mask(
    message: mask_pb2.MaskBroadcast, parts: UploadParts, manifest: Manifest, of_task: Mask
) -> None:
    if not parts.bits:
        raise InvalidRequest("an update of this step has no mask of its own")
    size = manifest.num_masked
    most = size if parts.max_kept is None else min(parts.max_kept, size)
    if not 0 < message.num_kept <= most:
        raise InvalidRequest(
            f"the mask of the update keeps {message.num_kept} weights; expected 1 to {most}"
        )
    if not message.HasField("mask"):
        if not message.all_kept or message.num_kept != size:
            raise InvalidRequest("the mask of the update has no bits")
        return
    packed = masks.packed_bytes(size)
    check_payload(
        message.mask,
        {
            pb.ENCODING_BITMASK: (packed, packed),
            pb.ENCODING_BITMASK_ZSTD: (1, packed),
            pb.ENCODING_BITMASK_SORTED: (1, sorted_bits.max_encoded_bytes(manifest.masked_shapes)),
        },
    )
    if message.mask.reference_digest not in (b"", of_task.digest):
        raise InvalidRequest("the mask of the update is coded against another than the task's")


@dataclass(frozen=True, eq=False)
class ReadUpdate:
    """An update whose bytes have arrived: its mask, and its values and vectors in blocks."""

    header: update_pb2.SparseUpdate
    base: ModelState
    settings: RunSettings
    data: memoryview

    def mask(self) -> Mask:
        """Return the mask of the update's own; raise InvalidRequest if it is not valid."""
        message, manifest = self.header.own_mask, self.base.manifest
        if not message.HasField("mask"):
            return Mask.full(manifest.num_masked)
        assert self.base.mask is not None
        against = self.base.mask if message.mask.reference_digest else None
        data = self._section(message.mask)  # damaged in transit: to be sent again
        try:
            bits = _bits(data, message.mask.encoding, manifest)
            if against is not None:
                bits = masks.difference(bits, against.bits)
            mask = Mask(masks.checked(bits, manifest.num_masked), manifest.num_masked)
        except CodecError as error:
            raise InvalidRequest(f"the mask of the update: {error}") from error
        if (mask.num_kept, mask.digest) != (message.num_kept, message.mask_digest):
            raise InvalidRequest("the mask of the update does not match its digest")
        return mask

    def blocks(self, mask: Mask) -> Iterator[Block]:
        """Yield the values, then those of each further vector, with positions from 0."""
        values, header = regathered(self.base, mask), self.header
        start = 0
        if header.values.encoding:
            yield from update_blocks(
                self._section(header.values), header.values, values, self.settings
            )
            start = values.size
        for vector in header.vectors:
            data, payload = self._section(vector.values), vector.values
            for at, block in update_blocks(data, payload, values, self.settings):
                yield start + at, block
            start += values.size

    def _section(self, wanted: pb.Payload) -> memoryview:
        """Return the bytes of a part; raise DigestMismatch if they are damaged."""
        start = 0
        for section in sections_of(self.header):
            if section.payload is wanted or section.payload == wanted:
                data = self.data[start : start + wanted.num_bytes]
                found = hashlib.sha256(data).digest()
                if found != wanted.digest:
                    raise DigestMismatch(wanted.digest, found)
                return data
            start += section.payload.num_bytes
        raise ValueError("a part that the update does not have")


def regathered(base: ModelState, mask: Mask) -> Vector:
    """Return the base's values on another mask; weights that the base does not keep are zero."""
    assert base.mask is not None and base.values is not None
    return base.values if mask == base.mask else mask.gather(base.mask.scatter(base.values))


def _bits(data: memoryview, encoding: int, manifest: Manifest) -> bytes:
    if encoding == pb.ENCODING_BITMASK_SORTED:
        return sorted_bits.decode(data, manifest.masked_shapes, None)
    if encoding == pb.ENCODING_BITMASK_ZSTD:
        return masks.decompress(data, manifest.num_masked)
    return bytes(data)
