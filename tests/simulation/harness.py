"""One simulated federation: the real coordinator, simulated clients and faults.

A seed decides everything: the same seed gives the same events in the same order.
"""

import asyncio
import errno
import gc
import logging
import os
import random
import secrets
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from failpoint_names import MEMORY_POINTS
from simulation.agents import Agent
from simulation.checker import Checker, Violation
from simulation.disk import Disk
from simulation.fault_choice import DISK_S, Fate
from simulation.loop import CURRENT, START_S, Crash, Process, VirtualLoop, pause
from simulation.network import NETWORK_S, UPLOADS, Call, Failed, Handlers, Network
from simulation.operators import Operator
from simulation.plan import Plan
from simulation.site import Site
from ssfl.durable import failpoints
from ssfl.server import main
from ssfl.server.config import CoordinatorConfig
from ssfl.server.errors import Fenced
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.run_loop import first_of
from ssfl.server.loop.ticker import tick
from ssfl.server.report.outputs import Accounts
from ssfl.server.rpc.admin import AdminService
from ssfl.server.rpc.interceptors import StatusInterceptor
from ssfl.server.rpc.listen import service_for
from ssfl.server.rpc.session_numbers import SessionNumbers
from ssfl.server.storage.disk_full import DiskSpaceWaiter, is_full
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.strategies.contract import ClientId
from ssfl.v1 import coordinator_pb2 as pb

SHM = Path("/dev/shm")  # memory file system, if the machine has one
MAX_STRIKES = 6  # in addition to the planned one
CLIENT_CHANCE = 0.1  # of a crash of a client when it stores or promotes what it keeps
COORDINATOR = "coordinator"  # the name of its process
# Failpoints of a full disk: before a write, during it, or on sync.
NEEDS_ROOM = (".append", ".torn", ".written", "spool.chunk", "spool.chunk-written", ".verified")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    plan: Plan
    digest: str  # of the final model
    trace: tuple[str, ...]
    strikes: Counter[str]  # crashes by failpoint
    passed: Counter[str]
    seconds: float  # virtual
    violation: str = ""
    compared: bool = False  # with the undisturbed run

    def but(self, violation: str, *, compared: bool = False) -> "Outcome":
        return replace(self, violation=violation, compared=compared)


def simulate(plan: Plan) -> Outcome:
    """Run a plan to its end; the outcome contains the violation, if any."""
    folder = Path(tempfile.mkdtemp(prefix="ssfl-", dir=SHM if SHM.is_dir() else None))
    loop = VirtualLoop()
    world = World(plan, folder, loop)
    try:
        with _watched(world):
            loop.run_until_complete(world.run())
    except AssertionError as error:
        world.fail(error)
    finally:
        loop.close()
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(
        plan,
        world.checker.model.base_digest,
        tuple(world.trace),
        world.strikes,
        world.passed,
        loop.time() - START_S,
        world.violation,
    )


@contextmanager
def _watched(world: "World") -> Iterator[None]:
    """Hook every fsync and failpoint, and make random names deterministic.

    Garbage collection is disabled, since it would take longer than the rest of the simulation.
    """
    fsync, token_hex, level = os.fsync, secrets.token_hex, logging.root.manager.disable
    collect, token_bytes = gc.collect, secrets.token_bytes
    gc.collect = lambda _generation=2: 0  # type: ignore[assignment]
    os.fsync = world.synced  # type: ignore[assignment]
    secrets.token_hex = world.token_hex  # type: ignore[assignment]
    secrets.token_bytes = world.token_bytes  # type: ignore[assignment]
    failpoints.install_hook(world.passes)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        os.fsync, secrets.token_hex, gc.collect = fsync, token_hex, collect
        secrets.token_bytes = token_bytes
        failpoints.install_hook(None)
        logging.disable(level)


