from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import permutations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.server.aggregate import step_sum
from ssfl.server.aggregate.step_sum import StepSum, compare, update_fraction_bits
from ssfl.server.errors import StateError
from ssfl.server.run.facts import UploadAccepted
from ssfl.server.run.state import Step
from ssfl.server.storage.spool import Spool
from ssfl.strategies.contract import ClientId, NoOptions, Reduced, Rule, StepDone, Uploads, Work
from ssfl.strategies.mask_source import AllWeights
from ssfl.strategies.registry import strategy_for
from ssfl.strategies.strategy import Strategy

Vector = npt.NDArray[np.float32]
COHORT = {ClientId("c1"): 10, ClientId("c2"): 30, ClientId("c3"): 60}
C1, C2, C3 = COHORT


class Summing(Strategy):
    """Keeps its input, so that a test sees the sum itself."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings, AllWeights(settings), Rule(settings, NoOptions()))

    def finish(
        self, _step: StepDone, state: ModelState, reduced: Reduced, _uploads: Uploads
    ) -> ModelState:
        return replace(state, values=reduced.values)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


def step_with(spool: Spool, work: Work, uploads: Mapping[ClientId, Vector]) -> Step:
    """Return a step whose uploads are in the spool; all of them count."""
    accepted = {}
    for client, values in uploads.items():
        digest = sha256(values.tobytes()).digest()
        spool.part(4, client, digest).append(values.tobytes())
        part = spool.part(4, client, digest)
        spool.keep(part, part.values)
        largest = float(np.abs(values).max())
        accepted[client] = UploadAccepted(4, client, digest.hex(), largest)
    criterion = "saliency" if work is Work.SCORE else ""
    return Step(4, work, criterion, 2, 0, COHORT, accepted, closed=tuple(sorted(accepted)))


def total(step: Step, model: ModelState, spool: Spool, *folded: ClientId) -> list[float]:
    """Fold some clients in the given order, then finish; return the mean."""
    opened = replace(step, uploads={}, closed=None)
    step_sum = StepSum(opened, model, spool, Summing(RunSettings()))
    for client in folded:
        step_sum.fold(step.uploads[client], step.weights[client])
    values = step_sum.finish(step).model.values
    assert values is not None
    return [float(value) for value in values]


def random_uploads(size: int) -> dict[ClientId, Vector]:
    return {
        client: (Stream(0, "upload", client).uniform(size) - 0.5).astype(np.float32)
        for client in COHORT
    }


def test_updates_are_averaged_by_samples(spool: Spool, model: ModelState) -> None:
    uploads = {C1: vector(1, 0, 0, 0, 0, 10), C2: vector(0, 1, 0, 0, 0, 0), C3: vector(*[0] * 6)}
    step = step_with(spool, Work.TRAIN, uploads)
    expected = [float(np.float32(x)) for x in (0.1, 0.3, 0, 0, 0, 1)]
    assert total(step, model, spool, C1, C2, C3) == expected


def test_only_closed_uploads_count_and_are_weighted_among_themselves(
    spool: Spool, model: ModelState
) -> None:
    step = step_with(spool, Work.TRAIN, {C1: vector(*[4] * 6), C2: vector(*[8] * 6)})
    assert total(step, model, spool, C1, C2) == [7.0] * 6  # (4 * 10 + 8 * 30) / 40


def test_any_order_of_folding_gives_the_same_bits(spool: Spool, model: ModelState) -> None:
    step = step_with(spool, Work.TRAIN, random_uploads(6))
    results = {tuple(total(step, model, spool, *order)) for order in permutations(COHORT)}
    assert len(results) == 1


def test_after_a_restart_the_same_uploads_give_the_same_bits(
    spool: Spool, model: ModelState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any uploads folded before the crash, and blocks of any size."""
    step = step_with(spool, Work.TRAIN, random_uploads(6))
    undisturbed = total(step, model, spool, C1, C2, C3)
    for block in (1, 4, 5):
        monkeypatch.setattr(step_sum, "_BLOCK", block)
        for folded in ((), (C2,), (C3, C1)):
            assert total(step, model, spool, *folded) == undisturbed


def test_a_folded_upload_that_does_not_count_does_not_affect_the_mean(
    spool: Spool, model: ModelState
) -> None:
    step = step_with(spool, Work.TRAIN, random_uploads(6))
    without = replace(step, closed=(C1, C3))
    assert total(without, model, spool, C1, C2, C3) == total(without, model, spool)
    assert total(without, model, spool) != total(step, model, spool)


