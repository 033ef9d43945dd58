"""D-PSGD: mixing, training and the own model."""

from dataclasses import replace

import numpy as np

from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId, PeerModel
from ssfl.strategies.gossip import MODEL, NOT_TESTED
from ssfl.strategies.methods.d_psgd import DPsgdClient, mean_of
from strategies.scripted_site import (
    DictMemory,
    ScriptedSite,
    ignore,
    manifest_of,
    mask_of,
    received,
    vector,
)

SETTINGS = RunSettings(strategy="d-psgd", local_epochs=2)
FULL = mask_of("11")
PEERS = {
    ClientId("c2"): PeerModel(FULL, vector(3, 5, 1)),
    ClientId("c3"): PeerModel(FULL, vector(8, 1, 4)),
}


def site(settings: RunSettings = SETTINGS) -> ScriptedSite:
    return ScriptedSite(manifest_of(2), settings, step=0.5)


def test_the_mean_is_summed_in_double_precision() -> None:
    assert mean_of([vector(1), vector(1e8), vector(-1e8)]).tolist() == [np.float32(1 / 3)]


def test_a_client_averages_with_its_neighbours_then_trains() -> None:
    """Own (1, 0, 1), neighbours (3, 5, 1) and (8, 1, 4): mean (4, 2, 2); two epochs add 1."""
    place, memory = site(), DictMemory({MODEL: vector(1, 0, 1)})
    task = replace(received("11", vector(70, 80, 90), 3), peers=PEERS)
    reply = DPsgdClient().train(task, place, memory, ignore)
    (call,) = place.calls
    assert (call.mask, call.values, call.round_number) == ("11", [4, 2, 2], 3)
    assert reply.trained.values.tolist() == [5, 3, 3] and reply.bits is None
    own = memory.vector(MODEL)
    assert own is not None and own.tolist() == [5, 3, 3]
    assert reply.trained.base == NOT_TESTED, "its own model's test is not one of the run's model"
    assert reply.trained.personal.total == 10


def test_the_first_round_starts_from_the_initial_weights() -> None:
    place = site()
    place.initial = vector(7, 8, 9)
    DPsgdClient().train(received("11", vector(70, 80, 90)), place, DictMemory(), ignore)
    assert place.calls[0].values == [7, 8, 9]


def test_the_own_model_is_the_trained_one_unless_the_mean_is_fine_tuned() -> None:
    memory, task = DictMemory({MODEL: vector(1, 0, 1)}), received("11", vector(70, 80, 90))
    own = DPsgdClient().personal(task, site(), memory)
    assert own is not None and own.tolist() == [1, 0, 1]
    fine_tuned = site(replace(SETTINGS, personalize_epochs=1))
    assert DPsgdClient().personal(task, fine_tuned, memory) is None
