"""Steps of a strategy, for tests that have only the mean of the uploads."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId, Reduced, StepDone, Work
from ssfl.strategies.registry import strategy_for
from ssfl.strategies.strategy import Strategy


def fedavg(settings: RunSettings) -> Strategy:
    """Return FedAvg with these settings."""
    return strategy_for(replace(settings, strategy="fedavg"))


def finish(
    strategy: Strategy,
    work: Work,
    state: ModelState,
    mean: npt.NDArray[np.float32],
    rounds_done: int,
) -> ModelState:
    """Return the state after a step whose uploads have this mean."""
    return strategy.finish(StepDone(work, rounds_done), state, Reduced(mean), NoUploads())


class NoUploads:
    """The uploads of a step, for a rule that does not read them."""

    clients: tuple[ClientId, ...] = ()

    def weight(self, client: ClientId) -> int:
        raise KeyError(client)

    def mask(self, client: ClientId) -> Mask:
        raise KeyError(client)

    def numbers(self, client: ClientId) -> tuple[float, ...]:
        raise KeyError(client)

    def read(
        self, client: ClientId, start: int, count: int, vector: str = ""
    ) -> npt.NDArray[np.float32]:
        raise KeyError(client, start, count, vector)
