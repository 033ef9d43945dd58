"""Plans with a late or refreshed mask, against numbers by hand and a simulated run."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.load_task import load_task
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.simulator.federation import SimulatedFederation
from ssfl.tools import main as tools
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.masks import planned_masks
from ssfl.tools.plan.result import RunPlan
from ssfl.tools.plan.sizes import Size
from ssfl.tools.plan.whole_run import plan_run

MANIFEST = Manifest(
    (
        TensorSpec("conv", (100, 50, 10, 10), Role.MASKED, Init("normal", 0.1)),
        TensorSpec("bias", (1000,), Role.DENSE, Init("zeros")),
    )
)
RUN = RunSettings(sparsity="0.9", rounds=10, clients=6, evaluate_every=0, scores="exact")
VALUES = 4 * (50_000 + 1000)
FULL = 4 * 501_000
SCORES = 4 * 500_000


def plan(link: Link | None = None, **changes: Any) -> RunPlan:
    return plan_run(MANIFEST, replace(RUN, **changes), 8, reference_coding=False, link=link)


def masks(**changes: Any) -> list[tuple[int, int, int]]:
    planned = planned_masks(MANIFEST, replace(RUN, **changes))
    return [(mask.first, mask.stop, mask.num_kept) for mask in planned]


def payload(planned: RunPlan, phase: str, direction: str) -> Size:
    return planned.rows[phase, direction].payload


def test_planned_masks_have_the_rounds_of_a_run() -> None:
    assert masks() == [(0, 10, 50_000)]
    assert masks(strategy="fedavg") == [(0, 10, 500_000)]
    assert masks(warmup_rounds=3) == [(0, 3, 500_000), (3, 10, 50_000)]
    assert masks(refresh_rounds="4,6,10") == [(0, 4, 50_000), (4, 6, 50_000), (6, 10, 50_000)]
    assert masks(refresh_every=4) == [(0, 4, 50_000), (4, 8, 50_000), (8, 10, 50_000)]
    assert masks(sparsity_schedule="0:0.98,5:0.95") == [(0, 5, 10_000), (5, 10, 25_000)]
    assert masks(warmup_rounds=4, refresh_every=4) == [
        (0, 4, 500_000), (4, 8, 50_000), (8, 10, 50_000),
    ]  # fmt: skip
    assert masks(criterion="client-random") == [(0, 10, 500_000)]


def test_a_warm_up_is_dense_and_then_all_clients_get_the_base_to_score() -> None:
    planned = plan(warmup_rounds=2)
    assert payload(planned, "values", "up") == Size.fixed(6 * (2 * FULL + 8 * VALUES))
    # Bases 1 and 4 to 9 are sent for training, base 2 for scoring; the last is tested.
    assert payload(planned, "values", "down") == Size.fixed(6 * (2 * FULL + 7 * VALUES))
    assert payload(planned, "evaluation", "down") == Size.fixed(6 * VALUES)
    assert payload(planned, "scores", "up") == Size.fixed(6 * SCORES)


def test_a_refresh_adds_scores_and_a_mask_but_no_bases() -> None:
    once, refreshed = plan(), plan(refresh_rounds="5")
    assert payload(refreshed, "scores", "up") == Size.fixed(2 * 6 * SCORES)
    for phase, direction in (("values", "up"), ("values", "down"), ("evaluation", "down")):
        assert payload(refreshed, phase, direction) == payload(once, phase, direction)
    first, both = payload(once, "mask", "down"), payload(refreshed, "mask", "down")
    assert (both.low, both.high, both.most) == (first.low, 2 * first.high, 2 * first.most)


def test_a_refresh_with_sampled_clients_sends_the_base_to_all() -> None:
    once, refreshed = plan(clients_per_round=2), plan(clients_per_round=2, refresh_rounds="5")
    more = payload(refreshed, "values", "down").high - payload(once, "values", "down").high
    assert more == (6 - 2) * VALUES
    tested: dict[str, Any] = {"clients_per_round": 2, "evaluate_every": 5}
    assert payload(plan(**tested, refresh_rounds="5"), "values", "down") == payload(
        plan(**tested), "values", "down"
    ), "clients that tested the base hold it"


def test_rows_of_one_client_are_those_of_the_last_mask() -> None:
    planned = plan(sparsity_schedule="0:0.98,5:0.95")
    assert planned.num_kept == 25_000
    assert planned.update.payload == Size.fixed(4 * 26_000)
    assert payload(planned, "values", "up") == Size.fixed(6 * 5 * (4 * 11_000 + 4 * 26_000))


def test_a_fraction_of_clients_equals_their_number() -> None:
    fraction, number = plan(client_fraction=0.5), plan(clients_per_round=3)
    assert fraction.cohort == number.cohort == 3
    for phase, direction in number.rows:
        assert payload(fraction, phase, direction) == payload(number, phase, direction)


def test_scores_pay_off_later_after_a_warm_up_or_a_refresh() -> None:
    dense = plan(strategy="fedavg")
    assert plan().break_even(dense) == 1
    assert plan(warmup_rounds=4).break_even(dense) == 5
    # At half of the weights a round saves 2 MB. Scores cost 2 MB, and the mask comes on top.
    assert plan(sparsity="0.5").break_even(dense) == 2
    assert plan(sparsity="0.5", refresh_rounds="1").break_even(dense) == 3


def test_a_refresh_adds_the_seconds_of_scores_and_mask() -> None:
    link = Link(20e6, 20e6, 0.05)
    once, twice = plan(link).times, plan(link, refresh_rounds="5").times
    assert once is not None and twice is not None
    more = twice.run.high - once.run.high
    assert more == pytest.approx(once.scoring.high + once.mask.high)
    warm = plan(link, warmup_rounds=5).times
    assert warm is not None and warm.run.high > once.run.high
    assert warm.round == once.round, "of the last mask"


def test_notes_and_help_state_which_masks_are_included(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ["plan", "--model", "cnn", "--input", "1x8x8"]
    flags = ["--warmup-rounds", "2", "--refresh-every", "10", "--rounds", "30"]
    assert tools.main([*model, *flags]) == ExitCode.DONE
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 dense rounds come first. A mask is agreed before round 2, 10, 20" in shown
    assert "client, each mask" in shown and "on request, for new labels" in shown
    assert tools.main([*model, "--sparsity-schedule", "0:0.98,9:0.9", "--json"]) == ExitCode.DONE
    (sparse,) = json.loads(capsys.readouterr().out)["sparse"]
    assert [(mask["first"], mask["num_kept"]) for mask in sparse["masks"]] == [(0, 448), (9, 2241)]
    assert tools.main([*model, "--warmup-rounds", "30"]) == ExitCode.USAGE
    assert "leaves no sparse round" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        tools.main(["plan", "--help"])
    assert "It leaves out what depends on data or people: masks refreshed on request" in " ".join(
        capsys.readouterr().out.split()
    )


SIMULATED = RunSettings(
    model="mlp", width=8, sparsity="0.8", rounds=7, clients=3, scores="exact", batch_size=8,
    local_epochs=1, evaluate_every=3, scoring_batches=1,
)  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "warm": {"warmup_rounds": 2},
    "refreshed": {"refresh_rounds": "2,3,5"},
    "growing": {"sparsity_schedule": "0:0.9,4:0.5", "refresh_mode": "grow"},
    "reset": {"refresh_every": 2, "deactivated": "reset", "warmup_rounds": 1},
    "own models": {"personalize_epochs": 1, "evaluate_last": 3},
    "sampled": {
        "clients_per_round": 2,
        "refresh_rounds": "2,5",
        "warmup_rounds": 1,
        "over_selection": 1.0,
    },
}


@pytest.mark.parametrize("reference_coding", [False, True], ids=["plain", "coded"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_simulated_run_sends_what_was_planned(name: str, reference_coding: bool) -> None:
    settings = replace(SIMULATED, **VARIANTS[name])
    settings.validate()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 1, 6, 6)).astype(np.float32), np.arange(24) % 3
    shards = {f"shard_{number:02}": Shard(x, y, x[:6], y[:6], 3) for number in range(3)}
    federation = SimulatedFederation(
        load_task("image"), shards, settings, reference_coding=reference_coding
    )
    while federation.next_work is not None:
        federation.run_step()
    sent = Counter[tuple[str, str]]()
    for row in federation.document()["ledger"]:
        sent[row["phase"], row["direction"]] += row["payload_bytes"]
    planned = plan_run(federation.model.manifest, settings, 8, reference_coding=reference_coding)
    for (phase, direction), transfer in planned.rows.items():
        size, found = transfer.payload, sent.pop((phase, direction), 0)
        if phase == "mask" or (reference_coding and phase in ("values", "evaluation")):
            assert size.low <= found <= size.most
        else:
            assert size == Size.fixed(found), (phase, direction)
    assert not any(sent.values())