class World:
    """The environment of the coordinator."""

    def __init__(self, plan: Plan, folder: Path, loop: VirtualLoop) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.initial_is_sent = plan.initial_is_sent
        self.rng = random.Random(f"fate {plan.seed}")
        self.checker = Checker(plan.settings, sent=plan.initial_is_sent)
        self.network = Network(loop, self.rng, self)
        self.fate = Fate(self)
        self.operator = Operator(self)
        self.trace: list[str] = []
        self.strikes: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self.violation = ""
        self.loop = loop
        self._folder = folder
        self._state = folder / "state-0"
        self._state.mkdir()
        self._names = 0
        self._over = asyncio.Event()
        self.is_calm = not plan.trouble_s
        self.disk_s = DISK_S  # longest disk job
        self._disk = Disk(self._state, folder / "memory-0")
        self.is_full = False
        self.coordinator: Process | None = None
        self.is_rivalled = asyncio.Event()  # a second coordinator starts
        self._files: tuple[Any, ...] = ()  # open files of the coordinator
        self.sites = [Site.of(one, folder / "clients") for one in plan.clients]
        self.agents: dict[str, tuple[Agent, Process]] = {}
        self.rivals: list[Process] = []
        self._answered: dict[str, int] = {}  # the newest session that a client was given
        self._counts: dict[tuple[str, int], int] = {}  # client, number on the wire: its count

    # -- what the agents use

    def call(self, client: str, host: str, method: str) -> Call:
        return self.network.call(client, host, method)

    def say(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.loop.time() - START_S:9.3f} {who:<11} {what}")

    def session_count(self, client: str, number: int) -> int:
        """Return the journal's count of a session that a client was given; 0: of none."""
        return self._counts.get((client, number), 0)

    def work_s(self) -> float:
        """Return how long a client works on a task."""
        if not self.is_calm and self.rng.random() < 0.08:
            return self.rng.uniform(20, 150)
        return self.rng.uniform(0.2, 4)

    def fail(self, error: BaseException) -> None:
        """Record the first broken promise and end the simulation."""
        if not self.violation:
            self.violation = str(error) or repr(error)
            if not isinstance(error, Violation):
                self.violation = "".join(traceback.format_exception(error))
            self.say("CHECKER", self.violation)
        self._over.set()

    # -- the hooks

    def token_hex(self, count: int = 16) -> str:
        self._names += 1
        return f"{self._names:0{2 * count}x}"

    def token_bytes(self, count: int = 32) -> bytes:
        return bytes.fromhex(self.token_hex(count))

    def synced(self, descriptor: int) -> None:
        process = CURRENT.get()
        if process is not None and process.alive and process.name == COORDINATOR:
            self._disk.synced(descriptor)

    def passes(self, name: str) -> None:
        """Pass a failpoint; the process may be killed here."""
        process = CURRENT.get()
        if process is None or not process.alive:
            return
        if process.name != COORDINATOR:
            self._client_passes(process, name)
            return
        self.passed[name] += 1
        if name == "journal.synced":
            self._look()
        if self.is_full and name.endswith(NEEDS_ROOM):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        if process is not self.coordinator:
            return
        aimed = name == self.plan.aim and self.passed[name] == self.plan.passage
        chance = 0.0 if self.is_calm or self.strikes.total() > MAX_STRIKES else self.plan.chance
        if aimed or (chance and self.rng.random() < chance):
            self.strikes[name] += 1
            self.kill_coordinator(f"dies at {name}")
            raise Crash(name)

    def _client_passes(self, process: Process, name: str) -> None:
        """Pass a failpoint of what a client keeps; the client may be killed here."""
        if name in MEMORY_POINTS and not self.is_calm and self.rng.random() < CLIENT_CHANCE:
            self.say(process.name, f"dies at {name}")
            self.strikes[name] += 1
            (site,) = (site for site in self.sites if site.name == process.name)
            self.kill_client(site.name)
            self.loop.call_later(self.rng.uniform(0.1, 20), self.start_client, site)
            raise Crash(name)

    def _look(self) -> None:
        """Check the journal as it is now."""
        try:
            for line in self.checker.synced(self._state / "journal"):
                self.say("journal", line)
        except Violation as error:
            self.fail(error)

    # -- the network's watcher

    def arrives(self, call: Call, request: Any) -> None:
        if call.method != "Join":
            newest = self._answered.get(request.caller.client_id, 0)
            caller = request.caller
            call.is_stale = self.session_count(caller.client_id, caller.session) < newest

    def responds(self, call: Call, response: bytes) -> None:
        if call.is_stale:
            self.fail(Violation(f"{call.connection.client}: an old session was served"))
        if call.method == "Join":
            answer = pb.JoinResponse.FromString(response)
            self._answered[call.connection.client] = self._count(call.connection.client, answer)
        if call.method in UPLOADS:
            part = getattr(pb, f"{call.method}Response").FromString(response).WhichOneof("part")
            call.holds_grant = part == "grant"
            if self.network.grants(call.served_by) > self.plan.upload_slots:
                self.fail(Violation(f"more than {self.plan.upload_slots} uploads hold a grant"))

    def _count(self, client: str, answer: pb.JoinResponse) -> int:
        """Return the journal's count of a session that a client is given."""
        numbers = SessionNumbers(StateDirectory(self._state).session_key.read_bytes())
        for count in range(self.checker.sessions.get(client, 0), 0, -1):
            if numbers.is_signed(answer.session, answer.run_id, ClientId(client), count):
                self._counts[client, answer.session] = count
                return count
        self.fail(Violation(f"{client}'s session is not in the journal"))
        return 0

    def breaks(self, call: Call, error: BaseException) -> None:
        self.say(call.connection.client, f"{call.method} fails")
        self.fail(error)

    def ends(self, call: Call, status: Failed | None, cause: BaseException | None) -> None:
        if status is not None:
            self.say(call.connection.client, f"{call.method} is refused: {status}")
            if status.code() is grpc.StatusCode.INTERNAL:
                self.fail(cause or Violation(f"{call.method} failed"))

    # -- the coordinator

    async def _coordinator_lives(self) -> None:
        """Start the coordinator, and restart it whenever it dies."""
        for number in range(1, 1000):
            process = self.coordinator = Process(COORDINATOR, self._disk_delay)
            process.may_pause = self.is_full
            serving = process.spawn(self._serve(process))
            await self._ends_or_is_rivalled(serving, process)
            if self.is_rivalled.is_set():
                self.is_rivalled.clear()
                self.say("coordinator", "has a rival that starts on the same state")
                continue
            if process.alive and not self._may_end(serving.exception()):
                self.fail(serving.exception() or Violation("the coordinator ended by itself"))
                return
            if process.alive:
                self.kill_coordinator(f"ends: {serving.exception()}")
            for _ in range(100):  # let the tasks of the dead process end
                await asyncio.sleep(0)
            for file in self._files:
                file.close()
            await asyncio.sleep(self.rng.uniform(0.1, 2 if self.is_calm else 20))
            self._disk = Disk(self._state, self._folder / f"memory-{number}")
            self.say("coordinator", "starts again")

    async def _ends_or_is_rivalled(self, serving: asyncio.Task[Any], process: Process) -> None:
        rivalled = asyncio.ensure_future(self.is_rivalled.wait())
        await asyncio.wait({serving, rivalled}, return_when=asyncio.FIRST_COMPLETED)
        rivalled.cancel()
        if self.is_rivalled.is_set():
            self.rivals.append(process)
            serving.add_done_callback(lambda task: self._rival_ends(process, task))

    def _rival_ends(self, process: Process, serving: asyncio.Task[Any]) -> None:
        """Check that the older of two coordinators ended only because it was fenced or killed."""
        error = None if serving.cancelled() else serving.exception()
        if process.alive and not isinstance(error, Fenced) and not self._may_end(error):
            self.fail(error or Violation("a rival ended by itself"))
        self.say("coordinator", f"(the elder one) ends: {error}")
        process.kill()

    def _may_end(self, error: BaseException | None) -> bool:
        """Return True if an error kept the coordinator from starting and is not its fault."""
        return isinstance(error, OSError) and is_full(error)

    async def _serve(self, process: Process) -> None:
        """Do what main._serve does, without sockets and signals."""
        config = CoordinatorConfig(
            state_dir=self._state,
            out_dir=self._folder / "out",
            upload_slots=self.plan.upload_slots,
            run=self.settings,
        )
        opened = main._read(config)
        coordinator = main._start(
            config, opened, Accounts(config.out_dir), self.loop.time, DiskSpaceWaiter(pause)
        )
        self._files += (opened.journal, coordinator.ledger_file)
        self._look()
        service = service_for(config, coordinator)
        jobs = [asyncio.ensure_future(coordinator.run.serve())]
        await first_of([*jobs, asyncio.ensure_future(main._take_up(coordinator, None))])
        self.network.handlers = Handlers(service, process, self._status(coordinator))
        self.operator.finds(process, AdminService(coordinator, "out"))
        jobs.append(asyncio.ensure_future(tick(coordinator)))
        await first_of(jobs)

    def _status(self, coordinator: Coordinator) -> StatusInterceptor:
        return StatusInterceptor(coordinator.refusals, self.settings.no_progress_s)

    def _disk_delay(self) -> tuple[float, float]:
        return self.rng.uniform(0, self.disk_s), self.rng.uniform(0, self.disk_s)

    def kill_coordinator(self, why: str) -> None:
        process = self.coordinator
        if process is None or not process.alive:
            return
        power_cut = self.rng.random() < 0.6
        self.say("coordinator", why + (", and the power is cut" if power_cut else ""))
        after = self._folder / f"state-{self.token_hex(2)}"
        self._disk.image(after, self.rng, power_cut=power_cut)
        self._state = after
        for one in (process, *self.rivals):  # all on this machine
            one.kill()
        self.network.lose_coordinator(silent=power_cut and self.rng.random() < 0.3)

    # -- the clients

    def start_client(self, site: Site) -> None:
        if site.has_final_model or site.name in self.agents:
            return
        agent, process = Agent(site, self), Process(site.name)
        self.agents[site.name] = agent, process
        process.spawn(self._client_lives(agent, process))

    async def _client_lives(self, agent: Agent, process: Process) -> None:
        try:
            await agent.run()
        except Exception as error:  # noqa: BLE001 -- an honest client is never refused
            if process.alive:
                self.fail(error)
            return
        del self.agents[agent.site.name]
        self.say(agent.site.name, "is done")
        if all(site.has_final_model for site in self.sites):
            self._over.set()

    def kill_client(self, name: str) -> None:
        found = self.agents.pop(name, None)
        if found is not None:
            found[1].kill()
            connection = self.network.connection(name)
            if connection is not None:
                (connection.hush if self.rng.random() < 0.3 else connection.snap)()
                connection.is_broken = True  # the next process uses a new connection

    # -- the run

    async def run(self) -> None:
        """Run the simulation, then make the final checks."""
        here = Process("world")
        here.spawn(self._coordinator_lives())
        for site, planned in zip(self.sites, self.plan.clients, strict=True):
            self.loop.call_later(planned.begins_s, self.start_client, site)
        for episode in self.plan.episodes:
            self.loop.call_later(episode.at_s, self.fate.happens, episode)
        self.loop.call_later(self.plan.trouble_s, self._calm_down)
        try:
            await self._over.wait()
            if not self.violation:
                self._look()
                await self._see_the_end()
                self.checker.end()
        finally:
            agents = [process for _, process in self.agents.values()]
            for process in (here, self.operator.process, self.coordinator, *self.rivals, *agents):
                if process is not None:
                    process.kill()
            await asyncio.sleep(5)

    async def _see_the_end(self) -> None:
        missing = [site.name for site in self.sites if not site.has_final_model]
        if missing:
            raise Violation(
                f"no end {self.plan.bound_s:g} s after the trouble: {', '.join(missing)} wait"
            )
        await asyncio.sleep(2 * self.settings.no_progress_s + 60)  # every call has given up by now
        if self.network.grants():
            raise Violation("an upload holds its grant for ever")

    def _calm_down(self) -> None:
        self.is_calm = True
        self.disk_s, self.network.delay_s = DISK_S, NETWORK_S
        self.fate.fill(full=False)
        self.network.closed.clear()
        for site in self.sites:
            self.start_client(site)
        self.loop.call_later(self.plan.bound_s, self._over.set)
        self.say("world", "the trouble is over")


def calm(plan: Plan) -> Plan:
    """Return the same federation without trouble."""
    return replace(plan, aim="", passage=0, episodes=(), trouble_s=0.0, chance=0.0)
