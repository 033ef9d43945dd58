"""The model as each client sees it: the run's model or, where masks are personal, its part of it.

Downloads are made from it, and it is the base that an update must name and is decoded against.
"""

import asyncio
import threading

from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import OwnMasks, strategy_for
from ssfl.method.strategies.contract import ClientId, Work


class ClientModels:
    """Views of the newest model; any thread may ask."""

    def __init__(self, settings: RunSettings) -> None:
        self._strategy = strategy_for(settings)
        self.one_for_all = not isinstance(self._strategy, OwnMasks)
        # Of clients with a mask of their own: the run's model, and what the client sees of it.
        self._own: dict[ClientId, tuple[ModelState, ModelState]] = {}
        self._lock = threading.Lock()

    async def base_of(self, client: ClientId, model: ModelState) -> ModelState:
        """Return the model that a client starts from in a training step."""
        if self.one_for_all:
            return model
        return await asyncio.to_thread(self.seen_by, client, Work.TRAIN, model)

    def seen_by(self, client: ClientId, work: Work, model: ModelState) -> ModelState:
        """Return the model for a client's task; a mask of its own takes a while to make."""
        if self.one_for_all or work is not Work.TRAIN:
            return model
        with self._lock:
            known, seen = self._own.get(client, (None, None))
            if seen is None or known is not model:
                seen = self._strategy.client_state(client, work, model)
                self._own[client] = model, seen
            return seen
