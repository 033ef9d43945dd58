"""Fault injection: performs the episodes of a plan."""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from simulation.agents import Agent
from simulation.checker import Violation
from simulation.faults import mischief
from simulation.network import NETWORK_S
from simulation.plan import Episode
from ssfl.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from simulation.harness import World


DISK_S = 0.005  # longest job on a disk that is neither slow nor full


class Fate:
    """Injects faults into a world."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def happens(self, episode: Episode) -> None:
        """Inject the fault of an episode."""
        site = self._world.rng.choice(self._world.sites)
        agent, _ = self._world.agents.get(site.name, (None, None))
        connection = self._world.network.connection(site.name)
        until = self._world.loop.call_later
        self._world.say("world", f"{episode.kind} ({site.name})")
        match episode.kind:
            case "cut":
                if connection:
                    connection.snap()
            case "silence":
                if connection:
                    connection.hush()
            case "partition":
                lonely = self._world.rng.sample(
                    self._world.sites, self._world.rng.randint(1, len(self._world.sites))
                )
                for one in lonely:
                    self._world.network.close(one.name)
                    until(episode.for_s, self._world.network.closed.discard, one.name)
            case "client crash":
                self._world.kill_client(site.name)
                until(episode.for_s, self._world.start_client, site)
            case "client leaves":
                if agent and agent.caller.run_id:
                    self._world.agents[site.name][1].spawn(self._leaves(agent, episode.for_s))
            case "coordinator crash":
                self._world.kill_coordinator("is killed")
            case "second coordinator":
                if self._world.coordinator and self._world.network.handlers:
                    self._world.is_rivalled.set()
            case "pause":
                self._world.operator.process.spawn(self._pauses(episode.for_s))
            case "full disk":
                self.fill(full=True)
                until(episode.for_s, self._mend, "room")
            case "slow disk":
                self._world.disk_s = self._world.rng.choice([0.5, 3.0])
                until(episode.for_s, self._mend, "disk")
            case "slow network":
                self._world.network.delay_s = self._world.rng.choice([0.3, 2.0])
                until(episode.for_s, self._mend, "network")
            case "clock jump":
                self._world.loop.now_s += self._world.rng.choice([30, 300, 5000])
            case "stale":
                if agent:
                    agent.before_training = partial(mischief, agent, "stale")
            case kind:
                if agent:
                    self._world.agents[site.name][1].spawn(self._mischief(agent, kind))

    def fill(self, *, full: bool) -> None:
        self._world.is_full = full
        for process in (self._world.coordinator, *self._world.rivals):
            if process is not None:
                process.may_pause = full

    def _mend(self, what: str) -> None:
        if what == "room":
            self.fill(full=False)
        elif what == "disk":
            self._world.disk_s = DISK_S
        else:
            self._world.network.delay_s = NETWORK_S

    async def _mischief(self, agent: Agent, kind: str) -> None:
        try:
            await mischief(agent, kind)
        except Violation as error:
            self._world.fail(error)

    async def _pauses(self, for_s: float) -> None:
        try:
            await self._world.operator.pauses(for_s)
        except Violation as error:
            self._world.fail(error)

    async def _leaves(self, agent: Agent, for_s: float) -> None:
        """Let a client leave, stop, and return later."""
        name = agent.site.name
        try:
            with suppress(Exception):
                await agent.leave(pb.LEAVE_REASON_STOPPING)
        finally:
            self._world.loop.call_later(for_s, self._world.start_client, agent.site)
            self._world.kill_client(name)
