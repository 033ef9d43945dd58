"""FedFOMO: candidates, first-order weights and the mix."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ssfl.learning.errors import ModelError
from ssfl.method.evaluation import Evaluation
from ssfl.method.mask import Mask
from ssfl.method.model_state import Vector
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.strategies.contract import ClientId, PeerModel
from ssfl.strategies.gossip import MODEL, NOT_TESTED
from ssfl.strategies.methods.fedfomo import (
    AFFINITY,
    REFERENCE,
    FedFomo,
    FedFomoClient,
    FedFomoOptions,
    candidates,
    distance,
    first_order_weight,
    mixed,
)
from strategies.fakes import rule_of
from strategies.scripted_site import (
    DictMemory,
    ScriptedSite,
    ignore,
    manifest_of,
    mask_of,
    received,
    vector,
)

SETTINGS = RunSettings(strategy="fedfomo", local_epochs=1)
FULL = mask_of("1")


def stream(number: int = 0) -> Stream:
    return Stream(7, "candidates", number, "c1")


def test_the_norm_is_euclidean_and_those_of_the_released_code_are_options() -> None:
    far, here = vector(4, -1, 5), vector(1, 3, 5)
    assert [distance(far, here, norm) for norm in ("l2", "l1", "squared")] == [5, 7, 25]
    assert FedFomoOptions().norm == "l2"


def test_a_weight_is_the_gain_in_loss_for_each_unit_of_distance() -> None:
    assert first_order_weight(3.0, 1.0, 4.0) == 0.5
    assert first_order_weight(1.0, 3.0, 4.0) == -0.5, "a worse model"
    assert first_order_weight(3.0, 1.0, 0.0) == 0.0, "the same model"
    assert first_order_weight(3.0, math.nan, 4.0) == 0.0, "a model that diverged"
    assert first_order_weight(math.inf, 1.0, 4.0) == 0.0


def test_the_mix_moves_towards_models_with_positive_weights_only() -> None:
    """Weights 3 and 1 of 4: 0.75 * (4, 0) + 0.25 * (0, 8) from (2, 2)."""
    models = [vector(6, 2), vector(2, 10), vector(1000, 1000)]
    assert mixed(vector(2, 2), models, [3.0, 1.0, -5.0]).tolist() == [5, 4]
    assert mixed(vector(2, 2), models, [0.0, 2.0, 0.0]).tolist() == [2, 10]


def test_the_reference_stays_if_no_weight_is_positive() -> None:
    reference = vector(2, 2)
    assert mixed(reference, [vector(6, 2), vector(2, 2)], [-1.0, 0.0]) is reference


def test_without_exploration_the_largest_affinities_are_candidates() -> None:
    affinities = [0.1, -2.0, 5.0, 0.0, 3.0, 0.2]
    for number in range(20):
        assert candidates(affinities, 3, 0.0, stream(number)) == (2, 4, 5)
    assert candidates(affinities, 9, 0.0, stream()) == (0, 1, 2, 3, 4, 5)
    assert candidates([], 3, 0.5, stream()) == ()


def test_equal_affinities_and_exploration_choose_at_random() -> None:
    ties, explored = Counter[int](), Counter[int]()
    for number in range(200):
        ties.update(candidates([0.0] * 5, 2, 0.0, stream(number)))
        explored.update(candidates([9.0, 9.0, 0.0, 0.0, 0.0], 2, 1.0, stream(number)))
    for found in (ties, explored):
        assert found.total() == 400 and min(found[place] for place in range(5)) > 50
    rare = Counter[int]()
    for number in range(400):
        rare.update(candidates([9.0, 9.0, 0.0, 0.0, 0.0], 1, 0.3, stream(number)))
    assert 40 < rare[2] + rare[3] + rare[4] < 110, "0.3 * 3 / 5 of 400 are 72"


def test_candidates_follow_affinities_in_memory_and_epsilon_falls_with_the_rounds() -> None:
    rule = rule_of("fedfomo", neighbours=1, epsilon=0.3, epsilon_decay=0.1)
    others = [ClientId(name) for name in ("c2", "c3", "c4", "c5")]
    memory = DictMemory({AFFINITY + "c4": vector(2), AFFINITY + "c2": vector(-1)})
    late = {rule.neighbours(number, ClientId("c1"), others, memory) for number in range(3, 60)}
    assert late == {("c4",)}, "epsilon is 0 from round 3 on"
    first = Counter(
        rule.neighbours(0, ClientId(f"x{number}"), others, memory) for number in range(100)
    )
    assert len(first) == 4
    again = rule.neighbours(0, ClientId("x1"), others, memory)
    assert again == rule.neighbours(0, ClientId("x1"), others, memory)


def losses(_mask: Mask, values: Vector, split: str) -> Evaluation:
    """The loss of 4 validation samples is 4 * |w - 10|."""
    assert split == "validation"
    return Evaluation(2, 4, 4 * abs(float(values[0]) - 10))


def site(**changes: Any) -> ScriptedSite:
    return ScriptedSite(manifest_of(1, biases=0), SETTINGS, **{"accuracy": losses, **changes})


def peer(value: float) -> PeerModel:
    return PeerModel(FULL, vector(value))


def test_a_round_mixes_by_the_validation_loss_then_trains() -> None:
    """Reference 2, loss 8. Own 4 (loss 6), c2 12 (loss 2): both gain 1, or 0.6, for each unit.

    c3 at -2 has loss 12 and weight -1, c4 is the reference itself. So the mix is
    2 + 1 / 1.6 * 2 + 0.6 / 1.6 * 10 = 7.
    """
    memory = DictMemory({
        MODEL: vector(4), REFERENCE: vector(2), AFFINITY + "c3": vector(0.25),
    })  # fmt: skip
    peers = {ClientId("c2"): peer(12), ClientId("c3"): peer(-2), ClientId("c4"): peer(2)}
    task = replace(received("1", vector(70), 5), peers=peers)
    place = site(step=0.5)
    reply = FedFomoClient(FedFomoOptions()).train(task, place, memory, ignore)
    assert place.calls[0].values == [7]
    assert reply.trained.values.tolist() == [7.5] and reply.trained.base == NOT_TESTED
    kept = {name: memory.vector(name) for name in memory.kept}
    found = {name: value.tolist()[0] for name, value in kept.items() if value is not None}
    assert found == pytest.approx(
        {MODEL: 7.5, REFERENCE: 7, AFFINITY + "c2": 0.6, AFFINITY + "c3": -0.75, AFFINITY + "c4": 0}
    )


def test_the_last_training_is_discarded_if_no_model_is_better_than_the_reference() -> None:
    memory = DictMemory({MODEL: vector(1), REFERENCE: vector(9)})
    task = replace(received("1", vector(70), 5), peers={ClientId("c2"): peer(20)})
    place = site()
    FedFomoClient(FedFomoOptions()).train(task, place, memory, ignore)
    assert place.calls[0].values == [9]


def test_the_first_round_starts_from_the_initial_weights() -> None:
    place, memory = site(), DictMemory()
    place.initial = vector(3)
    half = FedFomoClient(FedFomoOptions())
    half.train(received("1", vector(70)), place, memory, ignore)
    assert place.calls[0].values == [3]
    own = half.personal(received("1", vector(70)), place, memory)
    assert own is not None and own.tolist() == [3]


def test_a_site_without_validation_samples_is_refused_in_its_first_round() -> None:
    empty = site(accuracy=lambda *_: Evaluation(None, 0, 0.0))
    with pytest.raises(ModelError, match=r"--validation 0.2, or --fedfomo.split train"):
        FedFomoClient(FedFomoOptions()).train(
            received("1", vector(70), 0), empty, DictMemory(), ignore
        )


def test_fedfomo_is_dense() -> None:
    assert FedFomo.dense and not FedFomo.moves_mask
