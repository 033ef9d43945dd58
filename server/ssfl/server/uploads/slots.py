"""Upload slots: a few uploads at once, one per client, in turn.

An upload queues for a slot and has it for as long as it makes progress. Slots are lent, not
owned: while others queue, an upload that has had its slot for `lent_s` gives it back at its next
chunk, or a quarter of `lent_s` later if none comes, and queues again behind them. So nobody waits
longer than about one `lent_s` for each round of the queue, whatever the others do; and a link
that is merely slow gets on by at least one chunk in every turn.

Of one client, the newest upload wins, queued or not: the older one ends.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

from ssfl.method.strategies.contract import ClientId
from ssfl.server.errors import SessionEnded, SlotYielded

GRACE = 0.25  # of lent_s: for the chunk that is on its way


class UploadSlot:
    """The place of one upload, from its header to its end: queued, then granted."""

    def __init__(self, client: ClientId) -> None:
        self.client = client
        self.granted_s = 0.0
        self.replaced = asyncio.get_running_loop().create_future()

    def check(self) -> None:
        """Raise SessionEnded if a newer upload of the client has come."""
        if self.replaced.done():
            raise SessionEnded("a newer upload of this client has replaced this one")


class UploadSlots:
    """All slots, and the uploads that queue for one."""

    def __init__(self, slots: int, lent_s: float, clock: Callable[[], float]) -> None:
        self._free = asyncio.Semaphore(slots)
        self._lent_s = lent_s
        self._clock = clock
        self._newest: dict[ClientId, UploadSlot] = {}
        self.queued = 0
        self.held = 0  # slots that are lent now

    def enter(self, client: ClientId) -> UploadSlot:
        """Begin an upload of a client; an older one ends."""
        older, slot = self._newest.get(client), UploadSlot(client)
        if older is not None and not older.replaced.done():
            older.replaced.set_result(None)
        self._newest[client] = slot
        return slot

    def leave(self, slot: UploadSlot) -> None:
        """Forget an upload that is over."""
        if self._newest.get(slot.client) is slot:
            del self._newest[slot.client]

    async def granted(self, slot: UploadSlot, every_s: float) -> AsyncGenerator[int, None]:
        """Wait for a slot; yield how many are ahead every so often. Then the slot is taken."""
        self.queued += 1
        waiting = asyncio.ensure_future(self._free.acquire())
        try:
            while True:
                done, _ = await asyncio.wait(
                    {waiting, slot.replaced},
                    timeout=every_s,
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
        """Let the next one have the slot."""
        self.held -= 1
        self._free.release()

    def check(self, slot: UploadSlot, *, between_chunks: bool) -> None:
        """Raise SessionEnded or SlotYielded if the upload has to make room."""
        slot.check()
        lent_s = self._lent_s * (1 if between_chunks else 1 + GRACE)
        if self.queued and self._clock() - slot.granted_s >= lent_s:
            raise SlotYielded(
                f"others wait, and this upload has had its slot for {self._lent_s:g} s: ask for "
                "it again, what has arrived is kept"
            )
