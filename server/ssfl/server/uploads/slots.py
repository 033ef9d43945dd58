"""Upload slots: a bounded number of concurrent uploads, one per client, in turn.

An upload queues for a slot and holds it while it makes progress. If other uploads are queued, an
upload that has held its slot for `lent_s` yields it at its next chunk, or a quarter of `lent_s`
later if no chunk arrives, and queues again behind them. So an upload waits at most about one
`lent_s` per round of the queue, and a slow link transfers at least one chunk in every turn.

A newer upload of the same client ends the older one, whether that is queued or granted.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

from ssfl.server.errors import SessionEnded, SlotYielded
from ssfl.strategies.contract import ClientId

GRACE = 0.25  # of lent_s, for the chunk in transit
BEATS = 30  # moments within a period at which the messages to waiting clients are sent


def until_beat(period_s: float, now_s: float) -> float:
    """Return the seconds until a waiting client gets its next message, at most `period_s`.

    Clients share BEATS moments in each period: many messages at one moment take half the CPU time
    of as many single ones.
    """
    beat_s = period_s / BEATS
    return (now_s + period_s) // beat_s * beat_s - now_s


class UploadSlot:
    """The slot of one upload from its header to its end: queued, then granted."""

    def __init__(self, client: ClientId) -> None:
        self.client = client
        self.granted_s = 0.0
        self.replaced = asyncio.get_running_loop().create_future()

    def check(self) -> None:
        """Raise SessionEnded if the client has started a newer upload."""
        if self.replaced.done():
            raise SessionEnded("a newer upload of this client has replaced this one")


class UploadSlots:
    """All slots, and the uploads queued for them."""

    def __init__(self, slots: int, lent_s: float, clock: Callable[[], float]) -> None:
        self._free = asyncio.Semaphore(slots)
        self._lent_s = lent_s
        self._clock = clock
        self._newest: dict[ClientId, UploadSlot] = {}
        self.queued = 0
        self.held = 0  # slots in use

    def enter(self, client: ClientId) -> UploadSlot:
        """Begin an upload of a client; end its older upload."""
        older, slot = self._newest.get(client), UploadSlot(client)
        if older is not None and not older.replaced.done():
            older.replaced.set_result(None)
        self._newest[client] = slot
        return slot

    def leave(self, slot: UploadSlot) -> None:
        """Remove an upload that has ended."""
        if self._newest.get(slot.client) is slot:
            del self._newest[slot.client]

    async def granted(self, slot: UploadSlot, every_s: float) -> AsyncGenerator[int, None]:
        """Wait for a slot and take it; yield the number of uploads ahead every `every_s`."""
        self.queued += 1
        waiting = asyncio.ensure_future(self._free.acquire())
        try:
            while True:
                done, _ = await asyncio.wait(
                    {waiting, slot.replaced},
                    timeout=until_beat(every_s, self._clock()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                slot.check()
                if done:
                    break
                yield self.queued - 1
        except BaseException:
            if not waiting.cancel() and not waiting.cancelled():
                self._free.release()
            raise
        finally:
            self.queued -= 1
        slot.granted_s = self._clock()
        self.held += 1

    def give_back(self) -> None:
        """Grant the slot to the next upload in the queue."""
        self.held -= 1
        self._free.release()

    def check(self, slot: UploadSlot, *, between_chunks: bool) -> None:
        """Raise SessionEnded or SlotYielded if the upload must give up its slot."""
        slot.check()
        lent_s = self._lent_s * (1 if between_chunks else 1 + GRACE)
        if self.queued and self._clock() - slot.granted_s >= lent_s:
            raise SlotYielded(
                f"other uploads wait, and this one has held a slot for {self._lent_s:g} s: ask for "
                "it again; the bytes that arrived are kept"
            )
