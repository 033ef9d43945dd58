"""The model as each client sees it: the run's model or, with personal masks, the client's part.

Downloads are encoded from this model. It is also the base that an update names and is decoded
against.
"""

import asyncio
import threading

from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId, UploadParts, Work
from ssfl.strategies.registry import strategy_for


class ClientModels:
    """Views of the newest model. Safe to call from any thread."""

    def __init__(self, settings: RunSettings) -> None:
        self.strategy = strategy_for(settings)
        self.one_for_all = not self.strategy.has_own_masks
        # For clients with a personal mask: the run's model, and the client's view of it.
        self._own: dict[ClientId, tuple[ModelState, ModelState]] = {}
        self._lock = threading.Lock()

    def parts(self, task: str, manifest: Manifest) -> UploadParts:
        """Return the parts of an update in a training step."""
        return self.strategy.parts(task, manifest)

    async def base_of(self, client: ClientId, model: ModelState) -> ModelState:
        """Return the model that a client starts from in a training step."""
        if self.one_for_all:
            return model
        return await asyncio.to_thread(self.seen_by, client, Work.TRAIN, model)

    def seen_by(self, client: ClientId, work: Work, model: ModelState) -> ModelState:
        """Return the model for a client's task. Slow for a new personal mask."""
        if self.one_for_all or work is not Work.TRAIN:
            return model
        with self._lock:
            known, seen = self._own.get(client, (None, None))
            if seen is None or known is not model:
                seen = self.strategy.client_state(client, work, model)
                self._own[client] = model, seen
            return seen
