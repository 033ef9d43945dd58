"""When each client was last heard from. Kept in memory only, not in the journal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ssfl.server.errors import TooManyCalls
from ssfl.strategies.contract import ClientId

PROGRESS_EVERY_S = 10.0
LOST_AFTER_S = 3 * PROGRESS_EVERY_S
MAX_CALLS = 16  # per client; it needs two, and broken streams linger for some seconds


@dataclass(slots=True)
class Presence:
    """Signs of life of one client."""

    last_seen_s: float
    open_calls: int = 0
    descriptions: int = 0  # open calls in which it describes the model
    description_s: float = 0.0  # time that the newest description may take
    steps_done: int = 0
    steps_all: int = 0
    asked_step: int = 0  # the newest step whose task was sent to it
    asked_s: float = 0.0  # when its first byte was sent
    sent_s: float = 0.0  # when its last byte was sent

    def silent_s(self, now_s: float) -> float:
        """Return the seconds since the last sign of life."""
        return 0.0 if self.open_calls else max(0.0, now_s - self.last_seen_s)


class PresenceTable:
    """The signs of life of every client."""

    def __init__(self) -> None:
        self._presence: dict[ClientId, Presence] = {}

    def heard(self, client: ClientId, now_s: float) -> Presence:
        """Record a sign of life."""
        presence = self.get(client, now_s)
        presence.last_seen_s = now_s
        return presence

    def get(self, client: ClientId, now_s: float) -> Presence:
        """Return a client's presence; a client from before a restart counts as seen now."""
        return self._presence.get(client) or self._presence.setdefault(client, Presence(now_s))

    def look(self, client: ClientId) -> Presence | None:
        """Return a client's presence, if known. Changes nothing: safe on other threads."""
        return self._presence.get(client)

    def excuse(self, seconds: float, now_s: float) -> None:
        """Do not count `seconds` in which this process was suspended as silence of clients."""
        for presence in self._presence.values():
            presence.last_seen_s = min(now_s, presence.last_seen_s + seconds)

    def silent_s(self, client: ClientId, now_s: float) -> float:
        """Return the seconds since a client was last heard from."""
        presence = self._presence.get(client)
        return presence.silent_s(now_s) if presence else 0.0

    def alive(self, client: ClientId, now_s: float) -> bool:
        """Return True if the client has an open call or was heard from within 30 s."""
        presence = self._presence.get(client)
        return presence is not None and presence.silent_s(now_s) < LOST_AFTER_S

    def task_times(
        self, client: ClientId, step: int, began_s: float, now_s: float
    ) -> dict[str, float]:
        """Return when sending a client's task began, when it ended, and now.

        In seconds from `began_s`, the start of the step. If the client was away and downloaded its
        task again from byte 0, the times are those of the second transfer.
        """
        presence = self.get(client, now_s)
        known = presence.asked_step == step
        asked_s, sent_s = (presence.asked_s, presence.sent_s) if known else (began_s, began_s)
        return {
            "asked_s": max(0.0, asked_s - began_s),
            "sent_s": max(0.0, sent_s - began_s),
            "received_s": now_s - began_s,
        }

    @contextmanager
    def call(self, client: ClientId, clock: Callable[[], float]) -> Iterator[Presence]:
        """Keep the client alive during a call; raise TooManyCalls beyond MAX_CALLS."""
        presence = self.heard(client, clock())
        if presence.open_calls >= MAX_CALLS:
            raise TooManyCalls(
                f"{client} has {presence.open_calls} calls open: end some before the next one"
            )
        presence.open_calls += 1
        try:
            yield presence
        finally:
            presence.open_calls -= 1
            presence.last_seen_s = clock()
