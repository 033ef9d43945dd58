"""Payloads are decoded or refused; results are encoded as the task asks, or refused."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.client.coding import (
    ENCODINGS,
    check_size,
    read_mask,
    read_values,
    write_dense,
    write_scores,
    write_update,
)
from ssfl.client.errors import Refused, Resync
from ssfl.codec import bfloat16, blocks, grid, int8, masks, reference, scores, sorted_bits
from ssfl.codec.blocks import ValueCode
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import mask_pb2, transfer_pb2

Vector = npt.NDArray[np.float32]
MANIFEST = Manifest(
    (
        TensorSpec("w", (30, 10), Role.MASKED, Init("normal", 0.1)),
        TensorSpec("b", (7,), Role.DENSE, Init("zeros")),
    )
)
RNG = np.random.default_rng(6)
INITIAL = RNG.normal(0, 0.1, 307).astype(np.float32)
MASK = Mask.from_bools(RNG.random(300) < 0.1)
OTHER = Mask.from_bools(RNG.random(300) < 0.1)
EXACT = RunSettings()
CODES: dict[str, tuple[int, ValueCode]] = {
    "bfloat16": (transfer_pb2.ENCODING_BFLOAT16, bfloat16.CODE),
    "int8": (transfer_pb2.ENCODING_INT8, int8.CODE),
    "grid": (transfer_pb2.ENCODING_GRID, grid.Grid()),
}
BASE = RNG.normal(0, 0.1, 600).astype(np.float32)
TRAINED = (BASE + RNG.normal(0, 1e-3, 600)).astype(np.float32)
BASE_DIGEST = values_digest(BASE)


def payload(
    encoding: int, num_bytes: int = 0, reference_digest: bytes = b""
) -> transfer_pb2.Payload:
    made = transfer_pb2.Payload(num_bytes=num_bytes, reference_digest=reference_digest)
    made.encoding = encoding  # type: ignore[assignment]  # also numbers without a name
    return made


def test_every_encoding_is_listed() -> None:
    assert sorted(transfer_pb2.Encoding.Value(name) for name in ENCODINGS) == list(range(1, 11))


# -- sizes


@pytest.mark.parametrize(
    ("encoding", "max_bytes"),
    [
        (transfer_pb2.ENCODING_VALUES_ONLY, 4 * 307),
        (transfer_pb2.ENCODING_DENSE, 4 * 307),
        (transfer_pb2.ENCODING_BITMASK, 38),
        (transfer_pb2.ENCODING_BITMASK_ZSTD, 37),
        (transfer_pb2.ENCODING_REFERENCE, 4 * 307 + 16),
        (transfer_pb2.ENCODING_BFLOAT16, 2 * 307 + 8),
        (transfer_pb2.ENCODING_INT8, 307 + 4 * 2 + 4),
        (transfer_pb2.ENCODING_GRID, 4 * 307 + 17),
        (transfer_pb2.ENCODING_BITMASK_SORTED, 2 + 4 + 2 + 40 + 5 * 64 + 38),
        (77, 4 * 307),  # refused when it is decoded
    ],
)
def test_a_size_that_an_encoding_cannot_have_is_refused(encoding: int, max_bytes: int) -> None:
    check_size(payload(encoding, max_bytes), MANIFEST)
    for num_bytes in (max_bytes + 1, 1 << 62):
        with pytest.raises(
            Refused, match=f"announced {num_bytes} bytes; at most {max_bytes} are possible"
        ):
            check_size(payload(encoding, num_bytes), MANIFEST)


# -- masks


def broadcast(encoding: int, reference_digest: bytes = b"", **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "mask_digest": MASK.digest,
        "num_kept": MASK.num_kept,
        "mask": payload(encoding, 0, reference_digest),
    }
    return mask_pb2.MaskBroadcast(**(fields | changes))


def sent_bits(encoding: int, bits: bytes, weights: Vector | None = None) -> memoryview:
    match encoding:
        case transfer_pb2.ENCODING_BITMASK_SORTED:
            return sorted_bits.encode(bits, MANIFEST.masked_shapes, weights)
        case transfer_pb2.ENCODING_BITMASK_ZSTD:
            frame = masks.compress(bits)
            assert frame is not None
            return memoryview(frame)
    return memoryview(bits)


BITS = (
    transfer_pb2.ENCODING_BITMASK,
    transfer_pb2.ENCODING_BITMASK_ZSTD,
    transfer_pb2.ENCODING_BITMASK_SORTED,
)
FEW = Mask.from_bools(np.arange(300) == 7)  # few enough for a smaller compressed frame


@pytest.mark.parametrize("encoding", BITS)
def test_a_mask_is_decoded_in_every_encoding(encoding: int) -> None:
    message = broadcast(encoding, mask_digest=FEW.digest, num_kept=1)
    data = sent_bits(encoding, FEW.bits)
    assert read_mask(data, message, MANIFEST, INITIAL, None) == FEW


def test_a_mask_in_sorted_bits_is_decoded_with_the_initial_weights() -> None:
    message = broadcast(transfer_pb2.ENCODING_BITMASK_SORTED)
    data = sent_bits(transfer_pb2.ENCODING_BITMASK_SORTED, MASK.bits, INITIAL[:300])
    assert read_mask(data, message, MANIFEST, INITIAL, None) == MASK
    with pytest.raises(Refused):
        read_mask(data, message, MANIFEST, INITIAL * np.float32(1000), None)


@pytest.mark.parametrize("encoding", BITS)
def test_a_difference_is_decoded_with_the_held_mask(encoding: int) -> None:
    held = Mask(masks.difference(MASK.bits, FEW.bits), 300)
    data = sent_bits(encoding, FEW.bits)
    message = broadcast(encoding, held.digest)
    assert read_mask(data, message, MANIFEST, INITIAL, held) == MASK


@pytest.mark.parametrize("held", [None, OTHER], ids=["none", "another"])
def test_a_difference_to_a_mask_that_is_not_held_needs_a_resync(held: Mask | None) -> None:
    message = broadcast(transfer_pb2.ENCODING_BITMASK, bytes(32))
    with pytest.raises(Resync, match="coded against one that this client does not hold"):
        read_mask(memoryview(MASK.bits), message, MANIFEST, INITIAL, held)


def test_a_mask_that_keeps_everything_needs_no_bytes() -> None:
    full = Mask.full(300)
    message = mask_pb2.MaskBroadcast(mask_digest=full.digest, num_kept=300, all_kept=True)
    assert read_mask(memoryview(b""), message, MANIFEST, INITIAL, None) == full


def test_a_mask_that_is_neither_held_nor_sent_needs_a_resync() -> None:
    message = mask_pb2.MaskBroadcast(mask_digest=MASK.digest, num_kept=MASK.num_kept)
    with pytest.raises(Resync, match="needs a mask that this client does not hold"):
        read_mask(memoryview(b""), message, MANIFEST, INITIAL, None)


@pytest.mark.parametrize("encoding", [0, 1, 2, 5, 6, 7, 8, 9, 77])
def test_a_mask_in_another_encoding_is_refused_by_its_number(encoding: int) -> None:
    with pytest.raises(Refused, match=f"sent a mask in encoding {encoding}$"):
        read_mask(memoryview(MASK.bits), broadcast(encoding), MANIFEST, INITIAL, None)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        (transfer_pb2.ENCODING_BITMASK, MASK.bits[:-1]),
        (transfer_pb2.ENCODING_BITMASK, MASK.bits[:-1] + b"\xff"),
        (transfer_pb2.ENCODING_BITMASK_ZSTD, MASK.bits),
        (transfer_pb2.ENCODING_BITMASK_SORTED, MASK.bits),
        (transfer_pb2.ENCODING_BITMASK_SORTED, b""),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(encoding: int, data: bytes) -> None:
    with pytest.raises(Refused, match="mask from the coordinator does not fit"):
        read_mask(memoryview(data), broadcast(encoding), MANIFEST, INITIAL, None)


@pytest.mark.parametrize(
    "changes", [{"mask_digest": OTHER.digest}, {"num_kept": MASK.num_kept + 1}]
)
def test_a_mask_that_does_not_match_its_message_is_refused(changes: dict[str, Any]) -> None:
    message = broadcast(transfer_pb2.ENCODING_BITMASK, **changes)
    with pytest.raises(Refused, match="does not match its digest"):
        read_mask(memoryview(MASK.bits), message, MANIFEST, INITIAL, None)


# -- values that come


@pytest.mark.parametrize(
    "encoding", [transfer_pb2.ENCODING_VALUES_ONLY, transfer_pb2.ENCODING_DENSE]
)
def test_plain_values_are_copied_from_the_buffer(encoding: int) -> None:
    data = bytearray(TRAINED.tobytes())
    got = read_values(memoryview(data), payload(encoding), 600, {})
    data[:] = bytes(len(data))  # the buffer of the download is reused
    assert got.tobytes() == TRAINED.tobytes()


@pytest.mark.parametrize("against", [BASE_DIGEST, b""], ids=["base", "nothing"])
@pytest.mark.parametrize(
    ("encoding", "code"), [(transfer_pb2.ENCODING_REFERENCE, reference.CODE), *CODES.values()]
)
def test_coded_values_are_decoded_against_their_reference(
    encoding: int, code: ValueCode, against: bytes
) -> None:
    base = BASE if against else None
    data = blocks.encode(code, TRAINED, base)
    got = read_values(data, payload(encoding, 0, against), 600, {BASE_DIGEST: BASE})
    assert got.tobytes() == blocks.decode(code, data, 600, base).tobytes()


def test_a_grid_with_any_number_of_bits_is_decoded() -> None:
    data = blocks.encode(grid.Grid(9), TRAINED, BASE)
    coded = payload(transfer_pb2.ENCODING_GRID, 0, BASE_DIGEST)
    got = read_values(data, coded, 600, {BASE_DIGEST: BASE})
    assert got.tobytes() == blocks.decode(grid.Grid(9), data, 600, BASE).tobytes()


def test_values_with_a_reference_that_is_not_held_need_a_resync() -> None:
    data = blocks.encode(reference.CODE, TRAINED, BASE)
    for encoding in (transfer_pb2.ENCODING_REFERENCE, transfer_pb2.ENCODING_VALUES_ONLY):
        for held in (dict[bytes, Vector](), {bytes(32): BASE}):
            with pytest.raises(Resync, match="coded against others that this client does not hold"):
                read_values(data, payload(encoding, 0, BASE_DIGEST), 600, held)


@pytest.mark.parametrize("encoding", [0, 3, 4, 9, 10, 77])
def test_values_in_another_encoding_are_refused_by_its_number(encoding: int) -> None:
    with pytest.raises(Refused, match=f"sent values in encoding {encoding}$"):
        read_values(memoryview(bytes(2400)), payload(encoding), 600, {})


@pytest.mark.parametrize("encoding", [1, 2, *(encoding for encoding, _ in CODES.values()), 5])
def test_values_that_do_not_fit_are_refused(encoding: int) -> None:
    for data in (b"", bytes(2399), b"\xff" * 2401):
        with pytest.raises(Refused, match="values from the coordinator do not fit"):
            read_values(memoryview(data), payload(encoding), 600, {})


# -- scores


FOUND = np.abs(INITIAL[:300])


def score_task(encoding: int) -> pb.ScoreTask:
    made = pb.ScoreTask(num_coded=90)
    made.report_encoding = encoding  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("encoding", [0, transfer_pb2.ENCODING_DENSE], ids=["unset", "dense"])
def test_scores_are_exact_by_default(encoding: int) -> None:
    coded = write_scores(FOUND, score_task(encoding), EXACT, "ann")
    assert coded.payload.encoding == transfer_pb2.ENCODING_DENSE
    assert bytes(coded.data) == FOUND.tobytes()


def test_compact_scores_are_drawn_from_a_stream_of_the_client() -> None:
    task = score_task(transfer_pb2.ENCODING_SCORES)
    coded = write_scores(FOUND, task, EXACT, "ann")
    assert coded.payload.encoding == transfer_pb2.ENCODING_SCORES
    assert coded.payload.digest == hashlib.sha256(coded.data).digest()
    assert coded.payload.num_bytes == len(coded.data) < 300
    got = scores.decode(coded.data, 300)
    assert 90 <= np.count_nonzero(got) <= 120, "some smaller scores are rounded up"
    assert np.allclose(got[got > 0], FOUND[got > 0], rtol=0.125)
    assert coded.data == write_scores(FOUND, task, EXACT, "ann").data
    for client, seed in (("bob", 0), ("ann", 1)):
        other = write_scores(FOUND, task, replace(EXACT, seed=seed), client)
        assert coded.data != other.data


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 3.4e38])
def test_scores_that_cannot_be_compact_are_sent_as_float32(
    bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator then names the wrong tensor, or accepts the scores."""
    found = FOUND.copy()
    found[5] = bad
    coded = write_scores(found, score_task(transfer_pb2.ENCODING_SCORES), EXACT, "ann")
    assert coded.payload.encoding == transfer_pb2.ENCODING_DENSE
    assert bytes(coded.data) == found.tobytes()
    assert "sending the scores as float32" in caplog.text