def test_scores_are_averaged_over_all_masked_coordinates(spool: Spool, model: ModelState) -> None:
    uploads = {C1: vector(1, 0, 0, 0, 0, 0), C2: vector(0, 2, 0, 0, 0, 0), C3: vector(*[0] * 6)}
    step = step_with(spool, Work.SCORE, uploads)
    expected = [float(np.float32(x)) for x in (0.1, 0.6, 0, 0, 0, 0)]
    assert total(step, model, spool, C1, C2, C3) == expected


def test_small_scores_count_because_the_grid_follows_the_largest(
    spool: Spool, model: ModelState
) -> None:
    """On the grid of updates, 2^-36, all of these would be zero."""
    tiny = vector(1e-13, 2e-13, 3e-13, 4e-13, 5e-13, 6e-13)
    step = step_with(spool, Work.SCORE, dict.fromkeys(COHORT, tiny))
    # The grid is 2^-80 here: 8e-25, a relative 1e-11 of the smallest, far below float32's 6e-8.
    assert total(step, model, spool) == tiny.tolist()


def test_the_grid_of_scores_depends_only_on_counted_scores(spool: Spool, model: ModelState) -> None:
    uploads = {**random_uploads(6), C2: vector(*[3e38] * 6)}
    step = step_with(spool, Work.SCORE, {k: np.abs(v) for k, v in uploads.items()})
    without = replace(step, closed=(C1, C3))
    alone = replace(without, uploads={c: step.uploads[c] for c in (C1, C3)})
    assert total(without, model, spool) == total(alone, model, spool)


def test_huge_scores_do_not_overflow(spool: Spool, model: ModelState) -> None:
    huge = vector(*[3e38] * 6)
    step = step_with(spool, Work.SCORE, dict.fromkeys(COHORT, huge))
    assert total(step, model, spool) == huge.tolist()


def test_the_grid_of_updates_is_fixed_by_the_cohort(spool: Spool, model: ModelState) -> None:
    """It was announced in the task, so it cannot depend on which clients reported."""
    del model
    step = step_with(spool, Work.TRAIN, random_uploads(6))
    assert update_fraction_bits(step) == 36
    assert update_fraction_bits(replace(step, cohort={C1: 2**20})) == 31
    assert update_fraction_bits(replace(step, closed=(C1,))) == 36


def test_the_sum_becomes_the_strategys_next_model(spool: Spool, model: ModelState) -> None:
    strategy = strategy_for(RunSettings(sparsity="0.5"))
    scores = vector(9, 1, 8, 1, 7, 1)
    step = step_with(spool, Work.SCORE, dict.fromkeys(COHORT, scores))
    begun = strategy.begin(model.manifest, model.initial)
    scored = StepSum(step, begun, spool, strategy).finish(step).model
    assert scored.mask is not None and scored.mask_epoch == 1
    assert scored.mask.bools().tolist() == [True, False, True, False, True, False]


def test_equal_weights_give_the_plain_mean(spool: Spool, model: ModelState) -> None:
    uploads = {C1: vector(1, 0, 0, 0, 0, 9), C2: vector(0, 1, 0, 0, 0, 0), C3: vector(*[0] * 6)}
    for work in (Work.TRAIN, Work.SCORE):
        step = replace(step_with(spool, work, uploads), equal_weights=True)
        expected = [float(np.float32(1) / np.float32(3))] * 2 + [0, 0, 0, 3]
        assert total(step, model, spool, C1, C2, C3) == expected
        assert total(replace(step, closed=(C1,)), model, spool) == uploads[C1].tolist()


def test_the_grid_of_equal_weights_follows_from_their_number(spool: Spool) -> None:
    step = step_with(spool, Work.TRAIN, random_uploads(6))
    huge = replace(step, cohort=dict.fromkeys(COHORT, 2**30))
    assert update_fraction_bits(huge) == 20
    assert update_fraction_bits(replace(huge, equal_weights=True)) == 36


