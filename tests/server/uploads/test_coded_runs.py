"""Coded uploads to a run: what counts, what is refused, and what a crash leaves behind."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from server.run_loop_harness import SETTINGS, conduct
from server.step_harness import C1, C2, Steps, announced, staged
from ssfl.codec import (
    CodecError,
    DigestMismatch,
    MalformedPayload,
    TruncatedPayload,
    blocks,
    reference,
    scores,
    values_only,
)
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.server.errors import (
    BadValues,
    InvalidRequest,
    ModelUnusable,
    StaleBase,
    UpdateConflict,
)
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.refusals import reason_of
from ssfl.strategies.contract import Work
from ssfl.v1 import transfer_pb2 as pb

Vector = npt.NDArray[np.float32]


def story(
    folder: Path,
    manifest: Manifest,
    tell: Callable[[Steps], Awaitable[None]],
    settings: RunSettings = SETTINGS,
    work: Work = Work.TRAIN,
) -> None:
    """Bring a run to a step and return what happens there."""

    async def script(coordinator: Coordinator) -> None:
        steps = Steps(coordinator, manifest)
        await (steps.training() if work is Work.TRAIN else steps.scoring())
        await tell(steps)

    conduct(folder, script, settings)


def coded(steps: Steps, values: Vector, **changes: Any) -> tuple[pb.Payload, bytes]:
    """Return an exact update against the base of the step."""
    data = bytes(blocks.encode(reference.CODE, values, steps.base))
    digest = hashlib.sha256(steps.base.tobytes()).digest()
    payload = announced(data, pb.ENCODING_REFERENCE, digest)
    for name, value in changes.items():
        setattr(payload, name, value)
    return payload, data


def test_a_coded_update_counts_and_is_kept_as_plain_values(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def tell(steps: Steps) -> None:
        values = steps.base + np.float32(0.125)
        payload, data = coded(steps, values)
        assert await steps.update(payload, data) == ["grant 0", "accepted"]
        assert steps.spooled() == {".bin": values.tobytes()}
        upload = steps.step.uploads[C1]
        assert upload.digest == payload.digest.hex(), "known by the bytes that were sent"
        assert upload.report["encoding"] == "reference"
        (row,) = [row for row in steps.coordinator.ledger.rows() if row["encoding"] == "reference"]
        assert (row["phase"], row["direction"], row["payload_bytes"]) == ("values", "up", len(data))

    story(tmp_path, manifest, tell)


def test_a_mask_of_the_clients_own_counts_also_if_it_keeps_everything(
    tmp_path: Path, manifest: Manifest
) -> None:
    """It has no bytes on the wire; the votes for its weights are counted like those of any mask."""
    options = "topk-updates.share=1"
    settings = replace(SETTINGS, strategy="topk-updates", strategy_options=options)
    every = Mask.full(manifest.num_masked)

    async def script(coordinator: Coordinator) -> None:
        steps = Steps(coordinator, manifest)
        await steps.begun()
        await steps.reaches(Work.TRAIN)
        values = steps.base + np.float32(0.125)
        payload, data = coded(steps, values)
        header = steps.update_header(payload)
        header.own_mask.mask_digest = every.digest
        header.own_mask.num_kept, header.own_mask.all_kept = every.num_kept, True
        assert await steps.update(payload, data, header=header) == ["grant 0", "accepted"]
        assert steps.step.uploads[C1].own_mask == every.digest.hex()
        assert steps.spooled() == {".bin": values.tobytes() + every.bits}

    conduct(tmp_path, script, settings)


def test_the_sum_is_of_the_values_however_they_were_sent(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def tell(steps: Steps) -> None:
        base = steps.base.copy()
        payload, data = coded(steps, base + np.float32(0.5))
        await steps.update(payload, data)
        plain = bytes(values_only.encode(base + np.float32(0.25)))
        await steps.update(announced(plain, pb.ENCODING_VALUES_ONLY), plain, C2)
        await steps.reaches(Work.TRAIN, round_number=1)
        both = (base + np.float32(0.5)).astype(np.float64) + (base + np.float32(0.25))
        assert np.allclose(steps.base, both / 2, rtol=0, atol=1e-7)

    story(tmp_path, manifest, tell)


def test_the_same_bytes_again_are_accepted_already_and_others_are_a_conflict(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def tell(steps: Steps) -> None:
        payload, data = coded(steps, steps.base + np.float32(0.125))
        await steps.update(payload, data)
        assert await steps.update(payload, data) == ["already_accepted"]
        plain = bytes(values_only.encode(steps.base + np.float32(0.125)))
        with pytest.raises(UpdateConflict):
            await steps.update(announced(plain, pb.ENCODING_VALUES_ONLY), plain)
        assert list(steps.spooled()) == [".bin"]

    story(tmp_path, manifest, tell)


def test_an_update_that_counted_is_reported_as_accepted_after_its_step(
    tmp_path: Path, manifest: Manifest
) -> None:
    """The receipt is lost; the client keeps its residual only if the update counted."""

    async def tell(steps: Steps) -> None:
        payload, data = coded(steps, steps.base + np.float32(0.125))
        other, _ = coded(steps, steps.base)
        late, never = steps.update_header(payload), steps.update_header(other)
        for client in (C1, C2):
            await steps.update(payload, data, client)
        await steps.reaches(Work.TRAIN, round_number=1)
        assert await steps.update(payload, data, header=late) == ["already_accepted"]
        assert await steps.update(other, data, header=never) == ["step_closed"]

    story(tmp_path, manifest, tell)


def test_a_complete_upload_counts_if_the_connection_breaks_afterwards(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def tell(steps: Steps) -> None:
        payload, data = coded(steps, steps.base + np.float32(0.125))
        sending = asyncio.ensure_future(steps.update(payload, data))
        while len(steps.spooled().get(".part", b"")) < len(data) and ".bin" not in steps.spooled():
            await asyncio.sleep(0)
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        answers = await steps.update(payload, data)
        assert answers[-1] in ("accepted", "already_accepted")
        assert steps.spooled()[".bin"] == (steps.base + np.float32(0.125)).tobytes()

    story(tmp_path, manifest, tell)


def test_a_coded_upload_resumes_after_a_cut(tmp_path: Path, manifest: Manifest) -> None:
    async def tell(steps: Steps) -> None:
        values = steps.base + np.float32(0.125)
        payload, data = coded(steps, values)
        with pytest.raises(TruncatedPayload):
            await steps.update(payload, data, stop=16)
        assert steps.spooled() == {".part": data[:16]}
        assert await steps.update(payload, data, start=16) == ["grant 16", "accepted"]
        assert steps.spooled() == {".bin": values.tobytes()}

    story(tmp_path, manifest, tell)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1025.0])
def test_values_that_are_bad_once_decoded_are_refused_and_leave_nothing(
    tmp_path: Path, manifest: Manifest, bad: float
) -> None:
    async def tell(steps: Steps) -> None:
        values = steps.base.copy()
        values[-1] = bad
        payload, data = coded(steps, values)
        with pytest.raises(BadValues, match=r"c1 sent a value of size .* in norm\.mean"):
            await steps.update(payload, data)
        assert steps.spooled() == {}
        good, data = coded(steps, steps.base + np.float32(0.125))
        assert await steps.update(good, data) == ["grant 0", "accepted"]

    story(tmp_path, manifest, tell)


def test_a_step_that_makes_nan_of_codes_is_refused(
    tmp_path: Path, plain_manifest: Manifest
) -> None:
    """An int8 block whose step is infinite: 0 times infinity is not a number."""

    async def tell(steps: Steps) -> None:
        step = np.array([np.inf], dtype="<f4").tobytes()
        data = step + (6).to_bytes(4, "little") + bytes(6)
        digest = hashlib.sha256(steps.base.tobytes()).digest()
        with pytest.raises(MalformedPayload, match="not finite"):
            await steps.update(announced(data, pb.ENCODING_INT8, digest), data)
        assert steps.spooled() == {}

    story(tmp_path, plain_manifest, tell, replace(SETTINGS, value_type="int8"))


def test_running_statistics_are_not_rounded(tmp_path: Path, manifest: Manifest) -> None:
    async def tell(_steps: Steps) -> None:
        raise AssertionError("the run must not begin")

    with pytest.raises(ModelUnusable, match=r"running statistics \(norm.mean\).*use float32"):
        story(tmp_path, manifest, tell, replace(SETTINGS, value_type="bfloat16"))


def test_garbage_is_refused_and_leaves_nothing(tmp_path: Path, manifest: Manifest) -> None:
    async def tell(steps: Steps) -> None:
        payload, data = coded(steps, steps.base)
        for garbage in (b"\xff" * 30, bytes(40), data[:-1], b"\0"):
            with pytest.raises(CodecError) as caught:
                await steps.update(announced(garbage, pb.ENCODING_REFERENCE), garbage)
            assert reason_of(caught.value) == "bad_payload"
            assert steps.spooled() == {}
        wrong, _ = coded(steps, steps.base, digest=bytes(32))
        with pytest.raises(DigestMismatch):
            await steps.update(wrong, data)
        assert steps.spooled() == {}
        assert await steps.update(payload, data) == ["grant 0", "accepted"]

    story(tmp_path, manifest, tell)


def test_a_payload_larger_than_it_can_be_is_refused_before_a_byte(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def tell(steps: Steps) -> None:
        for size in (4 * 6 + 16 + 1, 2**40):
            payload, data = coded(steps, steps.base, num_bytes=size)
            with pytest.raises(InvalidRequest, match="expected at most 40"):
                await steps.update(payload, data)
        assert steps.spooled() == {}

    story(tmp_path, manifest, tell)


def test_an_update_against_another_base_is_stale(tmp_path: Path, manifest: Manifest) -> None:
    async def tell(steps: Steps) -> None:
        payload, data = coded(steps, steps.base, reference_digest=bytes(32))
        with pytest.raises(StaleBase, match="coded against other values: ask for the task again"):
            await steps.update(payload, data)
        assert steps.spooled() == {}

    story(tmp_path, manifest, tell)


def test_compact_scores_count(tmp_path: Path, manifest: Manifest) -> None:
    async def tell(steps: Steps) -> None:
        found = np.array([8, 1, 7, 2, 6, 3], dtype=np.float32)
        data = bytes(scores.encode(found, 6, np.zeros(6, dtype=np.uint32)))
        payload = announced(data, pb.ENCODING_SCORES)
        assert await steps.scores(payload, data) == ["grant 0", "accepted"]
        assert steps.spooled() == {".bin": found.tobytes()}
        assert steps.step.uploads[C1].largest == 8
        await steps.scores(payload, data, C2)
        await steps.reaches(Work.TRAIN)
        model = steps.coordinator.run.model
        assert model is not None and model.mask is not None
        assert model.mask.bools().tolist() == [True, False, True, False, True, False]

    story(tmp_path, manifest, tell, work=Work.SCORE)


def test_score_codes_beyond_the_largest_float_are_refused(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def tell(steps: Steps) -> None:
        data = b"\x00" + (254).to_bytes(2, "little") + (6).to_bytes(4, "little") + b"\xff" * 6
        with pytest.raises(MalformedPayload, match="beyond the largest float32"):
            await steps.scores(announced(data, pb.ENCODING_SCORES), data)
        assert steps.spooled() == {}

    story(tmp_path, manifest, tell, work=Work.SCORE)


@pytest.mark.parametrize("moment", ["received", "decoding", "decoded", "renamed"])
def test_the_client_sends_again_after_a_crash_before_the_journal_entry(
    tmp_path: Path, manifest: Manifest, moment: str
) -> None:
    """What a killed process can leave in the spool; the client, without a receipt, sends again."""

    async def killed(steps: Steps) -> None:
        values = steps.base + np.float32(0.125)
        payload, data = coded(steps, values)
        part = steps.coordinator.spool.part(steps.step.number, C1, payload.digest)
        part.path.write_bytes(data)
        match moment:
            case "decoding":
                staged(part, b"half of a block" * 99)
            case "decoded":
                staged(part, values.tobytes())
            case "renamed":
                part.path.with_suffix(".bin").write_bytes(values.tobytes())

    async def again(coordinator: Coordinator) -> None:
        steps = Steps(coordinator, manifest)
        await steps.reaches(Work.TRAIN)
        assert C1 not in steps.step.uploads
        values = steps.base + np.float32(0.125)
        payload, data = coded(steps, values)
        assert await steps.update(payload, data, start=len(data)) == [
            f"grant {len(data)}",
            "accepted",
        ]
        assert steps.spooled()[".bin"] == values.tobytes()
        assert ".part" not in steps.spooled()

    story(tmp_path, manifest, killed)
    conduct(tmp_path, again)


def test_leftovers_of_another_upload_after_a_crash_are_ignored(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def tell(steps: Steps) -> None:
        other, data = coded(steps, steps.base)
        part = steps.coordinator.spool.part(steps.step.number, C1, other.digest)
        part.path.write_bytes(data)
        staged(part, b"left behind")
        values = steps.base + np.float32(0.125)
        payload, data = coded(steps, values)
        assert await steps.update(payload, data) == ["grant 0", "accepted"]
        assert steps.spooled()[".bin"] == values.tobytes()
        assert ".part" not in steps.spooled()

    story(tmp_path, manifest, tell)