@pytest.mark.parametrize("encoding", [1, 3, 5, 6, 7, 8, 10, 77])
def test_a_task_for_scores_in_another_encoding_is_refused(encoding: int) -> None:
    with pytest.raises(Refused, match=f"asks for scores in encoding {encoding}$"):
        write_scores(FOUND, score_task(encoding), EXACT, "ann")


# -- updates


def train_task(encoding: int, round_number: int = 3) -> pb.TrainTask:
    made = pb.TrainTask(round_number=round_number, base_digest=BASE_DIGEST)
    made.update_encoding = encoding  # type: ignore[assignment]
    return made


def lossy(value_type: str, **changes: Any) -> tuple[RunSettings, int, ValueCode]:
    settings = replace(RunSettings(value_type=value_type), **changes)
    return settings, *CODES[value_type]


def test_initial_weights_are_sent_as_float32() -> None:
    coded = write_dense(INITIAL)
    assert coded.payload.encoding == transfer_pb2.ENCODING_DENSE
    assert bytes(coded.data) == INITIAL.tobytes()


@pytest.mark.parametrize("encoding", [0, transfer_pb2.ENCODING_VALUES_ONLY], ids=["unset", "set"])
@pytest.mark.parametrize("settings", [EXACT, RunSettings(value_type="int8")])
def test_a_plain_update_has_the_trained_values_in_every_run(
    encoding: int, settings: RunSettings
) -> None:
    coded = write_update(TRAINED, BASE, train_task(encoding), settings, "ann", BASE)
    assert coded.payload.encoding == transfer_pb2.ENCODING_VALUES_ONLY
    assert (bytes(coded.data), coded.payload.reference_digest) == (TRAINED.tobytes(), b"")
    assert (coded.error, coded.residual) == (0.0, None)


