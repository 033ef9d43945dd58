"""The payloads of one model in every form a client may need, each encoded once.

Mask: packed bits (zstd), sorted bits with or without the initial weights, or the difference to the
previous mask; on a link without coding, plain bits if the strategy moves masks. Values: plain, in
the code of a lossy run (the change, or the values themselves), or coded losslessly against the
previous values, the values at the start of training under this mask, the initial weights that the
mask keeps (a client can build either itself), or nothing. A form is encoded on a worker thread when
the first client needs it. Every client that needs it is sent the same buffer.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ssfl.codec import blocks, masks, reference, sorted_bits, values_only
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector, values_digest, vector_of
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import MASK
from ssfl.server.errors import InvalidRequest
from ssfl.server.uploads.encoding_choice import LOSSY, Reader
from ssfl.strategies.registry import strategy_for
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2


class Form(StrEnum):
    """A payload that a client may need; FIRST and WHOLE are only computed, not sent."""

    INITIAL = "initial"
    MASK = "mask"
    MASK_PLAIN = "mask plain"
    MASK_SORTED = "mask sorted"
    MASK_SORTED_BY_WEIGHT = "mask sorted by weight"
    MASK_DIFFERENCE = "mask difference"
    VALUES = "values"
    VALUES_LOSSY = "values in the lossy code"
    VALUES_TO_PREVIOUS = "values to previous"
    VALUES_TO_FIRST = "values to first"
    VALUES_TO_INITIAL = "values to initial"
    VALUES_TO_NOTHING = "values to nothing"
    RESTING = "resting"  # resting values of pruned weights
    FIRST = "first base"  # values at the start of training under this mask; the client builds them
    WHOLE = "whole"  # digest of the model to score
    VECTORS = "vectors"  # further vectors of the strategy


class NotBuilt(Exception):
    """A form is needed that has not been encoded yet."""

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self.form = form


@dataclass(frozen=True, slots=True)
class Part:
    """One payload of a task: its ledger phase and its bytes."""

    phase: str
    payload: transfer_pb2.Payload
    data: memoryview


class Broadcast:
    """The payloads of a model; `before` is the broadcast of the previous model."""

    def __init__(
        self,
        model: ModelState,
        settings: RunSettings,
        before: "Broadcast | None" = None,
        *,
        is_from_seed: bool = False,
        vectors: Mapping[str, Vector] | None = None,
    ) -> None:
        """`vectors` are sent with the model to train."""
        self.model = model
        self.is_from_seed = is_from_seed  # the mask is the client's own, which builds it
        self._vectors = vectors or {}
        self._settings = settings
        self._is_moving = strategy_for(settings).moves_mask
        self._before = before.model if before else None
        self._mask_before: Mask | None = None  # the previous mask, which clients may still hold
        self._parts: dict[Form, Part] = {}
        self._vector_parts: dict[str, Part] = {}
        self._moved: Vector | None = None  # the previous values on this mask, if it was moved
        self._serialized: dict[tuple[bytes, ...], dict[int, bytes]] = {}
        # The values at the start of training under this mask, and their digest.
        self._first: tuple[Vector, bytes] | None = None
        self._whole_digest = model.initial_digest if model.mask is None else b""
        if before and _mask_digest(before.model) == _mask_digest(model):
            self._mask_before = before._mask_before
            self._parts = {form: part for form, part in before._parts.items() if part.phase == MASK}
            if before.model.scored_digest == model.scored_digest:
                self._first = before._first  # not after a refresh that chose the same mask
        elif before:
            self._mask_before = before.model.mask

    def models(self) -> list[ModelState]:
        """Return this model, after the earlier ones that clients may hold, oldest first."""
        earlier = [self._before] if self._before else []
        if self._mask_before is not None:
            other = replace(self.model, mask=self._mask_before, values=None, change=None)
            earlier.insert(0, other)
        return [*earlier, self.model]

    def serialized(self, parts: tuple[Part, ...]) -> dict[int, bytes]:
        """Return the cache of the serialized chunks of these parts, by offset."""
        return self._serialized.setdefault(tuple(part.payload.digest for part in parts), {})

    def built(self, form: Form) -> bool:
        """Return True if a form has been encoded."""
        if form is Form.FIRST:
            return self._first is not None
        if form is Form.VECTORS:
            return bool(self._vector_parts)
        return self._whole_digest != b"" if form is Form.WHOLE else form in self._parts

    def part(self, form: Form) -> Part:
        """Return a payload; raise NotBuilt if it must be encoded first."""
        if form not in self._parts:
            raise NotBuilt(form)
        return self._parts[form]

    def whole_digest(self) -> bytes:
        """Return the digest of the model to score; raise NotBuilt while it is not known."""
        if not self._whole_digest:
            raise NotBuilt(Form.WHOLE)
        return self._whole_digest

    def resting_for(self, request: pb.NextTaskRequest, reader: Reader) -> Part | None:
        """Return the resting values of pruned weights; None if the client does not need them."""
        if not self.model.resting_digest or request.scored_digest == self.model.resting_digest:
            return None
        if not reader.knows_references:
            raise InvalidRequest(
                "the mask is refreshed, and this client cannot read coded values: upgrade it"
            )
        return self.part(Form.RESTING)

    def mask_for(self, request: pb.NextTaskRequest, reader: Reader) -> Part | None:
        """Return the mask in the smallest form the client can read; None if it has the mask."""
        mask = self.model.mask
        assert mask is not None
        if mask.num_kept == mask.size or request.mask_digest == mask.digest or self.is_from_seed:
            return None
        if self._is_moving and not reader.coded:
            return self.part(Form.MASK_PLAIN)
        forms = [Form.MASK]
        if reader.reads(transfer_pb2.ENCODING_BITMASK_SORTED):
            holds_weights = request.initial_digest == self.model.initial_digest
            forms.append(Form.MASK_SORTED_BY_WEIGHT if holds_weights else Form.MASK_SORTED)
            before = self._mask_before
            if reader.knows_references and before and request.mask_digest == before.digest:
                forms.append(Form.MASK_DIFFERENCE)
        return self._smallest(forms)

    def base_for(self, request: pb.NextTaskRequest, reader: Reader) -> Part | None:
        """Return the values in the best form for the client; None if it has them."""
        model = self.model
        if request.base_digest == model.base_digest:
            return None
        holds_initial = request.initial_digest == model.initial_digest
        scored = model.scored_digest
        holds_scored = scored in (request.scored_digest, request.initial_digest)
        if reader.knows_references and holds_scored:
            if self._first is None:
                raise NotBuilt(Form.FIRST)
            if self._first[1] == model.base_digest:
                return None
        holds_previous = self._values_before(request) is not None
        is_readable = holds_previous or self._settings.downloads == "values"
        if model.change and is_readable and reader.reads(LOSSY[self._settings.value_type]):
            return self.part(Form.VALUES_LOSSY)
        if not (reader.coded and reader.knows_references):
            return self.part(Form.VALUES)
        if holds_previous:
            return self.part(Form.VALUES_TO_PREVIOUS)
        forms = [Form.VALUES_TO_NOTHING]
        if holds_scored:
            forms.append(Form.VALUES_TO_FIRST)
        elif holds_initial:  # weights added by the mask start from these values
            forms.append(Form.VALUES_TO_INITIAL)
        return self._smallest(forms)

    def vector_parts(self) -> dict[str, Part]:
        """Return the further vectors by name; raise NotBuilt if they must be encoded first."""
        if self._vectors and not self._vector_parts:
            raise NotBuilt(Form.VECTORS)
        return self._vector_parts

    def build(self, form: Form) -> None:
        """Encode a form. Slow: runs on a worker thread."""
        if form is Form.FIRST:
            self._make_first()
        elif form is Form.WHOLE:
            self._whole_digest = self.model.whole_digest
        elif form is Form.VECTORS:
            self._vector_parts = {
                name: _part("values", transfer_pb2.ENCODING_VALUES_ONLY, values_only.encode(vector))
                for name, vector in self._vectors.items()
            }
        else:
            self._parts[form] = self._encoded(form)
        self.model.release()

    def _smallest(self, forms: list[Form]) -> Part:
        return min((self.part(form) for form in forms), key=lambda part: len(part.data))

    def _values_before(self, request: pb.NextTaskRequest) -> Vector | None:
        """Return the previous model's values on this mask, if the client holds that model.

        After a move of the mask, weights that the previous mask did not keep are zero.
        """
        before, mask = self._before, self.model.mask
        if before is None or before.values is None or before.base_digest != request.base_digest:
            return None
        assert mask is not None and before.mask is not None
        if before.mask == mask:
            return before.values
        if self.model.scored_digest != before.scored_digest:
            return None  # a refresh: clients build the first values of its mask
        if request.mask_digest != before.mask.digest:
            return None
        if self._moved is None:
            self._moved = mask.gather(before.mask.scatter(before.values))
        return self._moved

    def _make_first(self) -> tuple[Vector, bytes]:
        if self._first is None:
            values = self.model.first_base()
            self._first = values, values_digest(values)
        return self._first

    def _encoded(self, form: Form) -> Part:
        model, before = self.model, self._before
        match form:
            case Form.INITIAL:
                data = values_only.encode(model.initial)
                return _part("initial", transfer_pb2.ENCODING_DENSE, data)
            case Form.RESTING:
                assert model.resting is not None
                data = blocks.encode(reference.CODE, vector_of(model.resting), model.initial)
                encoding = transfer_pb2.ENCODING_REFERENCE
                return _part("initial", encoding, data, model.initial_digest)
        assert model.mask is not None
        match form:
            case Form.MASK:
                return _packed(model.mask.bits, b"")
            case Form.MASK_PLAIN:
                return _part(MASK, transfer_pb2.ENCODING_BITMASK, memoryview(model.mask.bits))
            case Form.MASK_SORTED:
                return self._sorted(model.mask.bits)
            case Form.MASK_SORTED_BY_WEIGHT:
                weights = model.initial[: model.manifest.num_masked]
                return self._sorted(model.mask.bits, weights)
            case Form.MASK_DIFFERENCE:
                assert self._mask_before is not None
                digest = self._mask_before.digest
                bits = masks.difference(model.mask.bits, self._mask_before.bits)
                forms = (self._sorted(bits, reference_digest=digest), _packed(bits, digest))
                return min(forms, key=lambda part: len(part.data))
            case Form.VALUES:
                assert model.values is not None
                data = values_only.encode(model.values)
                return _part("values", transfer_pb2.ENCODING_VALUES_ONLY, data)
            case Form.VALUES_LOSSY:
                assert model.change is not None
                encoding = LOSSY[self._settings.value_type]
                if self._settings.downloads == "values":
                    return _part("values", encoding, model.change)
                assert before is not None
                return _part("values", encoding, model.change, before.base_digest)
            case Form.VALUES_TO_PREVIOUS:
                assert before is not None and before.values is not None
                against = before.values if self._moved is None else self._moved
                return self._coded_values(against, before.base_digest)
            case Form.VALUES_TO_FIRST:
                return self._coded_values(*self._make_first())
            case Form.VALUES_TO_INITIAL:
                values = model.mask.gather(model.initial)
                return self._coded_values(values, values_digest(values))
            case Form.VALUES_TO_NOTHING:
                return self._coded_values(None, b"")
        raise ValueError(f"{form} has no payload")

    def _sorted(
        self, bits: bytes, weights: Vector | None = None, reference_digest: bytes = b""
    ) -> Part:
        data = sorted_bits.encode(bits, self.model.manifest.masked_shapes, weights)
        return _part(MASK, transfer_pb2.ENCODING_BITMASK_SORTED, data, reference_digest)

    def _coded_values(self, against: Vector | None, digest: bytes) -> Part:
        assert self.model.values is not None
        data = blocks.encode(reference.CODE, self.model.values, against)
        return _part("values", transfer_pb2.ENCODING_REFERENCE, data, digest)


def _mask_digest(model: ModelState) -> bytes:
    return model.mask.digest if model.mask else b""


def _packed(bits: bytes, reference_digest: bytes) -> Part:
    frame = masks.compress(bits)
    packed = transfer_pb2.ENCODING_BITMASK_ZSTD if frame else transfer_pb2.ENCODING_BITMASK
    return _part(MASK, packed, memoryview(frame or bits), reference_digest)


def _part(
    phase: str, encoding: transfer_pb2.Encoding, data: memoryview, reference_digest: bytes = b""
) -> Part:
    payload = transfer_pb2.Payload(
        encoding=encoding,
        num_bytes=len(data),
        digest=hashlib.sha256(data).digest(),
        reference_digest=reference_digest,
    )
    return Part(phase, payload, data)
