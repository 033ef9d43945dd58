"""`ssfl audit`: a run computed again from its journal, and every file of it checked.

Reads only, takes no lock: the run may be over, crashed, in progress, or a copied folder.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.status import Status

from ssfl.method.settings import setting
from ssfl.method.strategies.contract import Work
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.server.errors import StateError
from ssfl.server.recovery.recompute import BAD, OnUpload, Refold, StepResult, Verdict
from ssfl.server.recovery.recover import settings_of
from ssfl.server.recovery.state_dir_check import InspectedRun, file_problems, read_state
from ssfl.server.run.state import RunState, Step
from ssfl.tools.terminal import console

DESCRIPTION = (
    "Computes a run again from the journal and the uploads in its coordinator's state directory, "
    "with the same exact arithmetic, and compares every step with what was committed. Uploads of "
    "committed steps are there if the coordinator runs with --keep-uploads; every record, "
    "checksum and digest is checked in any case. Reads only: the run may be in progress."
)
EPILOG = (
    "The last line is `same model: yes`, `no`, or why it is not known. Exit codes: 0 nothing "
    "differs, 3 something differs or is missing, 6 the state directory cannot be read."
)
TRIES = 5  # while a run goes on: its files may change between two looks


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """Which run."""

    state_dir: Path = setting(
        MISSING, "a coordinator's --state-dir, or a copy of it", positional=True
    )
    json: bool = setting(False, "answer as JSON")


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found."""

    told: InspectedRun
    state: RunState | None  # None: nothing has been written yet
    steps: tuple[StepResult, ...]
    problems: tuple[str, ...]  # with files that the journal names

    @property
    def is_sound(self) -> bool:
        return not self.problems and not any(step.verdict in BAD for step in self.steps)

    @property
    def not_kept(self) -> int:
        return sum(step.verdict is Verdict.NOT_KEPT for step in self.steps)

    @property
    def same_model(self) -> bool | None:
        """Whether the newest model is that of the accepted uploads; None: not known."""
        if not self.is_sound:
            bytes_only = all("ledger.csv" in problem for problem in self.problems)
            if not bytes_only or any(step.verdict in BAD for step in self.steps):
                return False
        return True if self.state and self.state.model_step and not self.not_kept else None

    @property
    def last_line(self) -> str:
        if self.same_model is not None:
            return f"same model: {'yes' if self.same_model else 'no'}"
        if not self.not_kept:
            return "same model: not known: no step is committed yet"
        made = sum(not step.work.is_test for step in self.steps)
        return (
            f"same model: not known: uploads of {self.not_kept} of {made} steps were not kept "
            "(ssfl-coordinator --keep-uploads keeps them); all files match the journal"
        )


def audit(argv: Sequence[str]) -> int:
    """Run the command."""
    config = settings.load(AuditConfig, argv, None, "ssfl audit", DESCRIPTION, EPILOG)
    tell: Callable[[str], None] = partial(console().print, soft_wrap=True)
    if config.json:
        tell = _say_nothing
    try:
        with _progress() as on_upload:
            found = _audit(config.state_dir, tell, on_upload)
    except (StateError, OSError) as error:
        raise ProgramError(str(error), ExitCode.STATE) from error
    if config.json:
        print(json.dumps(_document(found), indent=1))
    else:
        for problem in found.problems:
            tell(f"wrong: {problem}")
        tell(found.last_line)
    return int(ExitCode.DONE if found.is_sound else ExitCode.BAD_DATA)


def _audit(root: Path, tell: Callable[[str], None], on_upload: OnUpload) -> Audit:
    """Compute the run again, telling every step; a run that goes on meanwhile is followed."""
    told = read_state(root)
    if told.opened is None:
        return Audit(told, None, (), ())
    refold = Refold(root, settings_of(told.opened), on_upload)
    tell(f"run {told.opened.run_id}, begun with ssfl {told.opened.software}")
    steps, taken = list[StepResult](), 0
    for _ in range(TRIES):
        for fact in told.facts[taken:]:
            if result := refold.take(fact):
                steps.append(result)
                tell(_line(result))
        taken, last = len(told.facts), refold.under_way()
        problems = refold.problems or file_problems(
            root, refold.state, refold.masks, refold.account
        )
        if not problems and (last is None or last.verdict not in BAD):
            break
        told = read_state(root)
        if len(told.facts) == taken:
            break
    if last:
        steps.append(last)
        tell(_line(last))
    if told.torn_bytes:
        tell(
            f"{told.torn_bytes} bytes behind the last record are not a whole one: it is being "
            "written, or was cut short by a crash; a coordinator drops them when it starts"
        )
    return Audit(told, refold.state, tuple(steps), tuple(problems))


def _say_nothing(_line: str) -> None:
    """Tell nobody."""


def _line(one: StepResult) -> str:
    made = f"mask {one.mask_digest[:12]}" if one.work is Work.SCORE else ""
    made = made or f"model {one.base_digest[:12]}"
    again = f" (attempt {one.attempt})" if one.attempt else ""
    problem = f": {one.problem}" if one.problem else ""
    clients = f"{one.clients} client" + "s" * (one.clients != 1)
    return (
        f"step {one.step:>4}  {one.work:<11}  round {one.round_number:>4}{again}  {clients:>12}"
        f"  {made:<18}  {one.verdict}{problem}"
    )


def _document(found: Audit) -> dict[str, Any]:
    state, opened = found.state, found.told.opened
    return {
        "run_id": opened.run_id if opened else "",
        "software": opened.software if opened else "",
        "phase": state.phase if state else "",
        "rounds_done": state.rounds_done if state else 0,
        "model_digest": state.base_digest if state else "",
        "same_model": found.same_model,
        "torn_bytes": found.told.torn_bytes,
        "problems": found.problems,
        "steps": [asdict(step) for step in found.steps],
    }


@contextmanager
def _progress() -> Iterator[OnUpload]:
    """Show which upload is being read, on a terminal: a step of a large model takes a while."""
    errors = console(stderr=True)
    with Status("", console=errors) as status:

        def on_upload(step: Step, done: int) -> None:
            all_of_them = len(step.closed or ())
            status.update(f"step {step.number}: upload {done + 1} of {all_of_them}")

        yield on_upload
