"""Strategies, one per file; `strategy_for` returns the one that the settings name."""

from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import Strategy
from ssfl.method.strategies.fedavg import FedAvg
from ssfl.method.strategies.own_masks import OwnMasks
from ssfl.method.strategies.ssfl import Ssfl

__all__ = ["FedAvg", "OwnMasks", "Ssfl", "Strategy", "strategy_for"]


def strategy_for(settings: RunSettings) -> Strategy:
    """Return the strategy that the settings name."""
    if settings.strategy == "fedavg":
        return FedAvg(settings)
    return OwnMasks(settings) if settings.criterion == "client-random" else Ssfl(settings)
