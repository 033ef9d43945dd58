"""Payload bytes of every strategy: by the published formulas without coding, at most that with it.

P values of the model, W of them masked, D = P - W; a mask keeps k. As float32:

    DENSE 4P    VAL 4(k + D)    MASK ceil(W / 8)    BIT = VAL + MASK

Values that follow from the seed are not sent, nor is a mask that the client holds or that keeps
everything.
"""

from math import ceil

import numpy as np
import pytest

from simulator.counted_run import (
    CLIENTS,
    METHODS,
    ROUNDS,
    CountedRun,
    Transfer,
    counted_run,
    settings_of,
)
from ssfl.method.mask import Mask
from ssfl.server.accounting.ledger import Direction
from ssfl.strategies.contract import ClientId, Work
from ssfl.strategies.registry import rule_for, strategy_names
from ssfl.study.outcome import outcome_of

DENSE = ("fedavg", "ditto", "fedprox", "fedopt", "robust", "scaffold", "sub-fedavg", "fedpm")
# Rounds in which clients send masks of their own; None: when they changed.
SENDS_MASKS = {
    "feddst": (1, 3), "flash-jmwst": (0, 2), "sparsyfed": range(ROUNDS),
    "topk-weights": range(ROUNDS), "topk-updates": range(ROUNDS), "fedpm": range(ROUNDS),
    "sub-fedavg": None,
}  # fmt: skip


class Formulas:
    """The bytes of each transfer of a run, by the formulas."""

    def __init__(self, strategy: str, num_masked: int, num_unmasked: int) -> None:
        self.strategy = strategy
        self.num_masked, self.num_unmasked = num_masked, num_unmasked
        self.mask_bytes = ceil(num_masked / 8)
        self.held: dict[ClientId, Mask] = {}

    def values(self, kept: int) -> int:
        """Return VAL for a mask that keeps `kept` weights."""
        return 4 * (kept + self.num_unmasked)

    def expected(self, transfer: Transfer) -> dict[str, int]:
        """Return the bytes of a transfer by phase."""
        sizes = self.up(transfer) if transfer.direction is Direction.UP else self.down(transfer)
        if transfer.direction is Direction.DOWN or self.strategy == "sub-fedavg":
            self.held[transfer.client] = transfer.mask
        return {phase: size for phase, size in sizes.items() if size}

    def up(self, transfer: Transfer) -> dict[str, int]:
        if transfer.round_number < 0:  # the warm-up of FLASH
            return {"mask": self.mask_bytes}
        rounds = SENDS_MASKS.get(self.strategy, ())
        assert transfer.own_mask == (
            transfer.mask != self.held[transfer.client]
            if rounds is None
            else transfer.round_number in rounds
        )
        values = self.values(transfer.mask.num_kept)
        if self.strategy == "scaffold":
            values *= 2
        if self.strategy == "fedpm":
            values = 0
        return {"values": values, "round_masks": self.mask_bytes * transfer.own_mask}

    def down(self, transfer: Transfer) -> dict[str, int]:
        """Return the bytes of a task: values that training changed, and a mask that is new."""
        work, number, mask = transfer.work, transfer.round_number, transfer.mask
        if work is Work.SCORE or work is Work.PERSONALIZE or work is None:
            return {}  # the initial weights; the model of the last evaluation
        held = self.held.get(transfer.client)
        bits = self.mask_bytes * (mask != held and mask.num_kept < mask.size)
        values = self.values(mask.num_kept)
        if work is Work.EVALUATE:
            return {"evaluation": values + bits}
        starts_elsewhere = self.strategy in ("sparsyfed", "fedpm")  # not with the initial weights
        vectors = values if self.strategy == "scaffold" else 0
        if number <= 0:  # a warm-up, too
            return {"mask": bits, "values": values * starts_elsewhere + vectors}
        return {"round_masks": bits, "values": values + vectors}


def test_the_methods_are_all_strategies_but_those_of_test_relay() -> None:
    assert set(METHODS) == {name for name in strategy_names() if not rule_for(name).is_gossip}


@pytest.mark.parametrize("strategy", METHODS)
def test_without_coding_payload_bytes_are_those_of_the_formulas(strategy: str) -> None:
    run = counted_run(strategy, coding=False)
    manifest = run.model.manifest
    formulas = Formulas(strategy, manifest.num_masked, manifest.num_unmasked)
    totals: dict[tuple[str, str], int] = {}
    for transfer in run.transfers:
        sizes = formulas.expected(transfer)
        assert transfer.sizes == sizes, transfer
        for phase, size in sizes.items():
            key = phase, transfer.direction.value
            totals[key] = totals.get(key, 0) + size
    if strategy == "ssfl":
        totals["scores", "up"] = 4 * manifest.num_masked * CLIENTS
    counted: dict[tuple[str, str], int] = {}
    for row in run.document()["ledger"]:
        key = row["phase"], row["direction"]
        counted[key] = counted.get(key, 0) + row["payload_bytes"]
    assert counted == totals


