"""`ssfl demo --crash`: the same federation twice, undisturbed and under blows; same bits, or not.

The blows, all SIGKILL: the coordinator while clients score, a client in the middle of an upload,
the coordinator in the middle of a round. Each falls where it is meant to: one client is held still
(SIGSTOP) until the coordinator has accepted what others sent, and the client that dies does so at
the third chunk of its update (a failpoint). What is told of a blow is read from the journal.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from ssfl.client.local_state import LocalState
from ssfl.codec.chunks import MAX_CHUNK_BYTES
from ssfl.method.density import parse_sparsity
from ssfl.method.strategies.contract import ClientId, Work
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.server.recovery.state_dir_check import read_state
from ssfl.server.run.facts import Fact, RunFinished, StepClosed, StepStarted, UploadAccepted
from ssfl.tools.local.local_run import LocalRunResult, federate
from ssfl.tools.local.processes import COORDINATOR, LocalFederation

CLIENTS, ROUNDS, MIN_ROUNDS = 4, 5, 3
MAX_SPARSITY = "0.97"
WAIT_S = 120.0
POLL_S = 0.01
VALUES_SENT = 430_000  # kept values of an update: it takes more than two chunks
MID_UPLOAD = "client.chunk=kill@3"
TRIES = 3

Found = TypeVar("Found")


def width_for(sparsity: str) -> int:
    """Return the width of an mlp whose updates are sent in several chunks."""
    return math.isqrt(int(VALUES_SENT / (1 - parse_sparsity(sparsity))))


def crash(screen: Console, out: Path, shards: Path, names: list[str], flags: list[str]) -> ExitCode:
    """Run both federations and compare what they end with."""

    def run(name: str, trouble: Callable[[LocalFederation], None] | None = None) -> LocalRunResult:
        federation = LocalFederation(out / name, shards, flags, names)
        return federate(federation, name, screen, name, trouble)

    calm = run("undisturbed")
    blows = CrashSchedule(screen)
    shaken = run("disturbed", blows.fall)
    digests = [result.status.model_digest.hex() for result in (calm, shaken)]
    problems = blows.problems()
    for line in (*blows.findings, *(f"wrong: {problem}" for problem in problems)):
        screen.print(line, soft_wrap=True)
    for name, digest in zip(("undisturbed", "disturbed"), digests, strict=True):
        screen.print(f"{name:<12}  {digest}", soft_wrap=True)
    same = digests[0] == digests[1]
    screen.print(f"same model: {'yes' if same else 'no'}")
    screen.print(f"`ssfl audit {out}/disturbed/state` computes it again from the journal")
    return ExitCode.DONE if same and not problems else ExitCode.BUG


class CrashSchedule:
    """Strikes the processes of a federation, and tells every blow as it falls."""

    def __init__(self, screen: Console) -> None:
        self.findings: list[str] = []
        self._screen = screen
        self._began_s = time.monotonic()
        self._federation: LocalFederation
        self._sent_twice = 0
        self._missed: list[str] = []

    def fall(self, federation: LocalFederation) -> None:
        """Let every blow fall, in the order of a run."""
        self._federation = federation
        self._began_s = time.monotonic()
        started = self._wait(lambda: self._newest(Work.SCORE), "scoring begins")
        accepted = self._kill_coordinator(started, "scoring", "scores")
        victim = accepted[0] if accepted else ClientId(federation.clients[0])
        federation.kill(victim)
        self._tell(f"scoring: {victim} killed as well, while it waits for the mask")
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
        self._missed.append("no blow fell in the middle of a round: it was over too soon")

    def problems(self) -> list[str]:
        """Return which promises were broken: what counted twice, what was trained twice."""
        told = self._facts()
        counted = Counter((f.step, f.client) for f in told if isinstance(f, UploadAccepted))
        wrong = [
            f"{who} counted twice in step {n}" for (n, who), many in counted.items() if many > 1
        ]
        trained = Counter(
            (client, found[1])
            for client in self._federation.clients
            for line in self._federation.log_of(client)
            if (found := re.search(r" trained  .*\bround=(\d+)", line))
        )
        wrong += [
            f"{who} trained round {n} twice" for (who, n), many in trained.items() if many > 1
        ]
        wrong += self._missed
        if self._sent_twice > MAX_CHUNK_BYTES:
            wrong.append(f"{self._sent_twice:,} bytes were sent twice")
        if not wrong:
            self.findings.append(
                f"{len(counted)} reports counted, each once; {len(trained)} updates trained, "
                "none twice"
            )
        return wrong

    def _kill_coordinator(self, started: StepStarted, where: str, what: str) -> list[ClientId]:
        """Kill the coordinator when some have reported but not all; return who had.

        Nobody: the step was over before the blow fell, which then hit what came next.
        """
        federation, held = self._federation, self._federation.clients[-1]
        federation.suspend(held)
        others = len(started.cohort) - 1
        self._wait(
            lambda: (
                len(self._accepted(started.step)) >= max(1, others - 1)
                or self._is_closed(started.step)
            ),
            f"{what} are accepted",
        )
        federation.kill(COORDINATOR)
        accepted, closed = self._accepted(started.step), self._is_closed(started.step)
        killed_s = time.monotonic()
        many = f"{len(accepted)} of {len(started.cohort)} {what} accepted"
        self._tell(f"{where}: coordinator killed, {many}")
        federation.restart(COORDINATOR)
        federation.resume(held)
        back = time.monotonic() - killed_s
        kept = len(self._accepted(started.step))
        self._tell(f"{where}: coordinator back after {back:.1f} s, {kept} {what} still count")
        return [] if closed else accepted

    def _await_killed_uploader(self, victim: ClientId) -> None:
        """Wait for a client to die in the middle of an upload, and see it resume."""
        federation = self._federation
        for _ in range(TRIES):
            self._wait(lambda: federation.was_killed(victim), f"{victim} dies in its upload")
            step, had = self._newest(Work.TRAIN), self._arrived(victim)
            if had:
                break
            federation.restart(victim, MID_UPLOAD)  # nothing had arrived yet: once more
        assert step is not None
        answer = LocalState(federation.client_state_dir(victim)).load()
        if answer is None:
            raise ProgramError(f"{victim} died without its update", ExitCode.BUG)
        total = len(answer.payload)
        self._tell(
            f"round {step.round_number}: {victim} killed in mid-upload, the coordinator has "
            f"{had:,} of {total:,} bytes"
        )
        federation.restart(victim)
        upload = self._wait(lambda: self._upload(step.step, victim), f"{victim} resumes")
        sent = int(upload.report["upload_bytes"])
        self._sent_twice = max(0, had - (total - sent))
        self._tell(
            f"round {step.round_number}: {victim} is back, went on at byte {total - sent:,}, sent "
            f"the other {sent:,}; sent twice: {self._sent_twice:,} bytes"
        )

    def _arrived(self, client: ClientId) -> int:
        """Return how much of a client's upload the coordinator has, once that has settled."""
        last, settled_s = -1, time.monotonic() + 1.0
        while time.monotonic() < settled_s:
            parts = self._federation.state_dir.glob(f"spool/*/{client}.*.part")
            now = sum(part.stat().st_size for part in parts)
            if now != last:
                last, settled_s = now, min(settled_s, time.monotonic() + 0.3)
            time.sleep(POLL_S)
        return max(0, last)

    def _facts(self) -> tuple[Fact, ...]:
        return read_state(self._federation.state_dir).facts

    def _newest(self, work: Work) -> StepStarted | None:
        """Return the open step, if it is of this kind."""
        started: StepStarted | None = None
        for fact in self._facts():
            if isinstance(fact, StepStarted):
                started = fact
            elif isinstance(fact, StepClosed):
                started = None
        return started if started and started.work is work else None

    def _accepted(self, step: int) -> list[ClientId]:
        return [one.client for one in self._facts()
                if isinstance(one, UploadAccepted) and one.step == step]  # fmt: skip

    def _upload(self, step: int, client: ClientId) -> UploadAccepted | None:
        found = (one for one in self._facts() if isinstance(one, UploadAccepted))
        return next((one for one in found if (one.step, one.client) == (step, client)), None)

    def _is_closed(self, step: int) -> bool:
        return any(isinstance(one, StepClosed) and one.step == step for one in self._facts())

    def _is_over(self) -> bool:
        return any(isinstance(one, RunFinished) for one in self._facts())

    def _wait(self, condition: Callable[[], Found | None], what: str) -> Found:
        end_s = time.monotonic() + WAIT_S
        while not (found := condition()):
            self._federation.ended()  # raises if one ended badly
            if time.monotonic() > end_s:
                raise ProgramError(
                    f"not within {WAIT_S:g} s: {what}; the logs are in {self._federation.folder}",
                    ExitCode.BUG,
                )
            time.sleep(POLL_S)
        return found

    def _tell(self, what: str) -> None:
        self._screen.print(f"{time.monotonic() - self._began_s:6.1f} s  {what}", soft_wrap=True)
