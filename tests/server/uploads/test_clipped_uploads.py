"""Updates that are too long, as the coordinator keeps them; claims and leftovers of uploads."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from server.run_loop_harness import SETTINGS, conduct
from server.step_harness import C1, C2, Steps, announced
from server.uploads.test_coded_runs import coded, story
from ssfl.codec import values_only
from ssfl.method.manifest import Manifest
from ssfl.method.norm_clip import clip
from ssfl.server.errors import BadValues, InvalidRequest, UpdateConflict
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.run import events
from ssfl.strategies.contract import Work
from ssfl.v1 import transfer_pb2 as pb

Vector = npt.NDArray[np.float32]
LIMIT = 0.5
CLIPPING = replace(SETTINGS, max_update_norm=LIMIT)


def plain(values: Vector) -> tuple[pb.Payload, bytes]:
    data = bytes(values_only.encode(values))
    return announced(data, pb.ENCODING_VALUES_ONLY), data


@pytest.mark.parametrize("encoding", ["values_only", "reference"])
def test_an_update_over_the_norm_limit_is_stored_clipped(
    tmp_path: Path, manifest: Manifest, encoding: str
) -> None:
    async def tell(steps: Steps) -> None:
        values = steps.base + np.float32(1)
        payload, data = plain(values) if encoding == "values_only" else coded(steps, values)
        short, norm = clip(values, steps.base, LIMIT)
        assert await steps.update(payload, data) == ["grant 0", "accepted"]
        assert steps.spooled() == {".bin": short.tobytes()}
        upload = steps.step.uploads[C1]
        assert upload.digest == payload.digest.hex(), "it goes by what was sent"
        assert upload.report["clipped"] == norm
        assert await steps.update(payload, data) == ["already_accepted"]

    story(tmp_path, manifest, tell, CLIPPING)


def test_an_update_within_the_limit_is_kept_as_it_is(tmp_path: Path, manifest: Manifest) -> None:
    async def tell(steps: Steps) -> None:
        values = steps.base + np.float32(1e-3)
        assert await steps.update(*plain(values)) == ["grant 0", "accepted"]
        assert steps.spooled() == {".bin": values.tobytes()}
        assert "clipped" not in steps.step.uploads[C1].report

    story(tmp_path, manifest, tell, CLIPPING)


def test_a_non_finite_update_is_refused_and_not_clipped(tmp_path: Path, manifest: Manifest) -> None:
    async def tell(steps: Steps) -> None:
        values = steps.base.copy()
        values[1] = np.inf
        with pytest.raises(BadValues):
            await steps.update(*plain(values))
        assert steps.spooled() == {}

    story(tmp_path, manifest, tell, CLIPPING)


def test_a_restart_folds_the_clipped_update(tmp_path: Path, manifest: Manifest) -> None:
    """The same digest, whether the coordinator was killed between the two updates or not."""
    ends: list[str] = []

    async def first(steps: Steps) -> None:
        await steps.update(*plain(steps.base + np.float32(1)), C1)

    async def second(steps: Steps) -> None:
        await steps.update(*plain(steps.base - np.float32(0.01)), C2)
        while steps.coordinator.run.state.rounds_done == 0:
            await asyncio.sleep(0)
        ends.append(steps.coordinator.run.state.base_digest)

    async def undisturbed(steps: Steps) -> None:
        await first(steps)
        await second(steps)

    async def resumed(coordinator: Coordinator) -> None:
        await second(Steps(coordinator, manifest))

    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    story(tmp_path / "whole", manifest, undisturbed, CLIPPING)
    story(tmp_path / "killed", manifest, first, CLIPPING)
    conduct(tmp_path / "killed", resumed, CLIPPING)
    assert ends[0] == ends[1]


def test_an_update_counts_with_the_weight_of_its_step(tmp_path: Path, manifest: Manifest) -> None:
    settings = replace(SETTINGS, max_samples=4, samples_over_max="clip")

    async def tell(steps: Steps) -> None:
        assert steps.step.cohort == {C1: 4, C2: 4}, "both said 10"
        base, (payload, data) = steps.base, plain(steps.base + np.float32(1))
        header = steps.update_header(payload)
        header.num_samples = 0
        with pytest.raises(InvalidRequest, match="c1 has 0 training samples"):
            await steps.update(payload, data, header=header)
        header.num_samples = 3
        assert await steps.update(payload, data, header=header) == ["grant 0", "accepted"]
        assert await steps.update(*plain(base), C2) == ["grant 0", "accepted"]
        await steps.reaches(Work.TRAIN, round_number=1)
        assert np.allclose(steps.base, base + np.float32(0.5)), "both weigh the same"

    story(tmp_path, manifest, tell, settings)


@pytest.mark.parametrize("reproducible", [True, False])
def test_a_changed_sample_count_counts_from_the_next_step_on(
    tmp_path: Path, manifest: Manifest, *, reproducible: bool
) -> None:
    async def tell(steps: Steps) -> None:
        assert steps.step.cohort == {C1: 10, C2: 10}
        digest, base = manifest.digest.hex(), steps.base
        await steps.coordinator.run.post(events.Joined(C1, "t", 30, digest, "cpu"))
        payload, data = plain(base + np.float32(1))
        header = steps.update_header(payload)
        header.num_samples = 30
        assert await steps.update(payload, data, header=header) == ["grant 0", "accepted"]
        assert await steps.update(*plain(base), C2) == ["grant 0", "accepted"]
        await steps.reaches(Work.TRAIN, round_number=1)
        assert np.allclose(steps.base, base + np.float32(0.5)), "both weigh the same"
        assert steps.step.cohort == {C1: 30, C2: 10}

    story(tmp_path, manifest, tell, replace(SETTINGS, reproducible=reproducible))


def test_two_uploads_of_one_client_at_once_leave_one_file(
    tmp_path: Path, manifest: Manifest
) -> None:
    """The second was whole before the first counted; what does not count takes no room."""

    async def tell(steps: Steps) -> None:
        one, two = plain(steps.base), plain(steps.base + np.float32(1))
        answers = await asyncio.gather(
            steps.update(*one), steps.update(*two), return_exceptions=True
        )
        accepted = [answer for answer in answers if isinstance(answer, list)]
        assert sum("accepted" in answer[-1] for answer in accepted) == 1
        with pytest.raises(UpdateConflict):
            counted = steps.step.uploads[C1].digest
            await steps.update(*(two if counted == one[0].digest.hex() else one))
        assert set(steps.spooled()) == {".bin"}
        folder = steps.coordinator.spool.root / str(steps.step.number)
        assert len(list(folder.iterdir())) == 1

    story(tmp_path, manifest, tell)
