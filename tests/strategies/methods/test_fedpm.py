"""FedPM: frozen weights, votes that become probabilities, and a client that sends one mask."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.client.local_work import Site
from ssfl.codec import masks
from ssfl.method.errors import SettingsError
from ssfl.method.initialize import normal
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.strategies.contract import (
    ClientId,
    Position,
    Received,
    Reduced,
    StepDone,
    UploadParts,
    Work,
)
from ssfl.strategies.mask_source import AllWeights
from ssfl.strategies.methods.fedpm import (
    MOMENTS,
    FedPm,
    FedPmOptions,
    first_levels,
    frozen_weights,
    probabilities,
    random_bytes,
)
from ssfl.strategies.registry import strategy_for
from ssfl.strategies.strategy import Strategy
from strategies.scripted_site import DictMemory, ignore, vector
from strategies.small_site import SMALL, small_site
from strategies.steps import NoUploads

# A layer of fan-in 4, one of fan-in 1, and a bias.
THREE = Manifest(
    (
        TensorSpec("v", (2, 4), Role.MASKED, Init("zeros")),
        TensorSpec("b", (1,), Role.DENSE, Init("zeros")),
        TensorSpec("w", (2, 1), Role.MASKED, Init("zeros")),
    )
)
START = np.arange(11, dtype=np.float32)


def fedpm(settings: RunSettings | None = None, **options: Any) -> Strategy:
    run = replace(settings or RunSettings(), strategy="fedpm")
    return Strategy(run, AllWeights(run), FedPm(run, FedPmOptions(**options)))


def voted(
    strategy: Strategy, state: ModelState, number: int, votes: list[int], total: int
) -> ModelState:
    reduced = Reduced(
        np.empty(0, dtype=np.float32), votes=np.array(votes, dtype=np.int64), total_weight=total
    )
    return strategy.finish(StepDone(Work.TRAIN, number), state, reduced, NoUploads())


def of(state: ModelState) -> npt.NDArray[np.float32]:
    """Return the probabilities of a state of THREE."""
    assert state.values is not None
    return state.values[:10]


def test_frozen_weights_have_the_constant_of_their_fan_in_and_random_signs() -> None:
    weights = frozen_weights(THREE, 5, 3.0)
    assert np.abs(weights).tolist() == [1.5] * 8 + [3.0] * 2
    big = Manifest((TensorSpec("v", (100, 100), Role.MASKED, Init("zeros")),))
    signs = np.sign(frozen_weights(big, 0, 1.0))
    assert abs(signs.mean()) < 0.03
    assert frozen_weights(big, 0, 1.0).tobytes() == frozen_weights(big, 0, 1.0).tobytes()
    assert frozen_weights(big, 0, 1.0).tobytes() != frozen_weights(big, 1, 1.0).tobytes()


def test_bytes_of_a_stream_are_its_words_from_the_lowest_byte() -> None:
    (word,) = Stream(0, "x").words(1).tolist()
    assert random_bytes(Stream(0, "x"), 3).tolist() == [
        word & 255,
        word >> 8 & 255,
        word >> 16 & 255,
    ]
    assert random_bytes(Stream(0, "x"), 9).size == 9


def test_the_first_levels_are_those_of_normal_scores_on_every_machine() -> None:
    levels = first_levels().astype(np.float64)
    assert (levels * 256 == np.rint(levels * 256)).all() and (np.diff(levels) >= 0).all()
    assert (levels + levels[::-1] == 1).all()
    scores = np.log(levels / (1 - levels))
    assert scores.std() == pytest.approx(1, abs=0.02)
    exact = 256 / (1 + np.exp(-normal((np.arange(256) + 0.5) / 256)))
    assert np.abs(exact % 1 - 0.5).min() > 1e-6, "an error of the last bit changes no level"


@pytest.mark.parametrize(
    ("kept", "dropped", "expected"),
    [(0, 10, 3 / 256), (10, 0, 253 / 256), (1, 9, 28 / 256), (5, 5, 0.5), (1, 0, 253 / 256)],
)
def test_votes_become_probabilities_away_from_zero_and_one(
    kept: int, dropped: int, expected: float
) -> None:
    """0.01 + 0.98 x share, in parts of 256: 2.56, 253.44, 27.648, 128."""
    assert probabilities(vector(kept), vector(dropped), 0.01, 256).tolist() == [expected]


@pytest.mark.parametrize(
    ("kept", "clients", "p", "score"),
    [(0, 5, 0.01, -4.595120), (1, 5, 0.206, -1.349207), (3, 5, 0.598, 0.397139),
     (5, 5, 0.99, 4.595120), (3, 10, 0.304, -0.828322), (7, 10, 0.696, 0.828322)],
)  # fmt: skip
def test_exact_probabilities_and_their_scores(
    kept: int, clients: int, p: float, score: float
) -> None:
    """The mean of samples of 0.99 and 0.01, and its logit; the default has no levels."""
    found = probabilities(vector(kept), vector(clients - kept), 0.01, FedPmOptions().levels)
    assert found == pytest.approx(p, abs=1e-7)
    assert math.log(found[0] / (1 - found[0])) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(("share", "bits"), [(0.5, 1.0), (0.3, 0.8813), (0.1, 0.4690)])
def test_a_sent_mask_costs_at_most_a_bit_and_about_its_entropy(share: float, bits: float) -> None:
    """-f log2 f - (1 - f) log2(1 - f) bits for each parameter."""
    sent = Mask.from_bools(Stream(0, "mask").uniform(200_000) < share).bits
    coded = masks.compress(sent) or sent
    assert bits <= 8 * len(coded) / 200_000 <= min(1.0, 1.08 * bits)


def test_coarse_levels_and_small_clamps_never_give_zero_or_one() -> None:
    found = probabilities(vector(0, 1, 4), vector(4, 3, 0), 1e-6, 4)
    assert found.tolist() == [0.25, 0.25, 0.75]


def test_fine_levels_are_the_means_of_clamped_samples() -> None:
    kept = np.arange(11, dtype=np.float32)
    samples = [[0.99] * int(k) + [0.01] * (10 - int(k)) for k in kept]
    np.testing.assert_allclose(
        probabilities(kept, 10 - kept, 0.01, 1 << 20), np.mean(samples, axis=1), atol=1e-6
    )


def test_a_run_begins_with_random_probabilities_and_its_own_biases() -> None:
    strategy = fedpm(RunSettings(seed=3))
    state = strategy.begin(THREE, START)
    assert state.mask == Mask.full(10) and state.values is not None
    assert set(of(state)) <= set(first_levels()) and state.values[10] == 10
    assert state.initial.tobytes() == START.tobytes()
    other = fedpm(RunSettings(seed=4)).begin(THREE, START)
    assert of(other).tobytes() != of(state).tobytes()


def test_every_client_has_one_vote_and_sends_bits_alone() -> None:
    strategy = fedpm(RunSettings(clients_per_round=2, rounds=3, update_weights="samples"))
    clients = [ClientId(name) for name in "abc"]
    plan = strategy.plan(Position(0, 1, 0), clients)
    assert plan is not None and plan.equal_weights and len(plan.cohort) == 2
    assert strategy.plan(Position(3, 1, 0), clients) is None
    assert strategy.parts("", THREE) == UploadParts(values=False, bits=True, bits_required=True)


def test_the_votes_of_a_round_are_the_next_probabilities() -> None:
    strategy = fedpm(levels=256)
    state = strategy.begin(THREE, START)
    after = voted(strategy, state, 0, [0, 1, 2, 3, 4, 4, 4, 4, 4, 4], 4)
    expected = [3, 65, 128, 191, 253, 253, 253, 253, 253, 253]  # 2.56, 65.28, 128, 190.72, 253.44
    assert (of(after) * 256).tolist() == expected
    assert after.values is not None and after.values[10] == 10, "the bias is frozen"
    assert after.extra == {} and (after.mask, after.mask_epoch) == (state.mask, 1)
    assert of(voted(strategy, after, 1, [4] * 10, 4)).tolist() == [253 / 256] * 10


def test_a_prior_that_is_kept_counts_the_votes_of_earlier_rounds() -> None:
    """Rounds 0 and 1 count together, then the prior is reset."""
    strategy = fedpm(reset_every=2, levels=256)
    state = voted(strategy, strategy.begin(THREE, START), 0, [4] * 10, 4)
    state = voted(strategy, state, 1, [0] * 9 + [2], 2)  # 4 of 6, and 6 of 6
    assert (of(state) * 256).tolist() == [170] * 9 + [253]  # 256 (0.01 + 0.98 x 2/3) = 169.8
    assert {name: value[0] for name, value in state.extra.items()} == {"kept": 4, "dropped": 2}  # type: ignore[index]
    state = voted(strategy, state, 2, [0] * 10, 3)
    assert (of(state) * 256).tolist() == [3] * 10
    exact = fedpm(reset_every=2)
    state = voted(exact, exact.begin(THREE, START), 0, [4] * 10, 4)
    state = voted(exact, state, 1, [0] * 9 + [2], 2)  # 0.01 + 0.98 x 4/6
    assert of(state).tolist() == pytest.approx([0.6633333] * 9 + [0.99], abs=1e-6)


def test_the_served_model_has_the_frozen_weights_of_a_drawn_mask() -> None:
    strategy = fedpm(RunSettings(seed=3), constant=2.0)
    state = strategy.begin(THREE, START)
    served = strategy.rule.deployed(state)
    assert served.mask is not None and served.values is not None
    weights = frozen_weights(THREE, 3, 2.0)
    assert served.values.tolist() == [*weights[served.mask.bools()], 10]
    again = strategy.rule.deployed(ModelState(THREE, START, state.mask, 1, state.values))
    assert again.mask == served.mask, "a client computes the same from what it is sent"


def test_a_drawn_mask_has_its_probabilities_and_is_another_for_another_state() -> None:
    big = Manifest((TensorSpec("v", (100, 300), Role.MASKED, Init("zeros")),))
    strategy = fedpm()
    p = np.repeat(vector(0.125, 0.5, 0.875), 10_000)
    state = ModelState(big, np.zeros(30_000, dtype=np.float32), Mask.full(30_000), 1, p)
    mask = strategy.rule.deployed(state).mask
    assert mask is not None
    shares = mask.bools().reshape(3, -1).mean(axis=1)
    np.testing.assert_allclose(shares, [0.125, 0.5, 0.875], atol=0.02)
    other = strategy.rule.deployed(replace(state, values=p[::-1].copy())).mask
    assert other is not None and other != mask and values_digest(p) == state.base_digest


def test_a_threshold_serves_what_is_more_likely_kept_than_not() -> None:
    strategy = fedpm(threshold=True)
    state = strategy.begin(THREE, START)
    state = replace(state, values=vector(0.1, 0.5, 0.6, 0.9, 0.2, 0.2, 0.2, 0.2, 0.2, 0.51, 7))
    served = strategy.rule.deployed(state)
    assert served.mask is not None and served.values is not None
    assert np.flatnonzero(served.mask.bools()).tolist() == [2, 3, 9]
    assert np.abs(served.values).tolist() == pytest.approx([math.e / 2, math.e / 2, math.e, 7])


def test_a_run_of_this_name_keeps_every_weight_in_its_state() -> None:
    strategy = strategy_for(RunSettings(strategy="fedpm", sparsity="0.99"))
    assert strategy.is_dense and strategy.begin(THREE, START).mask == Mask.full(10)


@pytest.mark.parametrize("changes", [{"norm": "batch"}, {"value_type": "int8"}])
def test_running_statistics_and_lossy_values_are_refused(changes: dict[str, str]) -> None:
    fedpm().rule.check()
    with pytest.raises(SettingsError, match="--norm group and --value-type float32"):
        fedpm(replace(RunSettings(), **changes)).rule.check()  # type: ignore[arg-type]


# -- the client's half


def site_of(**changes: Any) -> Site:
    return small_site(replace(SMALL, **{"local_epochs": 2, **changes}))


def received_by(site: Site, strategy: Strategy, number: int = 0) -> Received:
    state = strategy.begin(site.manifest, site.initial)
    assert state.mask is not None and state.values is not None
    return Received(state.mask, state.values, number)


def test_a_client_sends_one_mask_of_frozen_weights() -> None:
    site = site_of()
    strategy = fedpm(site.settings)
    received = received_by(site, strategy)
    names = [name for name, _ in site.network.named_parameters()]
    reply = strategy.client().train(received, site, DictMemory(), ignore)
    assert reply.bits is not None
    assert 0 < reply.bits.num_kept < reply.bits.size
    weights = frozen_weights(site.manifest, site.settings.seed, math.e)
    whole = np.concatenate([weights, site.initial[weights.size :]])
    assert reply.trained.values.tobytes() == reply.bits.gather(whole).tobytes()
    assert reply.trained.personal == site.evaluate(reply.bits, reply.trained.values)
    model = strategy.rule.deployed(
        ModelState(site.manifest, site.initial, received.mask, 1, received.values)
    )
    assert model.mask is not None and model.values is not None
    assert reply.trained.base == site.evaluate(model.mask, model.values)
    again = strategy.client().train(received, site, DictMemory(), ignore)
    assert again.bits == reply.bits
    assert [name for name, _ in site.network.named_parameters()] == names
    later = replace(received, round_number=1)
    assert strategy.client().train(later, site, DictMemory(), ignore).bits != reply.bits


def test_a_sure_probability_is_sent_as_it_is() -> None:
    """Without training to speak of, the bits follow the probabilities that were received."""
    site = site_of(local_epochs=1, learning_rate=1e-6)
    strategy = fedpm(site.settings)
    received = received_by(site, strategy)
    values = received.values.copy()
    half = site.manifest.num_masked // 2
    values[:half], values[half : 2 * half] = 1e-7, 1 - 1e-7
    reply = strategy.client().train(replace(received, values=values), site, DictMemory(), ignore)
    assert reply.bits is not None
    kept = reply.bits.bools()
    assert not kept[:half].any() and kept[half : 2 * half].all()


def test_moments_are_kept_only_if_asked_for() -> None:
    site = site_of(local_epochs=1)
    memory = DictMemory()
    received = received_by(site, fedpm(site.settings))
    fedpm(site.settings).client().train(received, site, memory, ignore)
    assert not memory.kept
    keeping = fedpm(site.settings, keep_moments=True)
    first = keeping.client().train(received, site, memory, ignore)
    moments = memory.vector(MOMENTS)
    assert moments is not None and moments[0] == 6, "30 samples, 5 at a time"
    second = keeping.client().train(received, site, memory, ignore)
    after = memory.vector(MOMENTS)
    assert after is not None and after[0] == 12 and moments[0] == 6
    assert second.bits != first.bits, "with the same stream, but other steps"


def test_options_change_the_training() -> None:
    site = site_of(width=32)
    received = received_by(site, fedpm(site.settings))
    bits = [
        fedpm(site.settings, **options).client().train(received, site, DictMemory(), ignore).bits
        for options in ({}, {"scaled_gradient": True}, {"constant": 1.0})
    ]
    assert bits[0] is not None and len({mask.bits for mask in bits if mask}) == 3


def test_a_federation_of_three_learns_masks_of_its_random_network() -> None:
    site = site_of(width=32, local_epochs=6)
    strategy = fedpm(site.settings, threshold=True)
    state = strategy.begin(site.manifest, site.initial)
    losses = []
    for number in range(6):
        assert state.mask is not None and state.values is not None
        votes = np.zeros(site.manifest.num_masked, dtype=np.int64)
        for name in ("a", "b", "c"):
            site.client_id = name
            received = Received(state.mask, state.values, number)
            reply = strategy.client().train(received, site, DictMemory(), ignore)
            assert reply.bits is not None
            votes += reply.bits.bools()
        losses.append(reply.trained.base.loss_sum)
        state = voted(strategy, state, number, votes.tolist(), 3)
    assert losses[-1] < losses[0] / 2, losses
