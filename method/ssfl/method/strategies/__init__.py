"""One file per way of learning; `strategy_for` finds it by name."""

from ssfl.method.settings import RunSettings
from ssfl.method.strategies.contract import Strategy
from ssfl.method.strategies.fedavg import FedAvg
from ssfl.method.strategies.ssfl import Ssfl

__all__ = ["FedAvg", "Ssfl", "Strategy", "strategy_for"]


def strategy_for(settings: RunSettings) -> Strategy:
    """Return the strategy that `settings.strategy` names."""
    strategies: dict[str, type[Ssfl] | type[FedAvg]] = {"ssfl": Ssfl, "fedavg": FedAvg}
    return strategies[settings.strategy](settings)
