"""The broadcast that a client gets: one for all or, where masks are personal, one for each."""

from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import OwnMasks, strategy_for
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.server.broadcast import Broadcast


class Broadcasts:
    """The broadcasts of the newest model."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._strategy = strategy_for(settings)
        self.one_for_all = not isinstance(self._strategy, OwnMasks)
        self._shared: Broadcast | None = None
        self._own: dict[ClientId, Broadcast] = {}  # of clients with a mask of their own

    def shared(self, model: ModelState) -> Broadcast:
        """Return the broadcast of the whole model."""
        if self._shared is None or self._shared.model is not model:
            self._shared = Broadcast(model, self._settings, self._shared)
            self._own.clear()
        return self._shared

    def seen_by(self, client: ClientId, work: Work, model: ModelState) -> Broadcast:
        """Return the broadcast for a client's task; to make a mask of its own takes a while."""
        shared = self.shared(model)
        if self.one_for_all or work is not Work.TRAIN:
            return shared
        if client not in self._own:
            seen = self._strategy.seen_by(client, work, model)
            self._own[client] = Broadcast(seen, self._settings, is_personal=True)
        return self._own[client]
