"""The paper's "OOD Adaptation", sentence by sentence: a new mask from the unmasked state."""

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId, Position, Work
from ssfl.strategies.registry import strategy_for
from ssfl.strategies.strategy import Strategy
from strategies.steps import finish

Vector = npt.NDArray[np.float32]
INITIAL = np.array([0.5, -0.25, 4.0, -8.0, 1.5, 3.0], dtype=np.float32)
CLIENTS = [ClientId(f"c{i}") for i in range(3)]


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


def trained_once(ssfl: Strategy) -> ModelState:
    """Agree on the coordinates 0, 1 and 2, and train them to 10, 11 and 12."""
    manifest = Manifest((TensorSpec("w", (INITIAL.size,), Role.MASKED, Init("sent")),))
    state = ssfl.begin(manifest, INITIAL)
    state = finish(ssfl, Work.SCORE, state, vector(6, 5, 4, 3, 2, 1), 0)
    return finish(ssfl, Work.TRAIN, state, vector(10, 11, 12), 1)


def dense(state: ModelState) -> list[float]:
    assert state.mask is not None and state.values is not None
    return [float(value) for value in state.mask.scatter(state.values)]


def test_clients_score_trained_values_on_the_mask_and_initial_ones_off_it() -> None:
    """5.5: "unmasking pruned parameters, which retain their original initialization values"."""
    state = trained_once(strategy_for(RunSettings(sparsity="0.5")))
    assert dense(state) == [10, 11, 12, 0, 0, 0]
    assert state.whole.tolist() == [10, 11, 12, *INITIAL[3:].tolist()]


def test_a_refresh_keeps_what_was_trained_and_starts_the_others_where_they_were() -> None:
    """5.5: the model may "recruit connections outside the set of current mask"."""
    ssfl = strategy_for(RunSettings(sparsity="0.5"))
    state = trained_once(ssfl)
    refreshed = finish(ssfl, Work.SCORE, state, vector(9, 1, 2, 8, 3, 7), 1)
    assert refreshed.mask is not None
    assert np.flatnonzero(refreshed.mask.bools()).tolist() == [0, 3, 5]
    assert dense(refreshed) == [10, 0, 0, -8, 0, 3], "0 as trained, 3 and 5 as initialised"
    assert refreshed.mask_epoch == state.mask_epoch + 1


@pytest.mark.parametrize(("deactivated", "returns_as"), [("reset", -0.25), ("keep", 11.0)])
def test_a_dropped_weight_returns_with_the_value_of_the_setting(
    deactivated: str, returns_as: float
) -> None:
    """The paper leaves open whether it returns with its initial or its trained value."""
    ssfl = strategy_for(RunSettings(sparsity="0.5", deactivated=deactivated))
    state = finish(ssfl, Work.SCORE, trained_once(ssfl), vector(9, 1, 2, 8, 3, 7), 1)
    state = finish(ssfl, Work.TRAIN, state, vector(20, 23, 25), 2)
    state = finish(ssfl, Work.SCORE, state, vector(9, 8, 2, 7, 1, 1), 2)
    assert dense(state) == [20, returns_as, 0, 23, 0, 0]


def test_a_refresh_is_one_scoring_by_every_client_and_then_training_continues() -> None:
    """Algorithm "OOD Adaptation": "the server triggers a single mask update"."""
    ssfl = strategy_for(RunSettings(sparsity="0.5", rounds=5))
    asked = ssfl.plan(Position(2, mask_epoch=1, attempt=0, refresh=True), CLIENTS)
    assert asked is not None
    assert (asked.work, asked.cohort) == (Work.SCORE, tuple(CLIENTS))
    after = ssfl.plan(Position(2, mask_epoch=2, attempt=0), CLIENTS)
    assert after is not None and after.work is Work.TRAIN
