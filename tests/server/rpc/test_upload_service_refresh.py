"""Uploads around a mask refresh: another mask, other weights or another step are refused."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from server.run_loop_harness import SETTINGS, NoPeer, conduct
from server.step_harness import C1, C2, NUM_SAMPLES, Steps, Vector, announced, stream
from ssfl.codec import values_only
from ssfl.method.controls import client_random_mask
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.server.errors import BadValues, StaleBase, StaleMask
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.run import events
from ssfl.strategies.contract import ClientId, Work
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import saliency_pb2, transfer_pb2, update_pb2

Play = Callable[[Steps], Awaitable[None]]
VALUES_ONLY = transfer_pb2.ENCODING_VALUES_ONLY
DENSE = transfer_pb2.ENCODING_DENSE


def play(folder: Path, manifest: Manifest, part: Play, settings: RunSettings = SETTINGS) -> None:
    async def script(coordinator: Coordinator) -> None:
        await part(Steps(coordinator, manifest))

    conduct(folder, script, settings)


def plain(values: Vector) -> bytes:
    return bytes(values_only.encode(values))


async def train(steps: Steps, *clients: ClientId) -> list[str]:
    data = plain(steps.base + np.float32(1))
    return [
        answer
        for client in clients
        for answer in await steps.update(announced(data, VALUES_ONLY), data, client)
    ]


async def renewing(steps: Steps) -> update_pb2.SparseUpdate:
    """Bring a run to its second scoring; return the header of an update of the round before."""
    await steps.training()
    await steps.coordinator.run.post(events.Signal.REFRESH)
    header = steps.update_header(announced(plain(steps.base), VALUES_ONLY))
    await train(steps, C1, C2)
    await steps.reaches(Work.SCORE, 1)
    return header


def test_an_update_under_another_mask_is_refused_by_that_name(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def part(steps: Steps) -> None:
        await steps.training()
        data = plain(steps.base)
        right = steps.update_header(announced(data, VALUES_ONLY))
        for changes in ({"mask_epoch": 2}, {"mask_digest": bytes(32)}):
            wrong = update_pb2.SparseUpdate()
            wrong.CopyFrom(right)
            for name, value in changes.items():
                setattr(wrong, name, value)
            with pytest.raises(StaleMask, match=r"made under mask \d .* the run has mask 1"):
                await steps.update(right.values, data, header=wrong)
        other = update_pb2.SparseUpdate()
        other.CopyFrom(right)
        other.base_digest = bytes(32)
        with pytest.raises(StaleBase, match="started from other values") as caught:
            await steps.update(right.values, data, header=other)
        assert not isinstance(caught.value, StaleMask)
        assert (await steps.update(right.values, data))[-1] == "accepted"

    play(tmp_path, manifest, part)


def test_an_update_of_the_round_before_a_refresh_is_too_late(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def part(steps: Steps) -> None:
        header = await renewing(steps)
        data = plain(steps.base + np.float32(1))
        header.values.CopyFrom(announced(data, VALUES_ONLY))
        assert await steps.update(header.values, data, header=header) == ["step_closed"]

    play(tmp_path, manifest, part)


async def renewed(steps: Steps) -> update_pb2.SparseUpdate:
    """Bring a run to the round under its second mask; return the header of an earlier update."""
    header = await renewing(steps)
    scores = plain(np.ones(steps.manifest.num_masked, dtype=np.float32))
    for client in (C1, C2):
        await steps.scores(announced(scores, DENSE), scores, client)
    await steps.reaches(Work.TRAIN, 1)
    return header


def test_a_late_update_under_an_old_mask_is_refused_as_stale(
    tmp_path: Path, manifest: Manifest
) -> None:
    """The reason is its mask, not its closed step: it could not count in any step."""

    async def part(steps: Steps) -> None:
        late = await renewed(steps)
        data = plain(np.arange(steps.base.size, dtype=np.float32))
        late.values.CopyFrom(announced(data, VALUES_ONLY))
        with pytest.raises(StaleMask, match="made under mask 1, the run has mask 2") as caught:
            await steps.update(late.values, data, header=late)
        assert caught.value.reason == "stale_mask"
        assert steps.spooled() == {}
        late.mask_epoch = 2
        assert await steps.update(late.values, data, header=late) == ["step_closed"]

    play(tmp_path, manifest, part)


def test_a_late_update_that_had_counted_is_reported_as_accepted_under_any_mask(
    tmp_path: Path, manifest: Manifest
) -> None:
    """A mask that asks no client: the update is the newest of its client's that counted."""

    async def part(steps: Steps) -> None:
        await steps.begun()
        await steps.reaches(Work.TRAIN)
        await steps.coordinator.run.post(events.Signal.REFRESH)
        data = plain(steps.base + np.float32(1))
        header = steps.update_header(announced(data, VALUES_ONLY))
        await train(steps, C1, C2)
        await steps.reaches(Work.TRAIN, 1)
        assert (header.mask_epoch, steps.coordinator.run.state.mask_epoch) == (1, 2)
        assert await steps.update(header.values, data, header=header) == ["already_accepted"]

    play(tmp_path, manifest, part, replace(SETTINGS, criterion="random"))


