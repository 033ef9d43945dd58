"""Writes facts to disk: first the bytes of the ending step, then the journal, with one fsync.

Adds the times and byte totals that the history needs and the pure core does not have.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ssfl.server.accounting.kernel_bytes import Connections
from ssfl.server.accounting.ledger_file import LedgerFile
from ssfl.server.history.counters import ProcessCounters
from ssfl.server.history.timing import StepTimes
from ssfl.server.recovery.recover import OpenedRun
from ssfl.server.run import facts
from ssfl.server.run.apply import apply
from ssfl.server.run.state import RunState
from ssfl.server.storage.disk_full import Disk

Clock = Callable[[], float]
# Facts that end a step, or a period without one.
_ENDS = (*facts.WITH_BYTES, facts.StepStarted, facts.StepVoided)


class FactWriter:
    """The journal and the ledger's file, written on a thread of their own."""

    def __init__(
        self,
        opened: OpenedRun,
        ledger_file: LedgerFile,
        disk: Disk,
        connections: Connections,
        counters: ProcessCounters,
        clock: Clock,
    ) -> None:
        self.times = StepTimes(clock)
        self._journal, self._ledger = opened.journal, opened.ledger
        self._ledger_file = ledger_file
        self._disk = disk
        self._connections = connections
        self._counters = counters
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    @property
    def journal_bytes(self) -> int:
        """The length of the journal."""
        return self._journal.num_bytes

    @property
    def has_unwritten_bytes(self) -> bool:
        """True if the ledger has counted bytes that its file does not have yet."""
        return bool(self._ledger.untaken)

    async def check_ours(self) -> None:
        """Raise Fenced if another coordinator has taken over the run."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._journal.check_ours)

    async def write(
        self, new_facts: list[facts.Fact], state: RunState, num_values: int
    ) -> list[facts.Fact]:
        """Write the facts; return them as they are on disk. `state` is the state before them.

        A fact with byte totals also holds the length of the ledger file at the same moment.
        """
        if any(isinstance(fact, facts.StepCommitted) for fact in new_facts):
            await self._connections.count()
        timed = self._timed(new_facts, state, num_values)
        ends = any(isinstance(fact, _ENDS) for fact in timed)
        detail, totals = (self._ledger.take(), self._ledger.rows()) if ends else ([], [])
        step = state.step
        where = (step.round_number, step.number) if step else ("", "")

        def write() -> list[facts.Fact]:
            length = self._ledger_file.num_bytes
            if detail:
                self._journal.check_ours()
                length = self._disk.retry_while_full(
                    lambda: self._ledger_file.append(detail, state.run_id, *where)
                )
            account = {"ledger": totals, "ledger_bytes": length}
            written = [
                replace(fact, report={**fact.report, **account})
                if isinstance(fact, facts.WITH_BYTES)
                else fact
                for fact in timed
            ]
            self._disk.retry_while_full(lambda: self._append(written))
            return written

        return await asyncio.get_running_loop().run_in_executor(self._thread, write)

    def close(self) -> None:
        """Wait for the thread, then close both files."""
        self._thread.shutdown(wait=True)
        self._journal.close()
        self._ledger_file.close()

    def _append(self, new_facts: list[facts.Fact]) -> None:
        began_s = self._clock()
        self._journal.append([facts.to_json(fact) for fact in new_facts])
        self._counters.syncs.observe(self._clock() - began_s)

    def _timed(
        self, new_facts: list[facts.Fact], state: RunState, num_values: int
    ) -> list[facts.Fact]:
        """Return the facts, with times added to those that commit a step; count them all."""
        timed = list[facts.Fact]()
        for fact in new_facts:
            complete = fact
            match fact:
                case facts.StepStarted():
                    self.times.begin(fact.step)
                case facts.StepClosed():
                    self.times.close()
                case facts.StepCommitted() if state.step:
                    report = {**self.times.report(state.step), **fact.report}
                    complete = replace(fact, report=report)
            self._counters.take(complete, state, self._ledger, num_values)
            state = apply(state, fact)
            timed.append(complete)
        return timed
