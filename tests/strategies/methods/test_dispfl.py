"""DisPFL: masks, the mean over holders, and the moves of a mask."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId, PeerModel
from ssfl.strategies.gossip import MODEL, NOT_TESTED
from ssfl.strategies.layerwise import kept_by_layer
from ssfl.strategies.methods.dispfl import (
    HELD,
    NEXT,
    DisPfl,
    DisPflOptions,
    evolved,
    fired,
    mean_over_holders,
    moving_share,
)
from strategies.scripted_site import (
    DictMemory,
    ScriptedSite,
    bits_of,
    ignore,
    manifest_of,
    mask_of,
    received,
    vector,
)
from strategies.small_site import SMALL, small_site

SETTINGS = RunSettings(strategy="dispfl", sparsity="0.5", rounds=4, local_epochs=1)
LAYERS = manifest_of(4, 4)  # and a bias


def rule(**options: Any) -> DisPfl:
    return DisPfl(SETTINGS, DisPflOptions(**options))


def test_a_first_mask_is_random_with_erk_counts_and_another_at_each_client() -> None:
    """Shapes (2, 2) and (6, 6) of 40 weights, 20 kept: shares 4 and 12, so 5 of 4, then 16."""
    net = manifest_of((2, 2), (6, 6))
    masks = [rule().first_mask(client, net) for client in ("c1", "c1", "c2")]
    assert masks[0] == masks[1] != masks[2]
    assert [kept_by_layer(mask, net) for mask in masks] == [[4, 16]] * 3
    assert kept_by_layer(rule(layers="uniform").first_mask("c1", net), net) == [2, 18]
    parts = rule().parts("", net)
    assert (parts.values, parts.bits, parts.bits_required, parts.max_kept) == (True, True, True, 20)


def test_counts_of_layers_can_be_rounded_down_as_in_the_released_code() -> None:
    """A tenth of 644 weights by ERK: 9.98, 16.3 and 38.1 of 36, 288 and 320."""
    settings = replace(SETTINGS, sparsity="0.9")
    net = manifest_of((4, 1, 3, 3), (8, 4, 3, 3), (10, 32))
    for rounding, counts in (("exact", [10, 16, 38]), ("floor", [9, 16, 38])):
        dispfl = DisPfl(settings, DisPflOptions(rounding=rounding))
        assert kept_by_layer(dispfl.first_mask("c1", net), net) == counts
        assert dispfl.parts("", net).max_kept == sum(counts)


def test_the_moving_share_falls_with_a_cosine() -> None:
    """0.5 / 2 * (1 + cos(pi / 4)) = 0.25 * 1.70711 in round 1 of 4."""
    found = [moving_share(0.5, number, 4) for number in range(5)]
    assert found == pytest.approx([0.5, 0.426777, 0.25, 0.073223, 0], abs=1e-6)


def test_each_layer_fires_the_smallest_weights_rounded_up() -> None:
    """0.3 of 3 and of 2 are 0.9 and 0.6: one in each layer."""
    whole = vector(5, -1, 0, 3, 2, 0, 0, -1, 60)
    assert bits_of(fired(mask_of("1101 1001"), whole, 0.3, LAYERS)) == "10011000"
    assert bits_of(fired(mask_of("1101 1001"), whole, 0.0, LAYERS)) == "11011001"
    hundred = manifest_of(200, biases=0)
    full = mask_of("1" * 100 + "0" * 100)
    values = np.arange(1, 201).astype(np.float32)
    assert fired(full, values, 0.07, hundred).num_kept == 93, "7 % of 100 are 7, not 8"


def test_each_layer_regrows_what_it_fired_by_the_largest_scores() -> None:
    """Layer 1 fires weight 1 for 2; layer 2 fires weight 7 for 5."""
    whole = vector(5, -1, 0, 3, 2, 0, 0, -1, 60)
    gradients = vector(9, 0.1, 0.2, 9, 9, 3, 1, 0, 99)
    assert bits_of(evolved(mask_of("1101 1001"), whole, gradients, 0.3, LAYERS)) == "10111100"


def test_a_fired_weight_may_be_regrown_so_a_dense_layer_stays_dense() -> None:
    whole = vector(5, -1, 2, 3, 2, 0, 0, -1, 60)
    gradients = vector(0, 0, 0, 0, 0, 1, 2, 9, 0)
    assert bits_of(evolved(mask_of("1111 1001"), whole, gradients, 0.5, LAYERS)) == "11111001"


def test_each_weight_is_averaged_over_its_holders() -> None:
    """Weights 0 to 3 are held by 2, 1, 3 and no models, the bias by all."""
    models = [
        PeerModel(mask_of("1010"), vector(2, 3, 1)),
        PeerModel(mask_of("1110"), vector(4, 7, 4, 2)),
        PeerModel(mask_of("0010"), vector(5, 6)),
    ]
    assert mean_over_holders(models).tolist() == [3, 7, 4, 0, 3]


def site(**changes: Any) -> ScriptedSite:
    return ScriptedSite(LAYERS, SETTINGS, **changes)


def test_a_round_mixes_on_its_own_mask_trains_publishes_and_moves_the_mask() -> None:
    """Round 2 of 4: a quarter of each layer's 2 weights moves, rounded up to one.

    The client published on 1100 1100 and has moved to 1010 1100 since. Its new weight 2 comes from
    c2; weight 1 is only dropped; weight 5 is the mean of 4 and 8.
    """
    memory = DictMemory({
        MODEL: vector(1, 2, 3, 4, 10),
        HELD: mask_of("1100 1100"),
        NEXT: mask_of("1010 1100"),
    })  # fmt: skip
    peers = {ClientId("c2"): PeerModel(mask_of("0110 0101"), vector(5, 6, 8, 9, 20))}
    task = replace(received("1111 1111", vector(*[70] * 9), 2), peers=peers)
    place = site(step=0.5, gradients=vector(0, -7, 0, 1, 0, 0, 8, 2, 99))
    reply = rule().client().train(task, place, memory, ignore)
    (call,) = place.calls
    assert (call.mask, call.values) == ("10101100", [1, 6, 3, 6, 15])
    assert reply.bits is not None and bits_of(reply.bits) == "10101100"
    assert reply.trained.values.tolist() == [1.5, 6.5, 3.5, 6.5, 15.5]
    assert reply.trained.base == NOT_TESTED
    assert memory.mask(HELD) == reply.bits
    # Fired: weights 0 (1.5) and 4 (3.5). Regrown: weights 1 and 6, by gradient.
    assert bits_of(memory.mask(NEXT)) == "01100110"


def test_a_regrown_weight_that_no_neighbour_holds_starts_at_zero() -> None:
    memory = DictMemory({
        MODEL: vector(1, 2, 3, 4, 10),
        HELD: mask_of("1100 1100"),
        NEXT: mask_of("1001 1100"),
    })  # fmt: skip
    place = site(gradients=vector(*[0] * 9))
    rule().client().train(received("1111 1111", vector(*[70] * 9), 1), place, memory, ignore)
    assert place.calls[0].values == [1, 0, 3, 4, 10]


def test_random_regrowth_needs_no_gradient_and_follows_from_seed_round_and_client() -> None:
    net, masks = manifest_of(40), []
    for client, number in (("c1", 0), ("c1", 0), ("c2", 0), ("c1", 1)):
        place = ScriptedSite(net, SETTINGS, client_id=client)
        memory = DictMemory({
            NEXT: mask_of("1" * 20 + "0" * 20),
            HELD: mask_of("1" * 20 + "0" * 20),
            MODEL: vector(*range(21)),
        })  # fmt: skip
        task = received("1" * 40, vector(*[0] * 41), number)
        rule(regrow="random").client().train(task, place, memory, ignore)
        masks.append(memory.mask(NEXT))
    assert masks[0] == masks[1] and len(set(masks)) == 3
    assert all(mask is not None and mask.num_kept == 20 for mask in masks)


def test_the_own_model_is_zero_off_the_mask_of_its_last_training() -> None:
    memory = DictMemory({MODEL: vector(1, 2, 3, 4, 10), HELD: mask_of("1100 1100")})
    task = received("1111 1111", vector(*[70] * 9))
    own = rule().client().personal(task, site(), memory)
    assert own is not None and own.tolist() == [1, 2, 0, 0, 3, 4, 0, 0, 10]
    assert rule().client().personal(task, site(), DictMemory()) is None


def test_two_rounds_at_a_real_site() -> None:
    settings = replace(SMALL, strategy="dispfl", local_epochs=1, rounds=2)
    place, memory = small_site(settings), DictMemory()
    half = DisPfl(settings, DisPflOptions()).client()
    full = "1" * place.manifest.num_masked
    for number in range(2):
        reply = half.train(received(full, place.initial, number), place, memory, ignore)
        assert reply.bits is not None and reply.trained.personal.total == 9
        first = DisPfl(settings, DisPflOptions()).first_mask("c1", place.manifest)
        assert (reply.bits == first) == (number == 0)
        assert kept_by_layer(reply.bits, place.manifest) == kept_by_layer(first, place.manifest)