def test_an_exact_update_is_coded_against_the_base_of_the_task() -> None:
    task = train_task(transfer_pb2.ENCODING_REFERENCE)
    coded = write_update(TRAINED, BASE, task, RunSettings(value_type="int8"), "ann", BASE)
    assert coded.payload.reference_digest == BASE_DIGEST
    assert coded.payload.digest == hashlib.sha256(coded.data).digest()
    got = read_values(coded.data, coded.payload, 600, {BASE_DIGEST: BASE})
    assert got.tobytes() == TRAINED.tobytes()
    assert (coded.error, coded.residual) == (0.0, None)


@pytest.mark.parametrize("value_type", CODES)
def test_a_lossy_update_reports_its_error_and_returns_the_residual(value_type: str) -> None:
    settings, encoding, code = lossy(value_type)
    coded = write_update(TRAINED, BASE, train_task(encoding), settings, "ann", None)
    assert (coded.payload.encoding, coded.payload.reference_digest) == (encoding, BASE_DIGEST)
    sent = blocks.decode(code, coded.data, 600, BASE)
    assert coded.error == blocks.relative_error(TRAINED, sent, BASE)
    assert 0 < coded.error < 0.05
    assert coded.residual is not None
    assert coded.residual.tobytes() == (TRAINED - sent).tobytes()


