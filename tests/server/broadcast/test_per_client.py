"""Who gets which broadcast, and on how many threads it is asked for."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.server.broadcast.per_client import Broadcasts
from ssfl.strategies.contract import ClientId, Work
from ssfl.strategies.registry import strategy_for
from ssfl.strategies.strategy import Strategy

SETTINGS = RunSettings(criterion="client-random", sparsity="0.5", seed=5)
C1, C2 = ClientId("c1"), ClientId("c2")
DEADLINE_S = 30.0  # for what must happen; nothing waits so long unless it is broken


@pytest.fixture
def first(manifest: Manifest) -> ModelState:
    return strategy_for(SETTINGS).begin(manifest, initial_vector(manifest, SETTINGS.seed))


@pytest.fixture
def second(first: ModelState) -> ModelState:
    assert first.values is not None
    return replace(first, values=first.values + np.float32(1))


def test_a_personal_mask_is_built_once_per_model(first: ModelState, second: ModelState) -> None:
    broadcasts = Broadcasts(SETTINGS)
    once = broadcasts.broadcast_for(C1, Work.TRAIN, first)
    assert broadcasts.broadcast_for(C1, Work.TRAIN, first) is once
    assert broadcasts.broadcast_for(C2, Work.TRAIN, first).model.mask != once.model.mask
    again = broadcasts.broadcast_for(C1, Work.TRAIN, second)
    assert again.model.mask == once.model.mask
    assert again.model.base_digest != once.model.base_digest
    tested = broadcasts.broadcast_for(C1, Work.EVALUATE, second)
    assert tested is broadcasts.shared(second) and tested.model is second


def test_the_model_before_is_never_served_for_the_new_one(
    monkeypatch: pytest.MonkeyPatch, first: ModelState, second: ModelState
) -> None:
    """Where the newer part may overtake the older one, the older is the last to be stored."""
    broadcasts, begun, newer_made = Broadcasts(SETTINGS), threading.Event(), threading.Event()
    strategy, made = strategy_for(SETTINGS), list[ModelState]()

    def slow(_: Strategy, client: ClientId, work: Work, model: ModelState) -> ModelState:
        made.append(model)
        begun.set()
        if model is first and not broadcasts._lock.locked():
            assert newer_made.wait(DEADLINE_S)
        return client_state(strategy, client, work, model)

    client_state = Strategy.client_state
    monkeypatch.setattr(Strategy, "client_state", slow)
    with ThreadPoolExecutor(2) as pool:
        older = pool.submit(broadcasts.broadcast_for, C1, Work.TRAIN, first)
        assert begun.wait(DEADLINE_S)
        newer = pool.submit(broadcasts.broadcast_for, C1, Work.TRAIN, second)
        newer.add_done_callback(lambda _: newer_made.set())
        digests = [one.result(DEADLINE_S).model.base_digest for one in (older, newer)]
    wanted = [
        client_state(strategy, C1, Work.TRAIN, model).base_digest for model in (first, second)
    ]
    assert digests == wanted and wanted[0] != wanted[1]
    assert broadcasts.broadcast_for(C1, Work.TRAIN, second) is newer.result()
    assert [model is second for model in made] == [False, True], "each part was made once"
