"""The run as a pure state machine: (state, event, now) -> (state, actions, reply).

No I/O, no clock, no randomness of its own: time is an argument, cohorts come from the seed.
Every decision becomes a fact. The caller journals the facts BEFORE it performs the other actions,
so a run that is replayed from its journal resumes exactly where it was.

    gathering -> score -> train -> … -> evaluate -> … -> (score -> train …) -> (personalize) ->
    finished

A run with too few clients reports that it is waiting, and continues by itself. A paused run
finishes its open step, or voids it if too few clients are present, and starts nothing until it is
resumed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from ssfl.method.exact_sum import VALUE_BOUND, fraction_bits
from ssfl.server.run import events, facts, quorum
from ssfl.server.run.apply import apply, with_lost
from ssfl.server.run.events import Action, Event, Fold, Persist, Reply
from ssfl.server.run.refresh import has_mask, no_round_left, refresh_due
from ssfl.server.run.state import RunState, weight_of
from ssfl.server.run.waiting import QUIET_S
from ssfl.strategies.contract import ClientId, Plan, Position, Work
from ssfl.strategies.registry import strategy_for

Outcome = tuple[RunState, list[Action], Reply]


def advance(state: RunState, event: Event, now_s: float) -> Outcome:
    """Return the new state, the actions to perform, and the reply for the sender."""
    decision = _Decision(state, now_s)
    reply = decision.handle(event)
    if reply in (Reply.DONE, Reply.ACCEPTED):
        decision.move_on()
    decision.look_for_stall()
    return decision.state, decision.actions, reply


def late_reply(state: RunState, step: int, client: ClientId, digest: str) -> Reply:
    """Return the reply to an upload whose step is over, or that was not asked for.

    The upload may have counted although its client did not get the receipt.
    """
    counted = bool(digest) and state.counted.get(client) == (step, digest)
    return Reply.ALREADY_ACCEPTED if counted else Reply.STEP_CLOSED


def _is_last(state: RunState) -> bool:
    """Return True if no further round will follow."""
    return state.rounds_done >= state.settings.rounds or bool(state.end_reason)


def _test_is_due(state: RunState) -> bool:
    """Return True if all clients are to evaluate the model after the rounds so far."""
    settings, done = state.settings, state.rounds_done
    if _is_last(state) or done > settings.rounds - settings.evaluate_last:
        return True
    return bool(settings.evaluate_every and done and done % settings.evaluate_every == 0)


class _Decision:
    """One call of `advance`: collects facts and actions while the state changes."""

    def __init__(self, state: RunState, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.actions: list[Action] = []

    def handle(self, event: Event) -> Reply:
        match event:
            case events.Joined():
                return self._joined(event)
            case events.Initialized():
                return self._initialized(event)
            case events.UploadReceived():
                return self._received(event)
            case events.StepReduced():
                step = self.state.step
                if step is None or step.number != event.step or step.closed is None:
                    return Reply.STEP_CLOSED
                self._commit(event)
            case events.Lost():
                self.state = with_lost(self.state, self.state.lost | {event.client})
            case events.Returned():
                self.state = with_lost(self.state, self.state.lost - {event.client})
            case events.DescriptionOverdue():
                others = [one for one in self.state.passed_over if one != event.client]
                self.state = replace(self.state, passed_over=(*others, event.client))
            case events.Left():
                member = self.state.members.get(event.client)
                if member and event.session not in (None, member.session):
                    return Reply.CONFLICT  # a newer process of this client has joined and stays
                known = (member.left, member.has_final_model) if member else (True, event.finished)
                if known != (True, event.finished):
                    self._fact(facts.ClientLeft(event.client, event.finished))
            case events.Signal.START:
                return self._start_asked()
            case events.Signal.REFRESH:
                return self._refresh_asked()
            case events.PauseAsked():
                if not self.state.paused and not self.state.finished:
                    self._fact(facts.RunPaused(event.at))
            case events.Signal.RESUME:
                if self.state.paused:
                    self._fact(facts.RunResumed())
                    self.state = replace(self.state, countdown_from_s=self.now_s)
            case events.RemoveAsked():
                self._remove_asked(event)
            case events.Signal.DRAIN:
                self.state = replace(self.state, draining=True)
            case events.ProcessSuspended():
                self._suspended(event.seconds)
            case events.Signal.STOP:
                if not self.state.stop_asked and not self.state.finished:
                    self._fact(facts.StopRequested())
            case events.Signal.TICK:
                pass
            case events.Signal.RECOVERED:
                self._recovered()
            case _:
                assert_never(event)
        return Reply.DONE

    def look_for_stall(self) -> None:
        """Update the stall; keep the time since which the run has been stalled."""
        before = self.state.stall
        now = None if self.state.paused else quorum.find_stall(self.state, self.now_s)
        if before and now:
            now = replace(now, since_s=before.since_s)
        if now != before:
            self.state = replace(self.state, stall=now)

    def _fact(self, fact: facts.Fact) -> None:
        self.state = apply(self.state, fact)
        self.actions.append(Persist(fact))

    def _joined(self, event: events.Joined) -> Reply:
        member = self.state.members.get(event.client)
        owned = member is not None and member.token not in ("", event.token)
        if owned and not event.name_proven:
            return Reply.CONFLICT
        ready_before = self.state.num_ready
        self._fact(
            facts.ClientJoined(
                event.client, self.state.last_session + 1, event.token, event.num_samples,
                event.manifest_digest, event.fingerprint, event.class_counts, event.encodings,
                event.labels,
            )
        )  # fmt: skip
        if self.state.num_ready > ready_before:
            self.state = replace(self.state, countdown_from_s=self.now_s)
        return Reply.DONE

    def _initialized(self, event: events.Initialized) -> Reply:
        if self.state.manifest_digest:
            same = self.state.manifest_digest == event.manifest_digest
            return Reply.ALREADY_ACCEPTED if same else Reply.CONFLICT
        if self.state.finished:
            return Reply.STEP_CLOSED
        self._fact(event)
        self.state = replace(self.state, countdown_from_s=self.now_s)
        return Reply.ACCEPTED

    def _received(self, event: events.UploadReceived) -> Reply:
        step = self.state.step
        not_asked = step is None or step.number != event.step or event.client not in step.cohort
        if step is None or not_asked or event.client in self.state.removed:
            return late_reply(self.state, event.step, event.client, event.digest)
        before = step.uploads.get(event.client)
        if before is not None:
            same = before.digest == event.digest
            return Reply.ALREADY_ACCEPTED if same else Reply.CONFLICT
        if step.closed is not None:
            return Reply.STEP_CLOSED
        self._fact(event)
        if not step.work.is_test:
            self.actions.append(Fold(event, step.weights[event.client]))
        return Reply.ACCEPTED

    def _commit(self, result: facts.StepCommitted) -> None:
        self._fact(result)
        self.actions.append(events.DropSpool(result.step))

    def _commit_test(self, step: int) -> None:
        """Commit a test, which leaves the model as it is."""
        state = self.state
        self._commit(
            facts.StepCommitted(
                step,
                state.mask_epoch,
                state.mask_digest,
                state.num_kept,
                state.base_digest,
                extra_digest=state.extra_digest,
                stage=state.stage,
            )
        )  # fmt: skip
        if self.state.best and self.state.best != state.best:
            self.actions.append(events.KeepBest(self.state.best))

    def _refresh_asked(self) -> Reply:
        state = self.state
        if not has_mask(state) or state.finished or no_round_left(state):
            return Reply.NO_MASK
        if not state.refresh_asked:
            self._fact(facts.RefreshRequested())
        return Reply.DONE

    def _remove_asked(self, event: events.RemoveAsked) -> None:
        is_removed = event.client in self.state.removed
        member = self.state.members.get(event.client)
        is_owned = member is not None and member.token != ""
        if event.readmit and (is_removed or is_owned):
            self._fact(facts.ClientReadmitted(event.client))
        if not event.readmit and not is_removed:
            self._fact(facts.ClientRemoved(event.client))

    def _suspended(self, seconds: float) -> None:
        """Shift the start of every timer by `seconds`, but not beyond now."""
        state = self.state

        def moved(since_s: float) -> float:
            return min(self.now_s, since_s + seconds)

        self.state = replace(
            state,
            countdown_from_s=moved(state.countdown_from_s),
            step_began_s=moved(state.step_began_s),
            asked_s=moved(state.asked_s),
            stall=replace(state.stall, since_s=moved(state.stall.since_s)) if state.stall else None,
        )

    def _start_asked(self) -> Reply:
        if self.state.paused:
            return Reply.PAUSED
        if self.state.founders or self.state.finished:
            return Reply.DONE
        settings = self.state.settings
        enough = settings.clients if settings.reproducible else settings.min_clients
        if self.state.num_ready < enough:
            return Reply.TOO_FEW_CLIENTS
        self._fact(facts.RunStarted(tuple(self.state.ready)))
        return Reply.DONE

    def _recovered(self) -> None:
        now_s = self.now_s
        self.state = replace(self.state, countdown_from_s=now_s, step_began_s=now_s, asked_s=now_s)
        best = self.state.best
        if best and best.step == self.state.model_step:
            self.actions.append(events.KeepBest(best))  # a crash may have prevented it
        if self.state.finished:
            self.actions.append(events.WriteModel())  # writes the best model, too
        step = self.state.step
        if step is None:
            return
        if step.work.is_test:
            if step.closed is not None:
                self._commit_test(step.number)
            return
        self.actions.append(events.OpenStep(step))
        for client, upload in sorted(step.uploads.items()):
            self.actions.append(Fold(upload, step.weights[client]))
        if step.closed is not None:
            self.actions.append(events.Reduce(step))

    def move_on(self) -> None:
        """Make every decision that is due."""
        due: list[Callable[[], bool]] = [
            self._stop, self._start, self._replace, self._close, self._begin,
        ]  # fmt: skip
        while any(decide() for decide in due):
            pass

    def _stop(self) -> bool:
        state = self.state
        if not state.stop_asked or state.finished:
            return False
        if state.step and state.step.closed is not None:
            return False  # the sum is being computed: let the round count
        if state.step:
            self.actions.append(events.DropSpool(state.step.number))
        self._finish(stopped=True)
        return True

    @property
    def _rests(self) -> bool:
        """Whether nothing new may start: the run is paused, or the process is shutting down."""
        return self.state.paused or self.state.draining

    def _start(self) -> bool:
        state = self.state
        if state.founders or state.finished or not state.manifest_digest or self._rests:
            return False
        expected = state.settings.clients
        if expected:
            begin = state.num_ready >= expected
        else:
            quiet = self.now_s - state.countdown_from_s >= QUIET_S
            begin = state.num_ready >= state.settings.min_clients and quiet
        if begin:
            self._fact(facts.RunStarted(tuple(state.ready)))
        return begin

    def _replace(self) -> bool:
        """Ask more clients to replace lost or overdue ones, while the deadline allows it."""
        step = self.state.step
        if step is None or self.state.draining:
            return False
        chosen = quorum.replacements(self.state, step, self.now_s)
        if chosen:
            self._fact(facts.ClientsAdded(step.number, chosen))
            self.state = replace(self.state, asked_s=self.now_s)
        return bool(chosen)

    def _close(self) -> bool:
        step = self.state.step
        if step is None or step.closed is not None:
            return False
        ends = quorum.verdict(self.state, step, self.now_s)
        if ends is None:
            return False
        if ends.void:
            self._fact(facts.StepVoided(step.number, ends.void, ends.lost))
            self.actions.append(events.DropSpool(step.number))
            return True
        accepted, missing = tuple(sorted(step.uploads)), tuple(sorted(step.pending))
        self._fact(facts.StepClosed(step.number, accepted, missing, ends.lost))
        if step.work.is_test:
            self._commit_test(step.number)
        else:
            assert self.state.step is not None
            self.actions.append(events.Reduce(self.state.step))
        return True

    def _begin(self) -> bool:
        state = self.state
        if not state.founders or state.step or state.finished or self._rests:
            return False
        settings, clients = state.settings, quorum.available(state)
        if _test_is_due(state) and state.rounds_evaluated < state.rounds_done and clients:
            self._start_step(Plan(Work.EVALUATE, tuple(clients)))
            return True
        if _is_last(state):
            personal = settings.personalize_epochs or strategy_for(settings).has_personal_models
            if personal and not state.personalized and clients:
                self._start_step(Plan(Work.PERSONALIZE, tuple(clients)))
            else:
                self._finish(stopped=False)
            return True
        if len(clients) < quorum.needed_next(state):
            return False
        reason, goal = refresh_due(state), quorum.goal(state, clients)
        position = Position(
            state.rounds_done,
            state.mask_epoch,
            0 if settings.reproducible else state.attempt,
            bool(reason),
            frozenset(clients) - set(state.founders),
            quorum.num_to_invite(state, goal) - goal if goal else 0,
            state.stage,
        )
        plan = strategy_for(settings).plan(position, clients)
        if plan is None:
            self._finish(stopped=False, reason="the strategy planned no further round")
        else:
            self._start_step(plan, reason)
        return True

    def _start_step(self, plan: Plan, reason: str = "") -> None:
        state, goal, bits = self.state, 0, None
        if plan.work is Work.TRAIN and not state.settings.reproducible:
            clients = quorum.available(state)
            goal = min(quorum.goal(state, clients), len(plan.cohort))
            weights = [weight_of(state.members[client], state.settings) for client in clients]
            bits = fraction_bits(VALUE_BOUND, len(weights) if plan.equal_weights else sum(weights))
        self._fact(
            facts.StepStarted(
                state.last_step + 1, plan.work, plan.criterion, state.rounds_done, state.attempt,
                {name: weight_of(state.members[name], state.settings) for name in plan.cohort},
                plan.reducer, plan.equal_weights, plan.num_batches, reason, goal, bits,
                plan.task, plan.counts_as_round,
            )
        )  # fmt: skip
        self.state = replace(self.state, step_began_s=self.now_s, asked_s=self.now_s)
        if not plan.work.is_test:
            assert self.state.step is not None
            self.actions.append(events.OpenStep(self.state.step))

    def _finish(self, *, stopped: bool, reason: str = "") -> None:
        ends_early = "" if stopped else reason or self.state.end_reason
        self._fact(facts.RunFinished(stopped, ends_early))
        self.actions.append(events.WriteModel())