def test_a_mask_that_needs_no_client_is_made_by_the_coordinator(
    spool: Spool, model: ModelState
) -> None:
    strategy = strategy_for(RunSettings(sparsity="0.5", criterion="random"))
    begun = strategy.begin(model.manifest, model.initial)
    asked = Step(1, Work.SCORE, "random", 0, 0, {}, uploads={})
    made = StepSum(asked, begun, spool, strategy).finish(replace(asked, closed=()))
    assert made.model.mask is not None and made.model.mask.num_kept == 3
    assert "densities" not in made.report, "there are no scores to compare sparsities by"
    layers = made.report["layers"]
    assert sum(one["kept"] for one in layers.values()) == 3
    assert {name: one["size"] for name, one in layers.items()} == {
        "conv.weight": 4, "fc.weight": 2,
    }  # fmt: skip


def test_a_refreshed_mask_is_compared_with_the_previous_one(
    spool: Spool, model: ModelState
) -> None:
    strategy = strategy_for(RunSettings(sparsity="0.5"))
    uploads = dict.fromkeys(COHORT, vector(9, 9, 0, 9, 0, 0))  # 0, 1, 3 instead of 1, 3, 4
    step = replace(step_with(spool, Work.SCORE, uploads), criterion="saliency", reason="asked for")
    made = StepSum(step, model, spool, strategy).finish(step)
    assert made.model.mask_epoch == 2
    assert made.report["renewed"] == {
        "reason": "asked for", "kept_before": 3, "kept": 3, "added": 1, "dropped": 1,
        "replaced": pytest.approx(1 / 3), "jaccard_distance": 0.5,
    }  # fmt: skip
    assert made.scores is not None and made.scores.tolist() == [9, 9, 0, 9, 0, 0]
    assert made.report["densities"]


def test_masks_are_compared_by_what_each_keeps() -> None:
    def mask(*kept: int) -> Mask:
        return Mask.from_bools(np.isin(np.arange(6), kept))

    grown = compare(mask(0, 1), mask(0, 1, 2, 3))
    assert (grown["added"], grown["dropped"], grown["replaced"]) == (2, 0, 0.5)
    assert grown["jaccard_distance"] == 0.5
    same = compare(mask(0, 1), mask(0, 1))
    assert (same["added"], same["dropped"], same["replaced"], same["jaccard_distance"]) == (
        0, 0, 0, 0,
    )  # fmt: skip
    other = compare(mask(0, 1), mask(4))
    assert (other["kept_before"], other["kept"], other["added"], other["dropped"]) == (2, 1, 1, 2)
    assert (other["replaced"], other["jaccard_distance"]) == (1, 1)


def test_a_missing_file_is_an_error_not_a_wrong_sum(spool: Spool, model: ModelState) -> None:
    step = step_with(spool, Work.TRAIN, random_uploads(6))
    spool.stored(4, C2, bytes.fromhex(step.uploads[C2].digest)).drop()
    with pytest.raises(FileNotFoundError):
        total(step, model, spool)


def test_outlier_scores_do_not_count_and_are_logged(
    spool: Spool, model: ModelState, caplog: pytest.LogCaptureFixture
) -> None:
    rest = [0.0] * (model.manifest.num_masked - 4)
    few = {C1: (1, 2, 0, 0), C2: (3, 1, 0, 0), C3: (0, 0, 0, 1e30)}
    uploads = {client: vector(*values, *rest) for client, values in few.items()}
    step = step_with(spool, Work.SCORE, uploads)
    without = replace(step, closed=(C1, C2))
    assert total(step, model, spool) == total(without, model, spool)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert vars(record)["client"] == C3 and "do not count" in record.message


def test_outlier_scores_may_be_kept(
    spool: Spool, model: ModelState, caplog: pytest.LogCaptureFixture
) -> None:
    rest = [0.0] * (model.manifest.num_masked - 4)
    few = {C1: (1, 2, 0, 0), C2: (3, 1, 0, 0), C3: (0, 0, 0, 1e30)}
    uploads = {client: vector(*values, *rest) for client, values in few.items()}
    step = step_with(spool, Work.SCORE, uploads)
    kept = StepSum(step, model, spool, Summing(RunSettings()), "keep").reduce(step).values
    assert kept[3] > 1e29 and kept[0] == 0, "the grid follows the largest"
    assert [vars(record)["client"] for record in caplog.records] == [C3]


def test_a_truncated_file_is_not_summed(spool: Spool, model: ModelState) -> None:
    assert model.values is not None
    uploads = {client: np.ones(model.values.size, np.float32) for client in (C1, C2)}
    step = step_with(spool, Work.TRAIN, uploads)
    path = spool.stored(4, C1, bytes.fromhex(step.uploads[C1].digest)).path
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(StateError, match="upload of c1 in the spool is shorter than it was"):
        total(step, model, spool)
