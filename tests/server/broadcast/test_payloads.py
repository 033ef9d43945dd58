"""Which form of mask and values a client gets, and that it can be read with what the client holds.

What is sent is read by the client's own functions, so every branch is also a round trip.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.client.coding import check_size, read_mask, read_values
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import commit_change, commit_values
from ssfl.server.broadcast.payloads import Broadcast, Form, NotBuilt, Part
from ssfl.server.uploads.encoding_choice import Reader
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, transfer_pb2

Vector = npt.NDArray[np.float32]
MANIFEST = Manifest(
    (
        TensorSpec("conv.weight", (32, 16, 3, 3), Role.MASKED, Init("normal", 0.1)),
        TensorSpec("fc.weight", (10, 100), Role.MASKED, Init("uniform", 0.5)),
        TensorSpec("fc.bias", (10,), Role.DENSE, Init("zeros")),
    )
)
INITIAL = initial_vector(MANIFEST, seed=5)
SETTINGS = RunSettings()
LOSSY = RunSettings(value_type="int8")
VALUES = replace(LOSSY, downloads="values")
RNG = np.random.default_rng(1)

BASIC = frozenset({1, 2, 3, 4})
ALL = frozenset(range(1, 11))
OLDER = Reader(BASIC, coded=True)
PLAIN = Reader(ALL, coded=False)  # knows everything, on loopback
CODED = Reader(ALL, coded=True)


def mask_of(saliency: Vector, num_kept: int = 560) -> Mask:
    kept = np.zeros(MANIFEST.num_masked, dtype=np.bool_)
    kept[np.argsort(saliency)[-num_kept:]] = True
    return Mask.from_bools(kept)


def saliency(noise: float = 0.0) -> Vector:
    """Scores as they are in life: some channels matter more, and large weights do."""
    rng = np.random.default_rng(2)
    channels = np.exp(rng.normal(0, 1, 32))[:, None] * np.exp(rng.normal(0, 1, 16))[None, :]
    scores = np.r_[np.repeat(channels.reshape(-1), 9), np.full(1000, 0.2)]
    scores *= np.abs(INITIAL[: MANIFEST.num_masked]) * np.exp(noise * RNG.normal(0, 1, scores.size))
    return np.asarray(scores, dtype=np.float32)


MASK = mask_of(saliency())
FIRST = MASK.gather(INITIAL)
START = ModelState(MANIFEST, INITIAL, MASK, 1, FIRST)


def trained(values: Vector) -> Vector:
    return (values + RNG.normal(0, 1e-4, values.size)).astype(np.float32)


AFTER = replace(START, values=trained(FIRST))
LATER = replace(START, values=trained(trained(FIRST)))


def holding(model: ModelState | None = None, *, initial: bool = False) -> pb.NextTaskRequest:
    """Return the request of a client that holds mask and base, and maybe the initial weights."""
    mask = model.mask if model else None
    return pb.NextTaskRequest(
        initial_digest=START.initial_digest if initial else b"",
        mask_digest=mask.digest if mask else b"",
        base_digest=model.base_digest if model else b"",
    )


def made(broadcast: Broadcast, request: pb.NextTaskRequest, reader: Reader) -> list[Part | None]:
    """Return mask and base, making what they need as the service does."""
    while True:
        try:
            return [broadcast.mask_for(request, reader), broadcast.base_for(request, reader)]
        except NotBuilt as needed:
            assert not broadcast.built(needed.form), "made, and asked for again"
            broadcast.build(needed.form)
            assert broadcast.built(needed.form)


def mask_part(
    broadcast: Broadcast, request: pb.NextTaskRequest, reader: Reader, held: Mask | None = None
) -> Part | None:
    """Return how the mask is sent, after reading it as the client does."""
    part, model = made(broadcast, request, reader)[0], broadcast.model
    if part:
        check_size(part.payload, MANIFEST)
        assert model.mask is not None
        message = mask_pb2.MaskBroadcast(
            mask_digest=model.mask.digest, num_kept=model.mask.num_kept, mask=part.payload
        )
        # A client that does not say it holds the run's initial weights may have others.
        weights = INITIAL if request.initial_digest else INITIAL[::-1].copy()
        got = read_mask(part.data, message, MANIFEST, weights, held)
        assert got.bits == model.mask.bits
    return part


def base_part(
    broadcast: Broadcast, request: pb.NextTaskRequest, reader: Reader, *held: Vector
) -> Part | None:
    """Return how the base is sent, after reading it as a client does that holds these values."""
    part, model = made(broadcast, request, reader)[1], broadcast.model
    if part:
        check_size(part.payload, MANIFEST)
        assert model.values is not None
        known = {values_digest(values): values for values in held}
        got = read_values(part.data, part.payload, model.values.size, known)
        assert got.tobytes() == model.values.tobytes()
    return part


def coding_of(part: Part | None) -> tuple[str, bytes]:
    """Return encoding and reference of a part; empty for none."""
    if part is None:
        return "", b""
    name = transfer_pb2.Encoding.Name(part.payload.encoding).removeprefix("ENCODING_").lower()
    return name, part.payload.reference_digest


# -- the mask


def test_a_mask_that_is_held_or_keeps_everything_is_not_sent() -> None:
    for reader in (OLDER, PLAIN, CODED):
        assert mask_part(Broadcast(START, SETTINGS), holding(START), reader) is None
        dense = replace(START, mask=Mask.full(MANIFEST.num_masked), values=INITIAL)
        assert mask_part(Broadcast(dense, SETTINGS), holding(), reader) is None


def test_an_older_client_gets_packed_bits_and_nothing_else_is_made() -> None:
    broadcast = Broadcast(START, SETTINGS)
    assert coding_of(mask_part(broadcast, holding(initial=True), OLDER)) == ("bitmask_zstd", b"")
    assert not broadcast.built(Form.MASK_SORTED_BY_WEIGHT)
    assert not broadcast.built(Form.MASK_SORTED)


def test_a_client_with_the_initial_weights_gets_the_mask_sorted_by_them() -> None:
    broadcast = Broadcast(START, SETTINGS)
    with_weights = mask_part(broadcast, holding(initial=True), PLAIN)
    without = mask_part(broadcast, holding(), PLAIN)
    packed = mask_part(broadcast, holding(), OLDER)
    assert with_weights and without and packed
    assert coding_of(with_weights) == ("bitmask_sorted", b"")
    assert with_weights.data[0] == 1, "its first byte says that weights are used"
    assert len(with_weights.data) < min(len(without.data), len(packed.data))
    assert coding_of(without)[1] == b""
    assert without.payload.encoding != transfer_pb2.ENCODING_BITMASK_SORTED or not without.data[0]


def test_the_smallest_form_is_sent() -> None:
    """Few bits that no channel explains: side information would cost more than it saves."""
    kept = np.zeros(MANIFEST.num_masked, dtype=np.bool_)
    kept[::900] = True
    broadcast = Broadcast(replace(START, mask=Mask.from_bools(kept)), SETTINGS)
    part = mask_part(broadcast, holding(), PLAIN)
    assert coding_of(part) == ("bitmask_zstd", b"")
    assert broadcast.built(Form.MASK_SORTED), "it was tried"


def test_a_refreshed_mask_travels_as_the_difference_where_that_is_smaller() -> None:
    changed = mask_of(saliency(noise=0.01))
    assert 0 < np.count_nonzero(changed.bools() != MASK.bools()) < 60
    refreshed = replace(START, mask=changed, mask_epoch=2, values=changed.gather(INITIAL))
    broadcast = Broadcast(refreshed, SETTINGS, Broadcast(AFTER, SETTINGS))
    part = mask_part(broadcast, holding(AFTER, initial=True), PLAIN, held=MASK)
    assert coding_of(part)[1] == MASK.digest
    assert part and len(part.data) < len(broadcast.part(Form.MASK_SORTED_BY_WEIGHT).data)
    other = mask_part(broadcast, holding(LATER), OLDER)
    assert coding_of(other)[1] == b"", "an older client knows no references"
    without = Reader(ALL - {transfer_pb2.ENCODING_REFERENCE}, coded=True)
    assert coding_of(mask_part(broadcast, holding(AFTER), without))[1] == b""
    assert coding_of(mask_part(broadcast, holding(initial=True), PLAIN))[1] == b"", (
        "it holds no mask"
    )


def test_a_difference_that_is_larger_is_not_sent() -> None:
    """From a mask without any order to one that has some: the difference has none."""
    before = mask_of(RNG.random(MANIFEST.num_masked, dtype=np.float32))
    old = replace(START, mask=before, values=before.gather(INITIAL))
    broadcast = Broadcast(replace(START, mask_epoch=2), SETTINGS, Broadcast(old, SETTINGS))
    part = mask_part(broadcast, holding(old, initial=True), PLAIN, held=before)
    assert broadcast.built(Form.MASK_DIFFERENCE), "it was tried"
    assert coding_of(part) == ("bitmask_sorted", b"")


# -- the values


def test_a_base_that_is_held_is_not_sent() -> None:
    for reader in (OLDER, PLAIN, CODED):
        assert base_part(Broadcast(AFTER, SETTINGS), holding(AFTER), reader) is None


@pytest.mark.parametrize("reader", [PLAIN, CODED])
def test_a_first_base_that_a_client_can_make_is_not_sent(reader: Reader) -> None:
    broadcast = Broadcast(START, SETTINGS)
    assert base_part(broadcast, holding(initial=True), reader) is None
    assert broadcast.built(Form.FIRST)
    assert not any(broadcast.built(one) for one in Form if one.name.startswith("VALUES"))


def test_an_older_client_is_sent_every_base_as_it_is() -> None:
    before = Broadcast(START, SETTINGS)
    for broadcast in (before, Broadcast(AFTER, SETTINGS, before)):
        for request in (holding(), holding(START, initial=True), holding(initial=True)):
            if request.base_digest != broadcast.model.base_digest:
                assert coding_of(base_part(broadcast, request, OLDER)) == ("values_only", b"")
        assert not broadcast.built(Form.FIRST)


def test_on_a_link_that_is_not_coded_values_are_plain() -> None:
    broadcast = Broadcast(AFTER, SETTINGS, Broadcast(START, SETTINGS))
    for request in (holding(), holding(START), holding(START, initial=True)):
        assert coding_of(base_part(broadcast, request, PLAIN)) == ("values_only", b"")


def test_on_a_coded_link_values_are_coded_against_those_before() -> None:
    broadcast = Broadcast(AFTER, SETTINGS, Broadcast(START, SETTINGS))
    for initial in (False, True):
        part = base_part(broadcast, holding(START, initial=initial), CODED, FIRST)
        assert coding_of(part) == ("reference", START.base_digest)
        assert part and AFTER.values is not None and len(part.data) < 0.8 * AFTER.values.nbytes


def test_a_client_with_only_the_initial_weights_gets_values_against_them() -> None:
    broadcast = Broadcast(AFTER, SETTINGS, Broadcast(LATER, SETTINGS))
    for request in (holding(initial=True), holding(START, initial=True)):
        part = base_part(broadcast, request, CODED, FIRST)
        assert coding_of(part) == ("reference", values_digest(FIRST))


def test_against_the_first_base_or_nothing_whichever_is_smaller() -> None:
    assert AFTER.values is not None
    zeros = replace(START, values=np.zeros_like(AFTER.values))
    broadcast = Broadcast(zeros, SETTINGS)
    assert coding_of(base_part(broadcast, holding(initial=True), CODED)) == ("reference", b"")
    assert broadcast.built(Form.VALUES_TO_FIRST), "it was tried"


def test_a_client_without_a_model_gets_values_against_nothing() -> None:
    broadcast = Broadcast(AFTER, SETTINGS, Broadcast(START, SETTINGS))
    for request in (holding(), holding(LATER), pb.NextTaskRequest(initial_digest=bytes(32))):
        assert coding_of(base_part(broadcast, request, CODED)) == ("reference", b"")
    assert not broadcast.built(Form.VALUES_TO_FIRST)


def test_after_a_restart_nothing_is_known_of_the_model_before() -> None:
    broadcast = Broadcast(AFTER, SETTINGS)
    assert coding_of(base_part(broadcast, holding(START), CODED)) == ("reference", b"")
    assert coding_of(base_part(broadcast, holding(START), PLAIN)) == ("values_only", b"")


def test_values_under_another_mask_are_not_a_reference_after_a_refresh() -> None:
    changed = mask_of(saliency(noise=0.5))
    refreshed = replace(
        START, mask=changed, mask_epoch=2, values=trained(changed.gather(INITIAL)),
        scored_digest=bytes(32),
    )  # fmt: skip
    broadcast = Broadcast(refreshed, SETTINGS, Broadcast(AFTER, SETTINGS))
    part = base_part(broadcast, holding(AFTER), CODED)
    assert coding_of(part) == ("reference", b"")
    first = changed.gather(INITIAL)
    again = base_part(broadcast, holding(AFTER, initial=True), CODED, first)
    assert coding_of(again) == ("reference", values_digest(first))


def test_values_of_a_mask_that_moved_are_coded_against_the_previous_values_on_it() -> None:
    changed = mask_of(saliency(noise=0.5))
    assert AFTER.mask is not None and AFTER.values is not None
    held = changed.gather(AFTER.mask.scatter(AFTER.values))
    moved = replace(AFTER, mask=changed, mask_epoch=2, values=trained(held))
    broadcast = Broadcast(moved, SETTINGS, Broadcast(AFTER, SETTINGS))
    part = made(broadcast, holding(AFTER), CODED)[1]
    assert part is not None and coding_of(part) == ("reference", AFTER.base_digest)
    got = read_values(part.data, part.payload, held.size, {AFTER.base_digest: held})
    assert moved.values is not None and got.tobytes() == moved.values.tobytes()


# -- the values of a lossy run


def lossy_after() -> ModelState:
    values, change = commit_change(LOSSY, FIRST, trained(FIRST), START.base_digest)
    assert change is not None
    return replace(START, values=values, change=change)


def test_a_lossy_run_sends_the_coded_change_on_every_link() -> None:
    broadcast = Broadcast(lossy_after(), LOSSY, Broadcast(START, LOSSY))
    for reader in (PLAIN, CODED):
        part = base_part(broadcast, holding(START, initial=True), reader, FIRST)
        assert coding_of(part) == ("int8", START.base_digest)
        assert part and part.data == broadcast.model.change


def test_a_client_without_the_lossy_code_is_sent_the_same_values_exactly() -> None:
    broadcast = Broadcast(lossy_after(), LOSSY, Broadcast(START, LOSSY))
    without = Reader(ALL - {transfer_pb2.ENCODING_INT8}, coded=True)
    part = base_part(broadcast, holding(START), without, FIRST)
    assert coding_of(part) == ("reference", START.base_digest)
    assert coding_of(base_part(broadcast, holding(START), OLDER)) == ("values_only", b"")


def test_a_client_without_the_previous_base_gets_exact_values_in_a_lossy_run() -> None:
    broadcast = Broadcast(lossy_after(), LOSSY, Broadcast(START, LOSSY))
    assert coding_of(base_part(broadcast, holding(), PLAIN)) == ("values_only", b"")
    assert coding_of(base_part(broadcast, holding(), CODED)) == ("reference", b"")


def test_a_lossy_run_whose_change_could_not_be_coded_sends_the_values() -> None:
    broadcast = Broadcast(AFTER, LOSSY, Broadcast(START, LOSSY))
    assert coding_of(base_part(broadcast, holding(START), PLAIN)) == ("values_only", b"")
    part = base_part(broadcast, holding(START), CODED, FIRST)
    assert coding_of(part) == ("reference", START.base_digest)


def coded_after() -> ModelState:
    values, payload, _ = commit_values(VALUES, trained(FIRST), None)
    assert payload is not None
    return replace(START, values=values, change=payload)


def test_coded_values_are_sent_to_every_client_whatever_it_holds() -> None:
    after = coded_after()
    for before in (None, Broadcast(START, VALUES)):  # without one: after a restart
        broadcast = Broadcast(after, VALUES, before)
        for model, initial, reader in product([None, START, LATER], [False, True], [PLAIN, CODED]):
            part = base_part(broadcast, holding(model, initial=initial), reader)
            assert coding_of(part) == ("int8", b"")
            assert part and part.data == after.change
        assert base_part(broadcast, holding(after), CODED) is None


def test_a_client_without_the_lossy_code_gets_coded_values_exactly() -> None:
    broadcast = Broadcast(coded_after(), VALUES, Broadcast(START, VALUES))
    without = Reader(ALL - {transfer_pb2.ENCODING_INT8}, coded=True)
    assert coding_of(base_part(broadcast, holding(), without)) == ("reference", b"")
    part = base_part(broadcast, holding(START), without, FIRST)
    assert coding_of(part) == ("reference", START.base_digest)
    assert coding_of(base_part(broadcast, holding(), OLDER)) == ("values_only", b"")


# -- every combination, and what is made how often


def situations() -> Iterator[tuple[Broadcast, pb.NextTaskRequest, Reader]]:
    before = Broadcast(START, SETTINGS)
    readers = [Reader(BASIC | set(more), coded) for more, coded in product(
        [(), (5,), (10,), (5, 10), (7,), tuple(ALL)], [False, True]
    )]  # fmt: skip
    requests = [holding(model, initial=initial) for model, initial in product(
        [None, START, AFTER, LATER], [False, True]
    )]  # fmt: skip
    lossy = Broadcast(lossy_after(), LOSSY, Broadcast(START, LOSSY))
    values = Broadcast(coded_after(), VALUES, Broadcast(START, VALUES))
    for broadcast in (before, Broadcast(AFTER, SETTINGS, before), lossy, values):
        yield from product([broadcast], requests, readers)


def test_a_client_gets_only_encodings_it_listed_and_references_it_holds() -> None:
    for broadcast, request, reader in situations():
        mask, base = made(broadcast, request, reader)
        for part in (mask, base):
            if part:
                assert part.payload.encoding in reader.encodings
        if base and base.payload.reference_digest:
            assert reader.knows_references or reader.reads(transfer_pb2.ENCODING_INT8)
            first = values_digest(FIRST) if request.initial_digest else request.base_digest
            assert base.payload.reference_digest in (request.base_digest, first)
        if base is None and request.base_digest != broadcast.model.base_digest:
            assert request.initial_digest and broadcast.model.base_digest == values_digest(FIRST)


def test_a_form_that_is_needed_is_named_and_then_made() -> None:
    broadcast = Broadcast(AFTER, SETTINGS, Broadcast(START, SETTINGS))
    with pytest.raises(NotBuilt) as caught:
        broadcast.base_for(holding(START), CODED)
    assert caught.value.form is Form.VALUES_TO_PREVIOUS
    with pytest.raises(NotBuilt):
        broadcast.part(Form.VALUES_TO_PREVIOUS)
    broadcast.build(caught.value.form)
    part = broadcast.base_for(holding(START), CODED)
    assert part is broadcast.part(Form.VALUES_TO_PREVIOUS)
    assert part is broadcast.base_for(holding(START), CODED), "everybody gets the same buffer"


def test_forms_of_the_mask_and_the_first_base_are_handed_on_while_the_mask_is_the_same() -> None:
    before = Broadcast(START, SETTINGS)
    for form in (Form.MASK, Form.MASK_SORTED, Form.MASK_SORTED_BY_WEIGHT, Form.VALUES, Form.FIRST):
        before.build(form)
    after = Broadcast(AFTER, SETTINGS, before)
    for form in (Form.MASK, Form.MASK_SORTED, Form.MASK_SORTED_BY_WEIGHT):
        assert after.part(form) is before.part(form)
    assert after.built(Form.FIRST)
    assert not after.built(Form.VALUES)
    changed = mask_of(saliency(noise=0.5))
    refreshed = replace(START, mask=changed, values=changed.gather(INITIAL))
    other = Broadcast(refreshed, SETTINGS, after)
    assert not any(other.built(form) for form in Form)


def test_clients_with_the_same_parts_share_chunks() -> None:
    broadcast = Broadcast(AFTER, SETTINGS, Broadcast(START, SETTINGS))
    for form in (Form.VALUES, Form.MASK):
        broadcast.build(form)
    mask, values = broadcast.part(Form.MASK), broadcast.part(Form.VALUES)
    assert broadcast.serialized((mask, values)) is broadcast.serialized((mask, values))
    assert broadcast.serialized((values,)) is not broadcast.serialized((mask, values))
