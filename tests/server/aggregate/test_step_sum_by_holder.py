"""The mean over the clients that hold a value, compared with exact fractions."""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from method.test_exact_sum import nearest_float32
from ssfl.method.exact_sum import MAX_FRACTION_BITS
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.server.aggregate.step_sum import StepSum
from ssfl.server.run.facts import UploadAccepted
from ssfl.server.run.state import Step
from ssfl.strategies.contract import ClientId, Reducer, Work
from ssfl.strategies.registry import strategy_for
from ssfl.strategies.strategy import Strategy

Vector = npt.NDArray[np.float32]
MANIFEST = Manifest(
    (
        TensorSpec("w", (12,), Role.MASKED, Init("ones")),
        TensorSpec("b", (2,), Role.DENSE, Init("zeros")),
    )
)
INITIAL = np.r_[np.arange(1, 13), [50, 60]].astype(np.float32)
HOLDERS = RunSettings(criterion="client-random", sparsity="0.75", seed=3)
ZEROS = RunSettings(criterion="client-random", sparsity="0.75", seed=3, averaging="zeros")


class Uploads:
    """Values of clients in memory."""

    def __init__(self, values: Mapping[ClientId, Vector]) -> None:
        self.values = values

    def read(self, _step: int, client: ClientId, _digest: bytes, start: int, count: int) -> Vector:
        return self.values[client][start : start + count]

    def tail(self, _step: int, client: ClientId, _digest: bytes, num_bytes: int) -> bytes:
        raise KeyError(client, num_bytes)


def summed(
    settings: RunSettings, weights: Mapping[ClientId, int], values: Mapping[ClientId, Vector]
) -> tuple[Strategy, ModelState, Vector]:
    """Return the mean of a round in which every client sent the values it holds."""
    strategy = strategy_for(settings)
    model = strategy.begin(MANIFEST, INITIAL)
    is_by_holder = settings.averaging == "holders"
    reducer = Reducer.WEIGHTED_SUM_BY_HOLDER if is_by_holder else Reducer.WEIGHTED_SUM
    accepted = {client: UploadAccepted(1, client, "00", 9.0) for client in values}
    closed = tuple(sorted(values))
    step = Step(1, Work.TRAIN, "", 0, 0, weights, accepted, closed, reducer)
    step_sum = StepSum(step, model, Uploads(values), strategy)
    for client in list(values)[:1]:  # the others are added at the end
        step_sum.fold(accepted[client], weights[client])
    values_after = step_sum.finish(step).model.values
    assert values_after is not None
    return strategy, model, values_after


def exact(strategy: Strategy, model: ModelState, weights: Mapping[ClientId, int],
          values: Mapping[ClientId, Vector]) -> list[float]:  # fmt: skip
    """Return the same means with fractions: each value on the grid, the quotient rounded once."""
    scale = 2**MAX_FRACTION_BITS
    total = [Fraction(0)] * MANIFEST.size
    held = [0] * MANIFEST.size
    for client, sent in values.items():
        mask = strategy.client_state(client, Work.TRAIN, model).mask
        assert mask is not None
        places = np.flatnonzero(np.r_[mask.bools(), [True, True]])
        for place, value in zip(places.tolist(), sent.tolist(), strict=True):
            total[place] += weights[client] * Fraction(round(Fraction(value) * scale), scale)
            held[place] += weights[client]
    divided = held if strategy.settings.averaging == "holders" else [sum(weights.values())] * 14
    return [
        nearest_float32(sum_ / weight) if weight else float(before)
        for sum_, weight, before in zip(total, divided, INITIAL.tolist(), strict=True)
    ]


@pytest.mark.parametrize("settings", [HOLDERS, ZEROS], ids=["holders", "zeros"])
def test_the_mean_by_hand(settings: RunSettings) -> None:
    c1, c2 = ClientId("c1"), ClientId("c2")
    weights = {c1: 1, c2: 3}
    values = {c1: np.full(5, 4, dtype=np.float32), c2: np.full(5, 8, dtype=np.float32)}
    strategy, model, mean = summed(settings, weights, values)
    masks = [strategy.client_state(client, Work.TRAIN, model).mask for client in (c1, c2)]
    first, second = (mask.bools() for mask in masks if mask is not None)
    assert first.sum() == second.sum() == 3
    assert (first & second).any() and (first & ~second).any() and (~first & ~second).any()
    both, alone, other, unheld = (4 + 24) / 4, 4, 8, INITIAL[:12]
    if settings is ZEROS:
        alone, other, unheld = 1, 6, np.zeros(12, dtype=np.float32)
    expected = np.where(
        first & second, both, np.where(first, alone, np.where(second, other, unheld))
    )
    assert mean.tolist() == [*expected.tolist(), both, both]


@given(st.data())
def test_the_mean_over_holders_is_the_exact_one_rounded_once(data: st.DataObject) -> None:
    names = [ClientId(f"c{number}") for number in range(data.draw(st.integers(1, 5)))]
    weights = {name: data.draw(st.integers(1, 1000)) for name in names}
    number = st.floats(-4, 4, width=32)
    values = {
        name: np.array(data.draw(st.lists(number, min_size=5, max_size=5)), dtype=np.float32)
        for name in names
    }
    for settings in (HOLDERS, ZEROS):
        strategy, model, mean = summed(settings, weights, values)
        expected = exact(strategy, model, weights, values)
        assert (mean + np.float32(0)).tolist() == [one + 0.0 for one in expected]


def test_values_that_no_client_holds_stay_bit_for_bit() -> None:
    name = ClientId("c1")
    values = {name: np.zeros(5, dtype=np.float32)}
    strategy, model, mean = summed(HOLDERS, {name: 7}, values)
    mask = strategy.client_state(name, Work.TRAIN, model).mask
    assert mask is not None
    stayed = ~mask.bools()
    assert stayed.sum() == 9
    assert mean[:12][stayed].tobytes() == INITIAL[:12][stayed].tobytes()
    assert not mean[:12][~stayed].any()
