"""Top-k updates: which changes a client sends, what it keeps for later, and the server's step."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.client.memory import StepMemory
from ssfl.method.errors import SettingsError
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.server.uploads.update_parts import ReadUpdate
from ssfl.simulator.clients import SimulatedClient
from ssfl.strategies.contract import (
    CODING_ERROR,
    CODING_ERROR_MASK,
    Answer,
    ClientId,
    Position,
    Received,
    Reduced,
    Reducer,
    StepDone,
    Work,
)
from ssfl.strategies.methods.topk_updates import RESIDUAL, num_sent, split, stepped
from ssfl.strategies.registry import check_settings, identity, strategy_for
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2
from strategies.fakes import (
    SMALL,
    FakeMemory,
    FakeSite,
    floats,
    ignore,
    mask_of,
    model,
    rule_of,
    strategy_of,
    vector,
)
from strategies.steps import NoUploads

ALL = Mask.full(4)
X = vector(8, 8, 8, 8, 8, 8)
HALF = 0.5  # of four weights, two are sent


def kept(mask: Mask | None) -> list[int]:
    assert mask is not None
    return np.flatnonzero(mask.bools()).tolist()


def votes(*counts: int) -> npt.NDArray[np.int64]:
    return np.array(counts, dtype=np.int64)


# -- arithmetic


def test_the_largest_changes_are_sent_over_all_layers_and_unmasked_values_always() -> None:
    mask, values, rest = split(X, vector(1, -4, 2, 3, 0.5, 0.25), 2, num_masked=4)
    assert (kept(mask), floats(values)) == ([1, 3], [4, 11, 8.5, 8.25])
    assert floats(rest) == [1, 0, 2, 0, 0, 0]


def test_of_equal_changes_the_first_are_sent() -> None:
    assert kept(split(X, vector(2, -2, 2, 1, 0, 0), 2, 4)[0]) == [0, 1]
    assert kept(split(X, vector(0, 0, 0, -0.0, 0, 0), 1, 4)[0]) == [0], "no change at all"


def test_what_rounding_loses_is_part_of_the_rest() -> None:
    """2^24 + 1 is not a float32: 2^24 is sent, and the change of 1 is kept for later."""
    large = vector(2.0**24, 8, 8, 8, 8, 8)
    mask, values, rest = split(large, vector(1, 0.5, 0, 0, 0, 0), 1, 4)
    assert (kept(mask), floats(values)[0], floats(rest)) == ([0], 2.0**24, [1, 0.5, 0, 0, 0, 0])


def test_the_number_sent_is_exact_and_not_zero() -> None:
    assert [num_sent(share, 100) for share in (0.02, 0.29, 1.0)] == [2, 29, 100]
    assert [num_sent(0.02, size) for size in (4, 99, 100)] == [1, 1, 2]


def test_the_step_is_the_mean_of_the_changes_with_zeros_for_those_not_sent() -> None:
    """Clients of weight 1 and 3; 8 + (1 * 2) / 4, 8 + (1 * 4 + 3 * -4) / 4, 8, 8 + (3 * 1) / 4."""
    sent = [vector(10, 12, 0, 0, 9, 8), vector(0, 4, 0, 9, 8, 12)]
    mean = (sent[0] + 3 * sent[1]) / 4
    after = stepped(X, mean.astype(np.float32), votes(1, 4, 0, 3), 4)
    assert floats(after) == [8.5, 6, 8, 8.75, 8.25, 11]


def test_a_weight_that_nobody_sent_keeps_its_bits_and_one_that_all_sent_takes_the_mean() -> None:
    x, mean = vector(0.1, 1 / 3, 0, 0, 1, 1), vector(0, 0, 0.7, 1 / 7, 0.3, 0.9)
    after = stepped(x, mean, votes(0, 0, 9, 9), 9)
    assert after.tobytes() == np.concatenate([x[:2], mean[2:]]).tobytes()


# -- the client


def answered(
    site: FakeSite, memory: FakeMemory, x: Vector = X, number: int = 0, **settings: Any
) -> Answer:
    site.settings = replace(site.settings, **settings)
    half = rule_of("topk-updates", share=HALF).client()
    return half.train(Received(ALL, x, number), site, memory, ignore)


def test_a_client_trains_every_weight_and_tests_the_dense_model() -> None:
    site = FakeSite([vector(1, -4, 2, 3, 0.5, 0.25)])
    reply = answered(site, FakeMemory(), number=4)
    (call,) = site.calls
    assert (call.mask, call.round_number, floats(call.values)) == (ALL, 4, floats(X))
    assert (kept(reply.bits), floats(reply.trained.values)) == ([1, 3], [4, 11, 8.5, 8.25])
    assert (reply.trained.base.correct, reply.trained.personal.correct) == (1, 10)


def test_a_change_is_added_up_until_it_is_sent() -> None:
    """Weight 2 moves by 2 in each round, and weights 0 and 1 by 3: in round 1 it is the largest."""
    memory = FakeMemory()
    site = FakeSite([vector(3, 3, 2, 0, 0, 0)] * 3)
    sent, held = [], []
    for number in range(3):
        reply = answered(site, memory, number=number)
        memory.items, memory.puts = {**memory.items, **memory.puts}, {}
        sent.append((kept(reply.bits), floats(reply.trained.values)[:2]))
        held.append(floats(memory.vector(RESIDUAL))[:4])
    assert sent == [([0, 1], [11, 11]), ([0, 2], [11, 12]), ([0, 1], [11, 14])]
    assert held == [[0, 0, 2, 0], [0, 3, 0, 0], [0, 0, 2, 0]]


def test_a_void_round_leaves_no_trace() -> None:
    memory, site = FakeMemory(), FakeSite([vector(3, 3, 2, 0, 0, 0)] * 3)
    answered(site, memory)
    memory.items, memory.puts = memory.puts, {}  # the first round counts
    before = floats(memory.vector(RESIDUAL))
    void = answered(site, memory, number=1)
    memory.puts = {}  # what a void round put is dropped
    again = answered(site, memory, number=1)
    assert again.bits == void.bits
    assert floats(again.trained.values) == floats(void.trained.values)
    assert floats(memory.vector(RESIDUAL)) == before == [0, 0, 2, 0, 0, 0]


def test_without_error_feedback_nothing_is_kept() -> None:
    memory = FakeMemory()
    answered(FakeSite([vector(3, 3, 2, 0, 0, 0)]), memory, error_feedback=False)
    assert memory.puts == {}


def test_what_coding_lost_of_the_last_update_is_added_and_taken_from_the_system() -> None:
    lost: dict[str, Vector | Mask] = {
        RESIDUAL: vector(0, 0, 2, 0, 0, 0),
        CODING_ERROR: vector(0.5, -0.25, 1, 0), CODING_ERROR_MASK: mask_of(0, 3),
    }  # fmt: skip
    memory = FakeMemory(lost)
    reply = answered(FakeSite([vector(1, 0, 0, 0, 0, 0)]), memory)
    assert (kept(reply.bits), floats(reply.trained.values)) == ([0, 2], [9.5, 10, 9, 8])
    after = StepMemory(memory.puts)
    assert floats(after.vector(RESIDUAL)) == [0, 0, 0, -0.25, 0, 0]
    assert floats(after.vector(CODING_ERROR)) == [0, 0, 0, 0]


@pytest.mark.parametrize("share", [0.5, 1.0], ids=["masks move", "one mask"])
@pytest.mark.parametrize("value_type", ["bfloat16", "int8", "grid", "float32"])
def test_over_many_rounds_only_what_is_kept_is_missing(value_type: str, share: float) -> None:
    """What was received and what the client keeps add up to all its changes, in every type."""
    settings = RunSettings(
        strategy="topk-updates", strategy_options=f"topk-updates.share={share}",
        value_type=value_type, grid_bits=3,
    )  # fmt: skip
    encoding = {
        "bfloat16": transfer_pb2.ENCODING_BFLOAT16, "int8": transfer_pb2.ENCODING_INT8,
        "grid": transfer_pb2.ENCODING_GRID, "float32": transfer_pb2.ENCODING_REFERENCE,
    }[value_type]  # fmt: skip
    rng, rounds = np.random.default_rng(5), 12
    moves = [rng.normal(0, 0.5, 6).astype(np.float32) for _ in range(rounds)]
    site, client = FakeSite(moves), SimulatedClient(ClientId("c1"), 10, b"", settings)
    half, state = strategy_for(settings).client(), replace(model(ALL, *X), start=X)
    received = np.zeros(6)
    for number in range(rounds):
        memory, base = StepMemory(client.memory), Received(ALL, X, number)
        reply = half.train(base, site, memory, ignore)
        work = pb.TrainTask(
            round_number=number, update_encoding=encoding, base_digest=state.base_digest
        )
        update = client.report_update(pb.Task(train=work), base, reply, memory.puts, SMALL).update
        assert update is not None
        read = ReadUpdate(update.header, state, settings, update.data)
        mask = read.mask()
        values = np.concatenate([block for _, block in read.blocks(mask)])
        received += mask.scatter(values - mask.gather(X))
    missing = StepMemory(client.memory).vector(RESIDUAL)
    assert missing is not None
    if value_type != "float32":
        lost, on = client.memory[CODING_ERROR], client.memory[CODING_ERROR_MASK]
        assert isinstance(on, Mask) and not isinstance(lost, Mask) and np.any(lost)
        missing = missing + on.scatter(lost)
    assert received + missing == pytest.approx(np.sum(moves, axis=0, dtype=np.float64), abs=1e-4)


# -- the coordinator


def finished(reduced: Reduced, **settings: Any) -> ModelState:
    strategy = strategy_of("topk-updates", RunSettings(**settings), share=HALF)
    return strategy.finish(StepDone(Work.TRAIN, 0), model(ALL, *X), reduced, NoUploads())


def test_the_model_stays_dense() -> None:
    reduced = Reduced(vector(2.5, 6, 0, 6.75, 8.25, 11), votes=votes(1, 4, 0, 3), total_weight=4)
    state = finished(reduced)
    assert (state.mask, state.mask_epoch, state.change) == (ALL, 1, None)
    assert floats(state.values) == [8.5, 6, 8, 8.75, 8.25, 11]


def test_in_a_lossy_run_the_change_is_coded_and_is_zero_where_nobody_sent() -> None:
    reduced = Reduced(vector(2.6, 6, 0, 6.75, 8.25, 11), votes=votes(1, 4, 0, 3), total_weight=4)
    state = finished(reduced, value_type="grid", grid_bits=1, rounding="nearest")
    assert state.change is not None
    assert floats(state.values) == [8.5, 6, 8, 9, 8, 11]


def test_an_update_has_bits_of_at_most_k_weights() -> None:
    parts = rule_of("topk-updates", share=HALF).parts("", SMALL)
    assert (parts.values, parts.bits, parts.bits_required, parts.max_kept) == (True, True, True, 2)
    assert parts.vectors == ()


def test_the_rounds_are_fedavgs() -> None:
    strategy = strategy_of("topk-updates", RunSettings(rounds=1), share=HALF)
    clients = [ClientId("a"), ClientId("b")]
    plan = strategy.plan(Position(0, 1, 0), clients)
    assert plan is not None
    assert (plan.cohort, plan.reducer) == (tuple(clients), Reducer.WEIGHTED_SUM)
    assert strategy.is_dense and not strategy.moves_mask


def test_a_round_changes_at_most_what_all_clients_send() -> None:
    rule = rule_of("topk-updates", share=0.25)
    assert [rule.max_changed(SMALL, clients) for clients in (1, 3, 9)] == [1, 3, 4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_update_norm": 1.0}, "--max-update-norm bounds the change"),
        ({"criterion": "random"}, "topk-updates keeps everything: leave out --criterion"),
        ({"strategy_options": "topk-updates.share=0"}, "--topk-updates.share must be above 0"),
        ({"strategy_options": "topk-updates.share=1.5"}, "--topk-updates.share must be at most 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        check_settings(replace(RunSettings(strategy="topk-updates"), **changes))


def test_both_ends_compare_the_contract() -> None:
    assert identity(RunSettings(strategy="topk-updates")) == "topk-updates contract 1"
