"""`ssfl audit`: recomputes a run from its journal and checks every file.

It only reads and takes no lock. The run may be over, crashed or in progress, or a copy of one.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ssfl.datasets.wording import plural
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.settings.options import source_file
from ssfl.server.errors import StateError
from ssfl.server.recovery.recompute import BAD, OnUpload, Refold, StepResult, StepVerdict
from ssfl.server.recovery.recover import settings_of
from ssfl.server.recovery.state_dir_check import InspectedRun, file_problems, read_state
from ssfl.server.run.state import RunState, Step
from ssfl.strategies.contract import Work
from ssfl.strategies.registry import identity
from ssfl.tools.terminal import console

DESCRIPTION = (
    "Recomputes a run from the journal and the uploads in its coordinator's state directory, with "
    "the same exact arithmetic, and compares every step with the committed result. Uploads of "
    "committed steps exist only if the coordinator runs with --keep-uploads. Records, checksums "
    "and digests are always checked. The command only reads; the run may be in progress."
)
EPILOG = (
    "The last line is `same model: yes`, `no`, or why it is not known. Exit codes: 0: nothing "
    "differs; 3: something differs or is missing; 6: the state directory cannot be read."
)
TRIES = 5  # the files of a running run may change between two reads


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """Which run."""

    state_dir: Path = setting(
        MISSING, "a coordinator's --state-dir, or a copy of it", positional=True
    )
    strategy: str = source_file("strategy")
    criterion: str = source_file("criterion")
    json: bool = setting(False, "print JSON")


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit."""

    run: InspectedRun
    state: RunState | None  # None: the journal is empty
    steps: tuple[StepResult, ...]
    problems: tuple[str, ...]  # of files that the journal names

    @property
    def is_sound(self) -> bool:
        return not self.problems and not any(step.verdict in BAD for step in self.steps)

    @property
    def not_kept(self) -> int:
        return sum(step.verdict is StepVerdict.NOT_KEPT for step in self.steps)

    @property
    def same_model(self) -> bool | None:
        """True if the newest model is that of the accepted uploads; None if not known."""
        others = any("ledger.csv" not in problem for problem in self.problems)
        if others or any(step.verdict in BAD for step in self.steps):
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
    screen = console()
    screen.quiet = config.json
    report = partial(screen.print, soft_wrap=True)
    try:
        with console(stderr=True).status("") as status:  # shown on a terminal only

            def on_upload(step: Step, done: int) -> None:
                uploads = len(step.closed or ())
                status.update(f"step {step.number}: upload {done + 1} of {uploads}")

            found = _audit(config.state_dir, report, on_upload)
    except (StateError, OSError) as error:
        raise ProgramError(str(error), ExitCode.STATE) from error
    if config.json:
        print(json.dumps(_document(found), indent=1))
    else:
        for problem in found.problems:
            report(f"wrong: {problem}")
        report(found.last_line)
    return int(ExitCode.DONE if found.is_sound else ExitCode.BAD_DATA)


def _audit(root: Path, report: Callable[[str], None], on_upload: OnUpload) -> Audit:
    """Recompute the run and report every step; continue if the run has advanced."""
    run = read_state(root)
    if run.opened is None:
        return Audit(run, None, (), ())
    settings = settings_of(run.opened)
    if run.opened.strategy and (ours := identity(settings)) != run.opened.strategy:
        raise StateError(
            f"the run had the strategy {run.opened.strategy}, and this is {ours}: audit it with "
            "that version"
        )
    refold = Refold(root, settings, on_upload)
    report(f"run {run.opened.run_id}, started with ssfl {run.opened.software}")
    steps, done = list[StepResult](), 0
    for _ in range(TRIES):
        for fact in run.facts[done:]:
            if result := refold.take(fact):
                steps.append(result)
                report(_line(result))
        done, last = len(run.facts), refold.under_way()
        problems = refold.problems or file_problems(
            root, refold.state, refold.masks, refold.account
        )
        if not problems and (last is None or last.verdict not in BAD):
            break
        run = read_state(root)
        if len(run.facts) == done:
            break
    if last:
        steps.append(last)
        report(_line(last))
    if run.torn_bytes:
        report(
            f"{run.torn_bytes} bytes after the last record are an incomplete record: it is being "
            "written, or a crash cut it off; a coordinator drops them when it starts"
        )
    return Audit(run, refold.state, tuple(steps), tuple(problems))


def _line(step: StepResult) -> str:
    made = f"mask {step.mask_digest[:12]}" if step.work is Work.SCORE else ""
    made = made or f"model {step.base_digest[:12]}"
    again = f" (attempt {step.attempt})" if step.attempt else ""
    problem = f": {step.problem}" if step.problem else ""
    clients = plural(step.clients, "client")
    return (
        f"step {step.step:>4}  {step.work:<11}  round {step.round_number:>4}{again}  {clients:>12}"
        f"  {made:<18}  {step.verdict}{problem}"
    )


def _document(found: Audit) -> dict[str, Any]:
    state, opened = found.state, found.run.opened
    return {
        "run_id": opened.run_id if opened else "",
        "software": opened.software if opened else "",
        "phase": state.phase if state else "",
        "rounds_done": state.rounds_done if state else 0,
        "model_digest": state.base_digest if state else "",
        "same_model": found.same_model,
        "torn_bytes": found.run.torn_bytes,
        "problems": found.problems,
        "steps": [asdict(step) for step in found.steps],
    }
