"""Stories of the protocol: events in, facts and actions out, one story per file in stories/.

A story begins with a comment that explains it, and the settings of the run. Events follow, each
with its time in seconds and, indented, the output of the state machine:

    * a fact, journalled before anything else happens
    > an action for the edges to carry out
    = the reply to the sender

`restart` replays the journal from its bytes and continues with the result. `waiting?` shows the
text for users. The file must equal, word for word, what playing its events produces.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, assert_never

import pytest

from ssfl.method.settings import RunSettings
from ssfl.server.run import events, facts
from ssfl.server.run.apply import apply
from ssfl.server.run.events import Action, Event
from ssfl.server.run.machine import advance
from ssfl.server.run.state import RunState
from ssfl.server.run.waiting import waiting_for
from ssfl.strategies.contract import ClientId, Work

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))
EXPECTED = {
    "one_scorer_lost", "scoring_quorum_gathers", "reproducible_removed",
    "drain", "newcomer_saves_round", "over_selected", "removed", "replaced",
    "paused", "paused_gathering", "paused_stalled", "paused_void", "paused_when_stalled",
    "scoring_quorum", "scoring_quorum_missed", "stall_since", "stood_still",
    "admin_start", "best_after_restart", "best_newcomer", "best_one_missing", "client_leaves",
    "countdown", "dense_fedavg", "duplicate_upload", "ends_at_target", "evaluate_last",
    "evaluation_every_round", "everyone_lost", "late_joiner", "late_upload", "lost_client",
    "lost_voter", "nobody_scores", "nobody_to_evaluate", "one_client_scores", "ordinary_run",
    "patience", "personalize", "refresh_by_operator", "refresh_labels_kept",
    "refresh_loss_jump", "refresh_new_labels", "refresh_own_masks", "refresh_planned",
    "refresh_refused", "refresh_void", "reproducible", "reproducible_patience", "restart",
    "sampled_round", "sparsity_schedule", "stop", "stop_while_summing", "test_decides",
    "description_overdue", "too_few", "validation_decides", "void_round", "warm_up", "wrong_order",
}  # fmt: skip


class Story:
    """A run in progress, and its journal."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.state = RunState(settings, run_id="r1")
        self.journal: list[bytes] = []

    def play(self, event: str, now_s: float) -> Iterator[str]:
        """Yield the output of an event."""
        if event == "waiting?":
            yield f"= {self.state.phase}: {waiting_for(self.state, now_s) or 'nothing'}"
            return
        if event == "restart":
            self.state = RunState(self.settings, run_id="r1")
            for record in self.journal:
                self.state = apply(self.state, facts.from_json(record))
        self.state, actions, reply = advance(self.state, self._event(event), now_s)
        for action in actions:
            if isinstance(action, events.Persist):
                self.journal.append(facts.to_json(action.fact))
            yield _action_line(action)
        yield f"= {reply}"

    def _event(self, text: str) -> Event:
        word, *names = text.split()
        options = dict(name.split("=") for name in names if "=" in name)
        client = ClientId(next((name for name in names if "=" not in name), ""))
        step = int(options.get("step", 0))
        match word:
            case "join":
                model, samples = options.get("model", "m"), int(options["samples"])
                labels = tuple(int(one) for one in options.get("labels", "").split(",") if one)
                return events.Joined(client, "token", samples, model, "cpu", labels=labels)
            case "initialize":
                return self._initialized(client, options.get("model", "m"))
            case "upload":
                digest, report = options.get("digest", f"d{client}"), _report(options)
                return events.UploadReceived(step, client, digest, report=report)
            case "report":
                return events.UploadReceived(step, client, "", report=_report(options))
            case "reduced":
                return self._reduced(step)
            case "lost":
                return events.Lost(client)
            case "returned":
                return events.Returned(client)
            case "overdue":
                return events.DescriptionOverdue(client)
            case "left":
                return events.Left(client, finished="finished" in names)
            case "start":
                return events.Signal.START
            case "refresh":
                return events.Signal.REFRESH
            case "pause":
                return events.PauseAsked(1.7e9)
            case "resume":
                return events.Signal.RESUME
            case "stop":
                return events.Signal.STOP
            case "remove" | "readmit":
                return events.RemoveAsked(client, readmit=word == "readmit")
            case "drain":
                return events.Signal.DRAIN
            case "stood_still":
                return events.ProcessSuspended(float(options["seconds"]))
            case "tick":
                return events.Signal.TICK
            case "recovered" | "restart":
                return events.Signal.RECOVERED
        raise ValueError(f"no such event: {text}")

    def _initialized(self, client: ClientId, model: str) -> Event:
        all_kept = self.settings.strategy == "fedavg" or self.settings.criterion == "client-random"
        if all_kept or self.settings.warmup_rounds:
            return events.Initialized(client, model, "i", 1, "all", 100, "b0")
        return events.Initialized(client, model, "i", 0, "", 0, "")

    def _reduced(self, step: int) -> Event:
        open_step = self.state.step
        scored = open_step is not None and open_step.work is Work.SCORE
        epoch = self.state.mask_epoch + scored
        return events.StepReduced(step, epoch, f"k{epoch}", 10, f"b{step}")