@pytest.mark.parametrize("value_type", CODES)
def test_the_residual_of_earlier_updates_is_added(value_type: str) -> None:
    settings, encoding, code = lossy(value_type)
    residual = np.full(600, 1e-3, dtype=np.float32)
    coded = write_update(TRAINED, BASE, train_task(encoding), settings, "ann", residual)
    sent = blocks.decode(code, coded.data, 600, BASE)
    assert blocks.relative_error(TRAINED + residual, sent, BASE) == coded.error < 0.05
    assert coded.residual is not None
    assert coded.residual.tobytes() == (TRAINED + residual - sent).tobytes()


@pytest.mark.parametrize("value_type", CODES)
def test_without_error_feedback_there_is_no_residual(value_type: str) -> None:
    settings, encoding, _ = lossy(value_type, error_feedback=False)
    coded = write_update(TRAINED, BASE, train_task(encoding), settings, "ann", None)
    assert coded.residual is None
    assert coded.error > 0


def test_rounding_follows_from_seed_round_and_client() -> None:
    settings, encoding, _ = lossy("int8")

    def sent(round_number: int = 3, client: str = "ann", seed: int = 0) -> bytes:
        task, run = train_task(encoding, round_number), replace(settings, seed=seed)
        return bytes(write_update(TRAINED, BASE, task, run, client, None).data)

    assert sent() == sent(), "also after a restart"
    assert len({sent(), sent(round_number=4), sent(client="bob"), sent(seed=1)}) == 4
    nearest = replace(settings, rounding="nearest")
    coded = write_update(TRAINED, BASE, train_task(encoding), nearest, "ann", None)
    assert bytes(coded.data) == bytes(blocks.encode(int8.CODE, TRAINED, BASE))


