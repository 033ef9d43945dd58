"""Predictions against numbers by hand and against built messages."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from ssfl.codec import blocks, reference
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import commit_values, lossy_code
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.messages import download_bytes, upload_bytes
from ssfl.tools.plan.result import RunPlan
from ssfl.tools.plan.sizes import FIRST_SHARE, REFERENCE_SHARE, VALUES_SHARES, Coding, Size
from ssfl.tools.plan.whole_run import PlannedSite, plan_run
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2

MANIFEST = Manifest(
    (
        TensorSpec("conv", (100, 50, 10, 10), Role.MASKED, Init("normal", 0.1)),
        TensorSpec("bias", (1000,), Role.DENSE, Init("zeros")),
    )
)
RUN = RunSettings(sparsity="0.9", rounds=10, clients=6, evaluate_every=4, scores="exact")
NUM_KEPT = 50_000  # of 500,000
VALUES = 4 * (NUM_KEPT + 1000)
FULL = 4 * 501_000


def plan(run: RunSettings = RUN, link: Link | None = None, slots: int = 8) -> RunPlan:
    return plan_run(MANIFEST, run, slots, reference_coding=False, link=link)


def payload(planned: RunPlan, phase: str, direction: str) -> Size:
    return planned.rows[phase, direction].payload


def test_every_client_scores_once_and_gets_the_mask_once() -> None:
    planned = plan()
    assert planned.num_kept == NUM_KEPT
    assert payload(planned, "scores", "up") == Size.fixed(6 * 4 * 500_000)
    assert payload(planned, "mask", "down").most == 6 * 500_000 // 8
    assert payload(planned, "initial", "up") == Size.fixed(0)  # clients build it from the seed


def test_a_base_is_sent_once_for_a_test_or_for_training() -> None:
    planned = plan()  # tested after rounds 4, 8 and 10; the first base is not sent
    assert payload(planned, "values", "up") == Size.fixed(10 * 6 * VALUES)
    assert payload(planned, "values", "down") == Size.fixed(7 * 6 * VALUES)
    assert payload(planned, "evaluation", "down") == Size.fixed(3 * 6 * VALUES)


def test_sampled_clients_train_and_all_test() -> None:
    planned = plan(replace(RUN, clients_per_round=2, over_selection=1.0))
    assert planned.cohort == 2
    assert payload(planned, "values", "up") == Size.fixed(10 * 2 * VALUES)
    assert payload(planned, "values", "down") == Size.fixed(7 * 2 * VALUES)
    assert payload(planned, "evaluation", "down") == Size.fixed(3 * 6 * VALUES)


def test_over_selected_clients_cost_between_nothing_and_a_full_round() -> None:
    sure = plan(replace(RUN, clients_per_round=2, over_selection=1.0))
    more = plan(replace(RUN, clients_per_round=2))
    spare = 10 * (3 - 2)  # three clients are invited for two reports
    for direction in ("up", "down"):
        low, high = payload(sure, "values", direction).low, payload(sure, "values", direction).high
        size = payload(more, "values", direction)
        assert (size.low, size.high) == (low, high + spare * VALUES)
    waited_for = plan(replace(RUN, clients_per_round=2, reproducible=True))
    assert payload(waited_for, "values", "up") == payload(sure, "values", "up")


def test_dense_training_sends_everything_and_neither_scores_nor_mask() -> None:
    dense = plan(replace(RUN, strategy="fedavg"))
    assert payload(dense, "values", "up") == Size.fixed(10 * 6 * FULL)
    assert {phase for phase, _ in dense.rows} == {"initial", "values", "evaluation", "control"}


def test_scores_pay_off_once_rounds_have_saved_more() -> None:
    dense, sparse = plan(replace(RUN, strategy="fedavg")), plan()
    # Scores are 2.0 MB, and a round saves 2 * 1.8 MB.
    assert sparse.break_even(dense) == 1
    half = plan(replace(RUN, sparsity="0.5"))
    # 2.0 MB of scores and at most 62.5 kB of mask against 2 * 1.0 MB.
    assert half.break_even(dense) == 2
    assert dense.break_even(dense) is None


def test_weights_that_do_not_follow_from_the_seed_are_sent() -> None:
    own = Manifest(tuple(replace(tensor, init=Init("sent")) for tensor in MANIFEST.tensors))
    planned = plan_run(own, RUN, 8, reference_coding=False)
    assert payload(planned, "initial", "up") == Size.fixed(FULL)
    assert payload(planned, "initial", "down") == Size(0, 5 * FULL, 5 * FULL)


def test_coded_values_have_the_codecs_bound_and_a_measured_range() -> None:
    planned = plan_run(MANIFEST, RUN, 8, reference_coding=True)
    assert planned.update.payload.most == blocks.max_encoded_bytes(reference.CODE, NUM_KEPT + 1000)
    low, high = REFERENCE_SHARE
    assert planned.update.payload.low == int(low * VALUES)
    assert planned.update.payload.high == pytest.approx(high * VALUES, abs=1)
    sampled = plan_run(MANIFEST, replace(RUN, clients_per_round=3), 8, reference_coding=True)
    assert sampled.base.payload.high == pytest.approx(FIRST_SHARE[1] * VALUES, abs=1)


@pytest.mark.parametrize("value_type", ["bfloat16", "int8", "grid"])
def test_lossy_values_are_smaller_in_both_directions(value_type: str) -> None:
    lossy = plan(replace(RUN, value_type=value_type))
    assert lossy.update.payload.high < 0.5 * VALUES
    assert lossy.base.payload == lossy.update.payload
    assert lossy.update.payload.most >= VALUES  # should a value not fit, all travel as they are


@pytest.mark.parametrize("value_type", ["bfloat16", "int8", "grid"])
def test_coded_values_are_as_small_for_clients_that_missed_a_round(value_type: str) -> None:
    few = replace(RUN, value_type=value_type, clients_per_round=2, over_selection=1.0)
    changes, values = plan(few), plan(replace(few, downloads="values"))
    assert payload(values, "values", "up") == payload(changes, "values", "up")
    down = payload(values, "values", "down")
    assert 0 < down.high < payload(changes, "values", "down").high
    low, high = VALUES_SHARES[value_type]
    assert down.low == pytest.approx(7 * 2 * low * VALUES, abs=14)
    assert down.high == pytest.approx(7 * 2 * high * VALUES, abs=14)
    assert values.base.payload.most >= VALUES  # should a value not fit, all travel as they are


def test_frozen_values_cost_as_much_as_others_if_values_are_coded() -> None:
    run = replace(RUN, value_type="int8", downloads="values")
    values = (0.05 * np.random.default_rng(5).standard_normal(20_000)).astype(np.float32)
    _, coded, _ = commit_values(run, values, None)
    assert coded is not None
    coding = Coding(run, reference=True, num_frozen=15_000)
    planned = coding.base(values.size, holds_previous=True).size
    assert planned.low <= len(coded) <= planned.high <= planned.most
    assert planned == coding.base(values.size, holds_previous=False).size


def test_compact_scores_are_expected_to_be_small_and_bounded_by_float32() -> None:
    compact = plan(replace(RUN, scores="compact"))
    assert compact.scores.payload.most == 4 * 500_000  # if no code can hold them
    # 30 % of the scores are coded: 0.88 bits say which, and a code has 4.4 to 7 bits.
    assert compact.scores.payload.low == pytest.approx(500_000 * (0.8813 + 0.3 * 4.4) / 8, abs=50)
    assert compact.scores.payload.high < 500_000 / 2


def test_download_bytes_are_those_of_built_chunks() -> None:
    data = np.random.default_rng(0).bytes(1_000_000)
    total = 0
    for at in range(0, len(data), 1 << 16):
        piece = data[at : at + (1 << 16)]
        chunk = transfer_pb2.Chunk(offset=at, data=piece, crc32=zlib.crc32(piece))
        total += len(pb.NextTaskResponse(chunk=chunk).SerializeToString())
    assert download_bytes(len(data)) == total


def test_upload_chunks_shrink_on_a_slow_link() -> None:
    # At 1 Mbit/s half a second is 62.5 kB, so chunks shrink from 256 KiB to the minimum of 64 KiB.
    slow = upload_bytes(4 << 20, 1e6, pb.SendUpdateRequest)
    fast = upload_bytes(4 << 20, None, pb.SendUpdateRequest)
    assert fast < slow < (4 << 20) + 64 * 25
    assert upload_bytes(0, 1e6, pb.SendUpdateRequest) == 0


def test_a_round_takes_its_transfers_in_turns_at_the_upload_slots() -> None:
    link = Link(20e6, 20e6, 0.05)
    enough, few = plan(link=link).times, plan(link=link, slots=2).times
    assert enough is not None and few is not None
    assert enough.round.high == pytest.approx(enough.base.high + enough.update.high)
    # Three turns, each with a round trip for the grant of a slot.
    assert few.update.high == pytest.approx(enough.update.high + 0.05)
    assert few.round.high == pytest.approx(few.base.high + 3 * few.update.high)


def test_control_messages_stay_small() -> None:
    planned = plan()
    assert planned.rows["control", "up"].message.high < 0.01 * planned.total("up").message.high
    assert planned.rows["control", "down"].message.high < 0.01 * planned.total("down").message.high


@pytest.mark.parametrize("value_type", ["float32", "bfloat16", "int8", "grid"])
@pytest.mark.parametrize(("trained", "frozen"), [(2_000, 300_000), (50_000, 20_000)])
def test_frozen_values_cost_what_their_code_makes_of_them(
    value_type: str, trained: int, frozen: int
) -> None:
    run = replace(RUN, value_type=value_type)
    random = np.random.default_rng(5)
    base = (0.05 * random.standard_normal(trained + frozen)).astype(np.float32)
    moved = (0.002 * random.standard_normal(trained)).astype(np.float32)
    values = np.concatenate([base[:trained] + moved, base[trained:]])
    words = random.integers(0, 1 << 32, values.size, dtype=np.uint32)
    code = lossy_code(run)
    real = len(blocks.encode(code or reference.CODE, values, base, words if code else None))
    planned = Coding(run, reference=True, num_frozen=frozen).update(values.size).size
    assert planned.low <= real <= planned.high <= planned.most
    assert planned.most == Coding(run, reference=True).update(values.size).size.most


def test_frozen_values_cost_as_much_as_others_without_reference_coding() -> None:
    frozen = plan_run(MANIFEST, RUN, 8, reference_coding=False, site=PlannedSite(num_frozen=500))
    assert frozen.update == plan().update