def _report(options: Mapping[str, str]) -> dict[str, Any]:
    """Return a client's report: its loss, and how many of ten samples are correct."""
    tested = _tested(options.get("correct", "5"))
    report = {
        "training_loss": float(options.get("loss", "1")), "evaluation": tested, "personal": tested,
    }  # fmt: skip
    if "validation" in options:
        report["validation"] = _tested(options["validation"])
    return report


def _tested(correct: str) -> dict[str, Any]:
    return {"correct": int(correct), "total": 10, "loss_sum": 10.0}


def _action_line(action: Action) -> str:
    match action:
        case events.Persist():
            return f"* {_fact(action.fact)}"
        case events.OpenStep():
            return f"> open the sum of step {action.step.number}"
        case events.Fold():
            return f"> fold {action.upload.client} into step {action.upload.step}"
        case events.Reduce():
            return f"> reduce step {action.step.number}: {' '.join(action.step.closed or ())}"
        case events.DropSpool():
            return f"> drop the spool of step {action.step}"
        case events.KeepBest():
            best = action.best
            return (
                f"> keep the model of step {best.step} as the best: {best.accuracy} right on "
                f"{best.chosen_on}"
            )
        case events.WriteModel():
            return "> write the model"
        case _:
            assert_never(action)


def _fact(fact: facts.Fact) -> str:
    match fact:
        case facts.RunOpened():
            return f"run {fact.run_id} opened"
        case facts.ClientJoined():
            model = f"model {fact.manifest_digest}" if fact.manifest_digest else "no model yet"
            return (
                f"{fact.client} joined: session {fact.session}, {fact.num_samples} samples, {model}"
            )
        case facts.ModelInitialized():
            mask = f"mask epoch {fact.mask_epoch}" if fact.mask_epoch else "no mask yet"
            return f"{fact.client} described model {fact.manifest_digest}, {mask}"
        case facts.RunStarted():
            return f"run started with {' '.join(fact.clients)}"
        case facts.StepStarted():
            asked = " ".join(f"{client}:{weight}" for client, weight in fact.cohort.items())
            attempt = f" attempt {fact.attempt}" if fact.attempt else ""
            reason = f" ({fact.reason})" if fact.reason else ""
            return (
                f"step {fact.step} started: {fact.work} round {fact.round_number}{attempt}, "
                f"{asked or 'no client'}{reason}{f', goal {fact.goal}' if fact.goal else ''}"
            )
        case facts.ClientsAdded():
            asked = " ".join(f"{client}:{weight}" for client, weight in fact.cohort.items())
            return f"step {fact.step} asks besides: {asked}"
        case facts.UploadAccepted():
            return f"step {fact.step} has {fact.client}"
        case facts.StepClosed():
            without = f", without {' '.join(fact.missing)}" if fact.missing else ""
            return f"step {fact.step} closed with {' '.join(fact.accepted) or 'no client'}{without}"
        case facts.StepCommitted():
            return (
                f"step {fact.step} committed: mask epoch {fact.mask_epoch}, base {fact.base_digest}"
            )
        case facts.StepVoided():
            return f"step {fact.step} void: {fact.reason}"
        case facts.RefreshRequested():
            return "a new mask requested"
        case facts.RunPaused():
            return "run paused"
        case facts.RunResumed():
            return "run resumed"
        case facts.StopRequested():
            return "stop requested"
        case facts.RunFinished():
            early = f" early: {fact.reason}" if fact.reason else ""
            return "run stopped" if fact.stopped else f"run finished{early}"
        case facts.ClientLeft():
            return f"{fact.client} left{' with the final model' if fact.finished else ''}"
        case facts.ClientRemoved():
            return f"{fact.client} removed"
        case facts.ClientReadmitted():
            return f"{fact.client} readmitted"
        case facts.BytesCounted():
            return "bytes counted"
        case _:
            assert_never(fact)


def settings_of(line: str) -> RunSettings:
    parse: dict[type, Callable[[str], Any]] = {
        **{int: int, float: float, str: str},
        bool: "yes".__eq__,
    }
    types: dict[str, type] = {one.name: type(one.default) for one in fields(RunSettings)}
    given = dict(word.split("=") for word in line.split()[1:])
    settings = RunSettings(**{name: parse[types[name]](text) for name, text in given.items()})
    settings.validate()
    return settings


def played(text: str) -> str:
    """Return a story with regenerated output; the output in the file is ignored."""
    story: Story | None = None
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        out.append(line)
        if line.startswith("settings"):
            story = Story(settings_of(line))
        elif line.startswith("t="):
            assert story is not None, "the settings come before the first event"
            time, event = line.removeprefix("t=").split(maxsplit=1)
            out += [f"    {output}" for output in story.play(event, float(time))]
    return "\n".join(out) + "\n"


def test_the_expected_stories_exist() -> None:
    assert {path.stem for path in STORIES} == EXPECTED


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_gives_the_recorded_output(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    assert played(text) == text