@pytest.mark.parametrize("value_type", CODES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_cannot_be_coded_is_sent_losslessly_and_the_residual_stays(
    value_type: str, bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    settings, encoding, _ = lossy(value_type)
    trained = TRAINED.copy()
    trained[5] = bad
    coded = write_update(trained, BASE, train_task(encoding), settings, "ann", BASE)
    assert coded.payload.encoding == transfer_pb2.ENCODING_REFERENCE
    sent = blocks.decode(reference.CODE, coded.data, trained.size, BASE)
    assert sent.tobytes() == trained.tobytes(), "without the residual of earlier updates"
    assert coded.residual is None
    assert "sending the values losslessly" in caplog.text


@pytest.mark.parametrize("value_type", ["float32", *CODES])
def test_a_task_for_another_encoding_than_the_runs_is_refused(value_type: str) -> None:
    settings = RunSettings(value_type=value_type)
    own = CODES[value_type][0] if value_type in CODES else None
    for encoding in (2, 3, 4, 6, 7, 8, 9, 10, 77):
        if encoding != own:
            with pytest.raises(Refused, match=f"asks for values in encoding {encoding}$"):
                write_update(TRAINED, BASE, train_task(encoding), settings, "ann", None)


@given(st.data())
def test_over_many_rounds_only_the_last_residual_is_missing(data: st.DataObject) -> None:
    """With error feedback the sent updates sum to the trained ones, less one residual."""
    value_type = data.draw(st.sampled_from(sorted(CODES)))
    rounding = data.draw(st.sampled_from(["stochastic", "nearest"]))
    settings, encoding, code = lossy(value_type, rounding=rounding, grid_bits=10)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    scale = 10.0 ** data.draw(st.integers(-6, 0))
    base: Vector = rng.normal(0, 0.1, 40).astype(np.float32)
    residual: Vector | None = None
    owed = np.zeros(40)
    for round_number in range(data.draw(st.integers(1, 12))):
        trained = (base + rng.normal(0, scale, 40)).astype(np.float32)
        task = train_task(encoding, round_number)
        coded = write_update(trained, base, task, settings, "ann", residual)
        sent = blocks.decode(code, coded.data, 40, base)
        owed += trained.astype(np.float64) - sent
        base, residual = sent, coded.residual
    assert residual is not None
    assert np.allclose(owed, residual, rtol=1e-4, atol=1e-6 * max(1.0, scale))
    step = {"bfloat16": scale / 20, "int8": scale / 10, "grid": 2.0**-10}[value_type]
    assert np.abs(owed).max() <= 1.5 * step + 1e-6, "the residual does not grow"