def test_scores_of_the_initial_weights_are_refused_for_trained_weights(
    tmp_path: Path, manifest: Manifest
) -> None:
    async def part(steps: Steps) -> None:
        await renewing(steps)
        model = steps.coordinator.run.model
        assert model is not None and model.whole_digest != model.initial_digest
        data = plain(np.ones(manifest.num_masked, dtype=np.float32))
        header = saliency_pb2.SaliencyReport(
            manifest_digest=manifest.digest,
            initial_digest=model.initial_digest,
            step=steps.step.number,
            num_samples=NUM_SAMPLES,
            scores=announced(data, DENSE),
        )
        request = pb.ReportSaliencyRequest(caller=steps.caller(C1), header=header)
        with pytest.raises(StaleBase, match="scores are for other weights"):
            _ = [one async for one in steps.service.ReportSaliency(stream(request), NoPeer())]
        assert (await steps.scores(announced(data, DENSE), data))[-1] == "accepted"

    play(tmp_path, manifest, part)


@pytest.mark.parametrize("criterion", ["saliency", "grasp"])
def test_negative_scores_are_accepted_for_signed_criteria(
    tmp_path: Path, manifest: Manifest, criterion: str
) -> None:
    async def part(steps: Steps) -> None:
        await steps.scoring()
        data = plain(np.array([-3, -2, -1, 0, 1, 2], dtype=np.float32))
        if criterion == "saliency":
            with pytest.raises(BadValues, match="must be finite and not negative"):
                await steps.scores(announced(data, DENSE), data)
            return
        for client in (C1, C2):
            assert (await steps.scores(announced(data, DENSE), data, client))[-1] == "accepted"
        await steps.reaches(Work.TRAIN)
        model = steps.coordinator.run.model
        assert model is not None and model.mask is not None
        assert model.mask.bools().tolist() == [False] * 3 + [True] * 3
        newest = steps.coordinator.history.newest_mask
        assert newest["criterion"] == "grasp"
        assert steps.coordinator.history.densities == [], "masks of signed scores are not nested"

    play(tmp_path, manifest, part, replace(SETTINGS, criterion=criterion))


def test_every_client_sends_the_values_of_its_own_mask(tmp_path: Path, manifest: Manifest) -> None:
    settings = replace(SETTINGS, criterion="client-random")

    async def part(steps: Steps) -> None:
        await steps.begun()
        await steps.reaches(Work.TRAIN)
        model = steps.coordinator.run.model
        assert model is not None and model.values is not None
        before = model.values
        sent = np.zeros(manifest.size, dtype=np.bool_)
        for client in (C1, C2):
            mask = client_random_mask(manifest, settings.sparsity, settings.seed, client)
            seen = steps.context.models.seen_by(client, Work.TRAIN, model)
            assert seen.mask == mask and seen.values is not None
            sent |= np.r_[mask.bools(), np.ones(manifest.num_unmasked, dtype=np.bool_)]
            data = plain(seen.values + np.float32(1))
            header = steps.update_header(announced(data, VALUES_ONLY))
            header.mask_digest, header.base_digest = mask.digest, seen.base_digest
            answers = await steps.update(header.values, data, client, header=header)
            assert answers[-1] == "accepted"
        await steps.reaches(Work.TRAIN, 1)
        expected = before + sent.astype(np.float32)
        assert np.allclose(steps.base, expected, atol=1e-6)
        assert steps.base[~sent].tobytes() == before[~sent].tobytes(), "what no client held stays"

    play(tmp_path, manifest, part, settings)
