"""Who was heard of when: what is known of clients beyond the journal. Lost with the process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ssfl.method.strategies.contract import ClientId
from ssfl.server.errors import TooManyCalls

PROGRESS_EVERY_S = 10.0
LOST_AFTER_S = 3 * PROGRESS_EVERY_S
MAX_CALLS = 16  # streams of one client; it needs two, and broken ones linger for some seconds


@dataclass(slots=True)
class Presence:
    """One client, as far as it was heard of."""

    last_seen_s: float
    open_calls: int = 0
    steps_done: int = 0
    steps_all: int = 0
    asked_step: int = 0  # the newest step whose task went out to it
    asked_s: float = 0.0  # from its first byte on
    sent_s: float = 0.0  # when all of that task had been sent

    def silent_s(self, now_s: float) -> float:
        """Return for how long nothing was heard."""
        return 0.0 if self.open_calls else max(0.0, now_s - self.last_seen_s)


class PresenceTable:
    """The signs of life of every client."""

    def __init__(self) -> None:
        self._presence: dict[ClientId, Presence] = {}

    def heard(self, client: ClientId, now_s: float) -> Presence:
        """Note a sign of life."""
        presence = self._presence.setdefault(client, Presence(now_s))
        presence.last_seen_s = now_s
        return presence

    def get(self, client: ClientId, now_s: float) -> Presence:
        """Return what is known; a client of an earlier process counts as seen just now."""
        return self._presence.setdefault(client, Presence(now_s))

    def look(self, client: ClientId) -> Presence | None:
        """Return what is known, if anything is; for other threads: nothing is changed."""
        return self._presence.get(client)

    def excuse(self, seconds: float, now_s: float) -> None:
        """The coordinator itself stood still for so long: nobody could be heard meanwhile."""
        for presence in self._presence.values():
            presence.last_seen_s = min(now_s, presence.last_seen_s + seconds)

    def silent_s(self, client: ClientId, now_s: float) -> float:
        """Return how long nothing was heard of a client."""
        presence = self._presence.get(client)
        return presence.silent_s(now_s) if presence else 0.0

    def alive(self, client: ClientId, now_s: float) -> bool:
        """Tell whether the client has a call open or was heard of within 30 s."""
        presence = self._presence.get(client)
        if presence is None:
            return False
        return presence.open_calls > 0 or now_s - presence.last_seen_s < LOST_AFTER_S

    def task_times(
        self, client: ClientId, step: int, began_s: float, now_s: float
    ) -> dict[str, float]:
        """Return when a client's task began to be sent, when it was sent, and now.

        In seconds from `began_s`, the start of the step. If the client was away and took its task
        again from its first byte, the times are those of the second transfer.
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
        """Keep the client alive while a call of it is open; TooManyCalls beyond MAX_CALLS."""
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