@pytest.mark.parametrize("strategy", METHODS)
def test_masks_keep_what_the_sparsity_says(strategy: str) -> None:
    run = counted_run(strategy, coding=False)
    manifest = run.model.manifest
    sent = [one for one in run.transfers if one.work is Work.TRAIN and one.round_number >= 0]
    if strategy in ("sub-fedavg", "fedpm"):
        return  # how many weights are kept is an outcome
    up = {one.mask.num_kept for one in sent if one.direction is Direction.UP}
    is_dense = strategy in DENSE
    assert up == {manifest.num_masked if is_dense else manifest.num_masked // 5}


@pytest.mark.parametrize("strategy", METHODS)
def test_with_coding_no_transfer_is_larger_and_the_model_is_the_same(strategy: str) -> None:
    plain, coded = (counted_run(strategy, coding=coding) for coding in (False, True))
    assert coded.document()["model_digest"] == plain.document()["model_digest"]
    for one, other in zip(plain.transfers, coded.transfers, strict=True):
        assert set(other.sizes) == set(one.sizes)
        for phase, size in other.sizes.items():
            assert size <= one.sizes[phase], (one, other)


@pytest.mark.parametrize("strategy", METHODS)
def test_one_off_and_evaluation_bytes_are_apart_from_those_of_the_rounds(strategy: str) -> None:
    run = counted_run(strategy, coding=False)
    manifest, found = run.model.manifest, outcome_of(run.document())
    mask, before = ceil(manifest.num_masked / 8), 0
    if strategy == "ssfl":
        before = CLIENTS * (4 * manifest.num_masked + mask)
    elif strategy == "feddst":
        before = CLIENTS * mask
    elif strategy.startswith("flash"):  # two clients of the warm-up get and send masks
        before = (CLIENTS + 2 + 2) * mask
    assert found["bytes_one_off"] == before
    assert found["bytes"] == found["bytes_up"] + found["bytes_down"] + found["bytes_one_off"]
    last = [transfer for transfer in run.transfers if transfer.work is Work.EVALUATE]
    assert found["bytes_tests"] == sum(sum(one.sizes.values()) for one in last) > 0
    masks = sum(one.sizes.get("round_masks", 0) for one in run.transfers)
    assert found["bytes_masks_up"] + found["bytes_masks_down"] == masks
    assert (masks > 0) == (strategy in SENDS_MASKS)


@pytest.mark.parametrize("coding", [False, True], ids=["plain", "coded"])
def test_in_a_lossy_run_masks_are_coded_on_every_link(coding: bool) -> None:
    few = {"strategy_options": "topk-updates.share=0.02", "width": 40}
    run = CountedRun(settings_of("topk-updates", value_type="int8", **few), coding=coding)
    sent = [one.sizes["round_masks"] for one in run.transfers if one.direction is Direction.UP]
    assert len(sent) == CLIENTS * ROUNDS
    assert max(sent) < run.model.manifest.num_masked / 8 / 2


def test_a_warm_up_comes_before_the_first_round_and_is_none_of_the_rounds() -> None:
    run = counted_run("flash-spdst", coding=False)
    assert run.transfers[0].round_number == -1
    document = run.document()
    assert [entry["round"] for entry in document["rounds"]] == list(range(ROUNDS))
    assert [entry["reason"] for entry in document["masks"]] == ["warm-up"]
    assert document["masks"][0]["digest"] == document["mask"]["digest"]


@pytest.mark.parametrize("strategy", METHODS)
def test_the_history_has_density_and_change_of_masks_that_move(strategy: str) -> None:
    run = counted_run(strategy, coding=False)
    rounds = run.document()["rounds"]
    if not (run._strategy.moves_mask or strategy in SENDS_MASKS):
        assert not any("mask" in entry for entry in rounds)
        return
    before: Mask | None = None  # the mask that the clients of the round before received
    for number, entry in enumerate(rounds):
        trained = [
            one for one in run.transfers if one.work is Work.TRAIN and one.round_number == number
        ]
        received = {one.client: one.mask for one in trained if one.direction is Direction.DOWN}
        sent = {one.client: one.mask for one in trained if one.direction is Direction.UP}
        size = run.model.manifest.num_masked
        changed = [
            np.count_nonzero(mask.bools() != received[client].bools()) / size
            for client, mask in sent.items()
        ]
        kept = [mask.num_kept / size for mask in sent.values()]
        assert entry["mask"]["client_density"] == pytest.approx(np.mean(kept))
        assert entry["mask"]["client_changed"] == pytest.approx(np.mean(changed))
        if number and strategy != "sub-fedavg":  # the mask of a round is sent in the next
            (mask,) = set(received.values())
            assert rounds[number - 1]["mask"]["density"] == mask.num_kept / size
            assert (rounds[number - 1]["mask"]["changed"] > 0) == (mask != before)
        before = next(iter(received.values()))
