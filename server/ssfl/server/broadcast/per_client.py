"""The broadcast for a client: shared by all or, with personal masks, one per client."""

import threading
from collections.abc import Callable, Iterable

from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.server.broadcast.payloads import Broadcast
from ssfl.server.uploads.client_models import ClientModels
from ssfl.strategies.contract import ClientId, Work


class Broadcasts:
    """The broadcasts of the newest model."""

    def __init__(
        self,
        settings: RunSettings,
        earlier: Callable[[], Iterable[ModelState]] = tuple,
        models: ClientModels | None = None,
    ) -> None:
        """`earlier` returns the models that clients may hold at the start, oldest first."""
        self._settings = settings
        self._earlier = earlier
        self._models = models or ClientModels(settings)
        self.one_for_all = self._models.one_for_all
        self._shared: Broadcast | None = None
        self._own: dict[ClientId, Broadcast] = {}  # of clients with a personal mask
        self._lock = threading.Lock()  # seen_by runs on several threads

    def shared(self, model: ModelState) -> Broadcast:
        """Return the broadcast of the whole model."""
        if self._shared is None:  # after a restart: downloads of the earlier process resume
            for before in self._earlier():
                if before is not model:
                    self._shared = Broadcast(before, self._settings, self._shared)
        if self._shared is None or self._shared.model is not model:
            vectors = self._models.strategy.vectors(model)
            self._shared = Broadcast(model, self._settings, self._shared, vectors=vectors)
        return self._shared

    def sent(self) -> list[ModelState]:
        """Return the newest shared model, after the earlier ones that clients may hold."""
        return self._shared.models() if self._shared else list(self._earlier())

    def broadcast_for(self, client: ClientId, work: Work, model: ModelState) -> Broadcast:
        """Return the broadcast for a client's task. Slow for a new personal mask."""
        with self._lock:
            seen = self._models.seen_by(client, work, model)
            if seen is model:
                return self.shared(model)
            broadcast = self._own.get(client)
            if broadcast is None or broadcast.model is not seen:
                strategy = self._models.strategy
                broadcast = Broadcast(
                    seen, self._settings, is_from_seed=strategy.has_seeded_masks,
                    vectors=strategy.vectors(seen),
                )  # fmt: skip
                self._own[client] = broadcast
            return broadcast
