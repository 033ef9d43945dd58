"""`ssfl demo --crash`: the same federation twice, undisturbed and with crashes, compared.

SIGKILL ends the coordinator while clients score, a client in the middle of an upload (by a
failpoint), and the coordinator in the middle of a round. One client is suspended until the
coordinator has accepted the uploads of others. The state after a crash is read from the journal.
"""

import math
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from ssfl.client.local_state import LocalState
from ssfl.codec.chunks import MAX_CHUNK_BYTES
from ssfl.method.density import parse_sparsity
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.server.recovery.state_dir_check import read_state
from ssfl.server.run.facts import Fact, RunFinished, StepClosed, StepStarted, UploadAccepted
from ssfl.server.storage.spool import partial_bytes
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.strategies.contract import ClientId, Work
from ssfl.tools.local.local_run import LocalRunResult, federate
from ssfl.tools.local.processes import COORDINATOR, LocalFederation

CLIENTS, ROUNDS, MIN_ROUNDS = 4, 5, 3
MAX_SPARSITY = "0.97"
WAIT_S = 120.0
POLL_S = 0.01
VALUES_SENT = 430_000  # kept values of an update, so that it takes more than two chunks
MID_UPLOAD = "client.chunk=kill@3"
TRIES = 3

Found = TypeVar("Found")


def width_for(sparsity: str) -> int:
    """Return the width of an mlp whose updates are sent in several chunks."""
    return math.isqrt(int(VALUES_SENT / (1 - parse_sparsity(sparsity))))


def crash(screen: Console, out: Path, shards: Path, names: list[str], flags: list[str]) -> ExitCode:
    """Run both federations and compare their final models."""

    def run(name: str, disturb: Callable[[LocalFederation], None] | None = None) -> LocalRunResult:
        federation = LocalFederation(out / name, shards, flags, names)
        return federate(federation, screen, name, disturb)

    undisturbed = run("undisturbed")
    crashes = CrashSchedule(screen)
    disturbed = run("disturbed", crashes.run)
    digests = [result.status.model_digest.hex() for result in (undisturbed, disturbed)]
    problems = crashes.problems()
    for problem in problems:
        screen.print(f"wrong: {problem}", soft_wrap=True)
    for name, digest in zip(("undisturbed", "disturbed"), digests, strict=True):
        screen.print(f"{name:<12}  {digest}", soft_wrap=True)
    same = digests[0] == digests[1]
    screen.print(f"same model: {'yes' if same else 'no'}")
    screen.print(f"`ssfl audit {out}/disturbed/state` recomputes the model from the journal")
    return ExitCode.DONE if same and not problems else ExitCode.BUG


