"""The broadcast that a client gets: one for all or, where masks are personal, one for each."""

import threading
from collections.abc import Callable, Iterable

from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import OwnMasks, strategy_for
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server.broadcast.payloads import Broadcast


class Broadcasts:
    """The broadcasts of the newest model."""

    def __init__(
        self, settings: RunSettings, earlier: Callable[[], Iterable[ModelState]] = tuple
    ) -> None:
        """`earlier` are the models, oldest first, that came before the first one asked for."""
        self._settings = settings
        self._earlier = earlier
        self._strategy = strategy_for(settings)
        self.one_for_all = not isinstance(self._strategy, OwnMasks)
        self._shared: Broadcast | None = None
        # Of clients with a mask of their own: which model, and its part that the client sees.
        self._own: dict[ClientId, tuple[ModelState, Broadcast]] = {}
        self._lock = threading.Lock()  # broadcast_for runs on several threads

    def shared(self, model: ModelState) -> Broadcast:
        """Return the broadcast of the whole model."""
        if self._shared is None:  # of an earlier process: its downloads go on where they were
            for before in self._earlier():
                self._shared = Broadcast(before, self._settings, self._shared)
        if self._shared is None or self._shared.model is not model:
            self._shared = Broadcast(model, self._settings, self._shared)
        return self._shared

    def broadcast_for(self, client: ClientId, work: Work, model: ModelState) -> Broadcast:
        """Return the broadcast for a client's task; to make a mask of its own takes a while."""
        with self._lock:
            if self.one_for_all or work is not Work.TRAIN:
                return self.shared(model)
            known, broadcast = self._own.get(client, (None, None))
            if broadcast is None or known is not model:
                seen = self._strategy.client_state(client, work, model)
                broadcast = Broadcast(seen, self._settings, is_personal=True)
                self._own[client] = model, broadcast
            return broadcast
