"""An operator that pauses and resumes the run, even if the coordinator dies in between."""

import asyncio
from typing import TYPE_CHECKING

from simulation.loop import Process
from ssfl.server.errors import RunOver
from ssfl.server.rpc.admin import AdminService
from ssfl.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from simulation.harness import World

AGAIN_S = 1.0


class Operator:
    """Calls the running coordinator, and retries until one has answered."""

    def __init__(self, world: "World") -> None:
        self.process = Process("operator")
        self._world = world
        self._asked: tuple[Process, AdminService] | None = None

    def finds(self, process: Process, admin: AdminService) -> None:
        """A coordinator serves its admin port."""
        self._asked = process, admin

    async def pauses(self, for_s: float) -> None:
        """Pause the run for a while; what was acknowledged must be in the journal."""
        if await self._asks(pause=True):
            self._world.checker.paused(is_paused=True)
            self._world.say("operator", "has paused the run")
        await asyncio.sleep(for_s)
        if await self._asks(pause=False):
            self._world.checker.paused(is_paused=False)
            self._world.say("operator", "has resumed the run")

    async def _asks(self, *, pause: bool) -> bool:
        """Retry until there is an answer; return True if the run is not over."""
        while True:
            if self._asked is not None and self._asked[0].alive:
                process, admin = self._asked
                asking = process.spawn(_call(admin, pause=pause))
                await asyncio.wait({asking})
                if process.alive and not asking.cancelled():
                    return not isinstance(asking.exception(), RunOver)
            await asyncio.sleep(AGAIN_S)


async def _call(admin: AdminService, *, pause: bool) -> None:
    if pause:
        await admin.PauseRun(pb.PauseRunRequest(), None)
    else:
        await admin.ResumeRun(pb.ResumeRunRequest(), None)