class CrashSchedule:
    """Kills and restarts processes of a federation, and prints each crash."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._began_s = time.monotonic()
        self._federation: LocalFederation
        self._sent_twice = 0
        self._missed: list[str] = []

    def run(self, federation: LocalFederation) -> None:
        """Cause every crash, in the order of a run."""
        self._federation = federation
        self._began_s = time.monotonic()
        started = self._wait(lambda: self._newest(Work.SCORE), "scoring begins")
        accepted = self._kill_coordinator(started, "scoring", "scores")
        victim = accepted[0] if accepted else ClientId(federation.clients[0])
        federation.kill(victim)
        self._print(f"scoring: {victim} killed as well, while it waits for the mask")
        federation.restart(victim, MID_UPLOAD)
        self._await_killed_uploader(victim)
        while not self._is_over():
            round_open = self._wait(
                lambda: self._newest(Work.TRAIN) or self._is_over(), "a round begins"
            )
            if isinstance(round_open, StepStarted) and self._kill_coordinator(
                round_open, f"round {round_open.round_number}", "updates"
            ):
                return
        self._missed.append("no crash in the middle of a round: it ended too early")

    def problems(self) -> list[str]:
        """Return what went wrong, such as reports that counted twice; if nothing did, print so."""
        reports = Counter(
            (fact.step, fact.client) for fact in self._facts() if isinstance(fact, UploadAccepted)
        )
        problems = [f"{client} counted twice in step {step}" for step, client in _twice(reports)]
        trained = Counter(
            (client, found[1])
            for client in self._federation.clients
            for line in self._federation.log_of(client)
            if (found := re.search(r" trained  .*\bround=(\d+)", line))
        )
        problems += [f"{client} trained round {number} twice" for client, number in _twice(trained)]
        problems += self._missed
        if self._sent_twice > MAX_CHUNK_BYTES:
            problems.append(f"{self._sent_twice:,} bytes were sent twice")
        if not problems:
            text = f"{len(reports)} reports counted, each once; {len(trained)} updates trained"
            self._screen.print(f"{text}, none twice", soft_wrap=True)
        return problems

    def _kill_coordinator(self, started: StepStarted, where: str, what: str) -> list[ClientId]:
        """Kill the coordinator when some clients have reported; return them, or [] if too late."""
        federation, suspended = self._federation, self._federation.clients[-1]
        federation.send_signal(suspended, signal.SIGSTOP)
        step, enough = started.step, max(1, len(started.cohort) - 2)
        self._wait(
            lambda: len(self._uploads(step)) >= enough or self._is_closed(step),
            f"{what} are accepted",
        )
        federation.kill(COORDINATOR)
        accepted, closed = list(self._uploads(step)), self._is_closed(step)
        killed_s = time.monotonic()
        self._print(
            f"{where}: coordinator killed, {len(accepted)} of {len(started.cohort)} {what} accepted"
        )
        federation.restart(COORDINATOR)
        federation.send_signal(suspended, signal.SIGCONT)
        back = time.monotonic() - killed_s
        kept = len(self._uploads(step))
        self._print(f"{where}: coordinator back after {back:.1f} s, {kept} {what} still count")
        return [] if closed else accepted

    def _await_killed_uploader(self, victim: ClientId) -> None:
        """Wait until a client dies in the middle of an upload; restart it and wait for the rest."""
        federation = self._federation
        for _ in range(TRIES):
            self._wait(lambda: federation.was_killed(victim), f"{victim} dies in its upload")
            step, received = self._newest(Work.TRAIN), self._received_bytes(victim)
            if received:
                break
            federation.restart(victim, MID_UPLOAD)  # it died before a byte arrived: try again
        assert step is not None
        kept = LocalState(federation.clients_dir / victim).load()
        if kept is None:
            raise ProgramError(f"{victim} died without storing its update", ExitCode.BUG)
        total = len(kept.payload)
        self._print(
            f"round {step.round_number}: {victim} killed in mid-upload, the coordinator has "
            f"{received:,} of {total:,} bytes"
        )
        federation.restart(victim)
        upload = self._wait(lambda: self._uploads(step.step).get(victim), f"{victim} resumes")
        sent = int(upload.report["upload_bytes"])
        self._sent_twice = max(0, received - (total - sent))
        self._print(
            f"round {step.round_number}: {victim} is back, resumed at byte {total - sent:,}, sent "
            f"the other {sent:,}; sent twice: {self._sent_twice:,} bytes"
        )

    def _received_bytes(self, client: ClientId) -> int:
        """Return the bytes of a client's upload at the coordinator, when they stop growing."""
        directory = StateDirectory(self._federation.state_dir)
        last, settled_s = -1, time.monotonic() + 1.0
        while time.monotonic() < settled_s:
            now = partial_bytes(directory, client)
            if now != last:
                last, settled_s = now, min(settled_s, time.monotonic() + 0.3)
            time.sleep(POLL_S)
        return max(0, last)

    def _facts(self) -> tuple[Fact, ...]:
        return read_state(self._federation.state_dir).facts

    def _newest(self, work: Work) -> StepStarted | None:
        """Return the open step if it is of this kind."""
        started: StepStarted | None = None
        for fact in self._facts():
            if isinstance(fact, StepStarted):
                started = fact
            elif isinstance(fact, StepClosed):
                started = None
        return started if started and started.work is work else None

    def _uploads(self, step: int) -> dict[ClientId, UploadAccepted]:
        uploads = (fact for fact in self._facts() if isinstance(fact, UploadAccepted))
        return {fact.client: fact for fact in uploads if fact.step == step}

    def _is_closed(self, step: int) -> bool:
        return any(isinstance(fact, StepClosed) and fact.step == step for fact in self._facts())

    def _is_over(self) -> bool:
        return any(isinstance(fact, RunFinished) for fact in self._facts())

    def _wait(self, condition: Callable[[], Found | None], what: str) -> Found:
        end_s = time.monotonic() + WAIT_S
        while not (found := condition()):
            self._federation.ended()  # raises if a process failed
            if time.monotonic() > end_s:
                logs = f"the logs are in {self._federation.folder}"
                raise ProgramError(f"not within {WAIT_S:g} s: {what}; {logs}", ExitCode.BUG)
            time.sleep(POLL_S)
        return found

    def _print(self, text: str) -> None:
        self._screen.print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", soft_wrap=True)


def _twice(counts: Counter[Found]) -> list[Found]:
    return [key for key, count in counts.items() if count > 1]
