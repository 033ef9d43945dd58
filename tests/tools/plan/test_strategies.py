"""The plan of every strategy contains what its simulated run sends."""

from collections import Counter
from typing import Any

import pytest

from simulator.counted_run import METHODS, CountedRun, counted_run, settings_of
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import Direction
from ssfl.strategies.contract import Work
from ssfl.tools.plan.result import RunPlan
from ssfl.tools.plan.whole_run import plan_run

SAMPLED: dict[str, Any] = {
    "clients_per_round": 2, "evaluate_every": 2, "rounds": 5, "over_selection": 1.0,
}  # fmt: skip
# Transfers whose sizes are not known before a run, even without coding.
OPEN = {
    "feddst": {"round_masks down", "evaluation down"},
    "flash-jmwst": {"round_masks down", "evaluation down"},
    "sub-fedavg": {"values up", "values down", "round_masks up", "round_masks down"},
    "sparsyfed": {"values down", "round_masks down", "evaluation down"},
    "topk-weights": {"values down", "round_masks down", "evaluation down"},
    "ssfl": {"mask down"},
}


def sent_by(run: CountedRun) -> Counter[tuple[str, str]]:
    sent = Counter[tuple[str, str]]()
    for row in run.document()["ledger"]:
        sent[row["phase"], row["direction"]] += row["payload_bytes"]
    return sent


def planned(run: CountedRun, settings: RunSettings, *, coding: bool) -> RunPlan:
    return plan_run(run.model.manifest, settings, 8, reference_coding=coding)


@pytest.mark.parametrize("coding", [False, True], ids=["plain", "coded"])
@pytest.mark.parametrize("strategy", METHODS)
def test_a_simulated_run_sends_what_was_planned(strategy: str, coding: bool) -> None:
    run = counted_run(strategy, coding=coding)
    plan, sent = planned(run, settings_of(strategy), coding=coding), sent_by(run)
    is_open = set()
    for (phase, direction), transfer in plan.rows.items():
        size, found = transfer.payload, sent.pop((phase, direction), 0)
        assert size.low <= found <= size.most, (phase, direction, size, found)
        assert size.high <= size.most <= transfer.message.most
        if size.low < size.most:
            is_open.add(f"{phase} {direction}")
    assert not sent
    if not coding:
        assert is_open == OPEN.get(strategy, set())


@pytest.mark.parametrize("strategy", METHODS)
def test_a_run_with_sampled_clients_and_tests_sends_what_was_planned(strategy: str) -> None:
    settings = settings_of(strategy, **SAMPLED)
    run = CountedRun(settings, coding=False)
    plan, sent = planned(run, settings, coding=False), sent_by(run)
    for (phase, direction), transfer in plan.rows.items():
        size, found = transfer.payload, sent.pop((phase, direction), 0)
        assert size.low <= found <= size.most, (phase, direction, size, found)
    assert not sent


@pytest.mark.parametrize("more", [{}, SAMPLED], ids=["all clients", "sampled"])
@pytest.mark.parametrize("coding", [False, True], ids=["plain", "coded"])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("feddst", "rounding=floor"),
        ("sub-fedavg", "last_step=full,ties=keep"),
        ("flash-spdst", "growth=released,reinitialize=true"),
        ("flash-jmwst", "growth=released"),
        ("flash-jmwst", "rescale=down,densities=union,reinitialize=true"),
    ],
)
def test_a_run_as_in_released_code_sends_what_was_planned(
    strategy: str, options: str, coding: bool, more: dict[str, Any]
) -> None:
    given = settings_of(strategy).strategy_options.split(",")
    given += [f"{strategy}.{option}" for option in options.split(",")]
    settings = settings_of(strategy, strategy_options=",".join(given), **more)
    run = CountedRun(settings, coding=coding)
    plan, sent = planned(run, settings, coding=coding), sent_by(run)
    for (phase, direction), transfer in plan.rows.items():
        size, found = transfer.payload, sent.pop((phase, direction), 0)
        assert size.low <= found <= size.most, (phase, direction, size, found)
    assert not sent


@pytest.mark.parametrize("averaging", ["holders", "zeros"])
@pytest.mark.parametrize("coding", [False, True], ids=["plain", "coded"])
@pytest.mark.parametrize("more", [{}, SAMPLED], ids=["all clients", "sampled"])
def test_a_run_with_a_mask_for_every_client_sends_what_was_planned(
    averaging: str, coding: bool, more: dict[str, Any]
) -> None:
    settings = settings_of("ssfl", criterion="client-random", averaging=averaging, **more)
    run = CountedRun(settings, coding=coding)
    plan, sent = planned(run, settings, coding=coding), sent_by(run)
    for (phase, direction), transfer in plan.rows.items():
        size, found = transfer.payload, sent.pop((phase, direction), 0)
        assert size.low <= found <= size.most, (phase, direction, size, found)
        assert coding or size.low == size.most, (phase, direction, size)
    assert not sent


@pytest.mark.parametrize("coding", [False, True], ids=["plain", "coded"])
@pytest.mark.parametrize("value_type", ["float32", "int8", "bfloat16", "grid"])
def test_a_download_that_changes_few_weights_is_planned_small(
    value_type: str, coding: bool
) -> None:
    few = {"strategy_options": "topk-updates.share=0.02", "width": 40}
    settings = settings_of("topk-updates", value_type=value_type, **few)
    run = CountedRun(settings, coding=coding)
    plan, sent = planned(run, settings, coding=coding), sent_by(run)
    for (phase, direction), transfer in plan.rows.items():
        size, found = transfer.payload, sent.pop((phase, direction), 0)
        assert size.low <= found <= size.most, (phase, direction, size, found)
    assert not sent
    base, values = plan.base.payload, 4 * run.model.manifest.size
    if value_type == "float32" and not coding:
        assert base.low == base.high == values
    else:
        down = [one for one in run.transfers if one.work is Work.TRAIN and one.round_number > 0]
        sizes = [one.sizes["values"] for one in down if one.direction is Direction.DOWN]
        assert base.low <= min(sizes) and max(sizes) <= base.high < values / 2


@pytest.mark.parametrize("strategy", ["ssfl", "fedavg", "feddst", "topk-weights"])
def test_a_run_that_codes_values_sends_what_was_planned(strategy: str) -> None:
    lossy = {"value_type": "int8", "downloads": "values"}
    settings = settings_of(strategy, **SAMPLED, **lossy)
    run = CountedRun(settings, coding=True)
    plan, sent = planned(run, settings, coding=True), sent_by(run)
    for (phase, direction), transfer in plan.rows.items():
        size, found = transfer.payload, sent.pop((phase, direction), 0)
        assert size.low <= found <= size.most, (phase, direction, size, found)
    assert not sent
    changes = planned(run, settings_of(strategy, **SAMPLED, value_type="int8"), coding=True)
    assert plan.base.payload.high < changes.base.payload.high


def test_a_union_of_masks_is_at_most_what_all_clients_of_a_round_keep() -> None:
    run = counted_run("topk-weights", coding=False)
    manifest = run.model.manifest
    kept = manifest.num_masked // 5
    base = planned(run, settings_of("topk-weights"), coding=False).base.payload
    least, most = (4 * (number + manifest.num_unmasked) for number in (kept, 3 * kept))
    assert (base.low, base.high) == (least, most + (manifest.num_masked + 7) // 8)
    older = settings_of("topk-weights", strategy_options="topk-weights.averaging=keep-old")
    assert planned(run, older, coding=False).base.payload.high > base.high
