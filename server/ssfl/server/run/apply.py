"""Fold facts into the state of a run: `apply(state, fact)` returns the state after the fact."""

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from ssfl.server.run import facts
from ssfl.server.run.facts import Fact
from ssfl.server.run.quality import chosen_on, mean_client_loss, quality
from ssfl.server.run.state import Best, Member, RunState, Step, StepCounts, is_ready
from ssfl.strategies.contract import ClientId, Scorers, Work
from ssfl.strategies.registry import strategy_for

LOST_MEMORY = 0.8  # weight of the earlier share of lost clients in its moving average
MAX_REPLACED = 16  # newest replaced sessions that are kept for each member
MAX_LOSSES = 6  # newest rounds whose losses are kept to detect a jump


def apply(state: RunState, fact: Fact) -> RunState:
    """Return the state after a fact."""
    after = _applied(state, fact)
    match fact:
        case facts.StepStarted() | facts.ClientsAdded():
            return _recounted(state, after, fact.cohort)
        case facts.UploadAccepted():
            return _recounted(state, after, [fact.client])
        case (
            facts.ClientJoined()
            | facts.ClientLeft()
            | facts.ClientRemoved()
            | facts.ClientReadmitted()
        ):
            readier = is_ready(after, fact.client) - is_ready(state, fact.client)
            after = replace(after, num_ready=after.num_ready + readier)
            return _recounted(state, after, [fact.client])
        case facts.ModelInitialized():
            return replace(after, num_ready=len(after.ready))
        case _:
            return after


def with_lost(state: RunState, lost: frozenset[ClientId]) -> RunState:
    """Return the state in which exactly these members are lost."""
    return _recounted(state, replace(state, lost=lost), state.lost ^ lost)


def received_s(upload: facts.UploadAccepted) -> float:
    """Return when an upload was complete, in seconds from the step's start."""
    return float(upload.report.get("received_s", 0.0))


def standing(state: RunState, step: Step | None, client: ClientId) -> tuple[int, int, int]:
    """Return the contribution of a client to the counts of a step: pending, not left, here."""
    if step is None or not step.awaits(client) or client in state.removed:
        return 0, 0, 0
    if client not in state.members or state.members[client].left:
        return 1, 0, 0
    return 1, 1, int(client not in state.lost)


def _recounted(before: RunState, after: RunState, clients: Iterable[ClientId]) -> RunState:
    """Return `after` with updated step counts; `clients` are those whose standing changed."""
    step = after.step
    if step is None:
        return after
    pending, not_left, here = step.counts.pending, step.counts.not_left, step.counts.here
    slowest_s = step.counts.slowest_s
    for client in clients:
        was = standing(before, before.step, client)
        now = standing(after, step, client)
        pending += now[0] - was[0]
        not_left += now[1] - was[1]
        here += now[2] - was[2]
        if client in step.uploads:
            slowest_s = max(slowest_s, received_s(step.uploads[client]))
    counts = StepCounts(pending, not_left, here, slowest_s)
    return replace(after, step=replace(step, counts=counts))


def _applied(state: RunState, fact: Fact) -> RunState:
    match fact:
        case facts.RunOpened():
            return replace(state, run_id=fact.run_id)
        case facts.ClientJoined():
            before, replaced = state.members.get(fact.client), tuple[int, ...]()
            if before and before.token == fact.token:
                replaced = (*before.replaced, before.session)[-MAX_REPLACED:]
            member = Member(
                fact.client, fact.session, fact.token, fact.num_samples, fact.manifest_digest,
                fact.fingerprint, fact.encodings, fact.labels,
                has_final_model=before.has_final_model if before else False, replaced=replaced,
            )  # fmt: skip
            return replace(
                state,
                members={**state.members, fact.client: member},
                last_session=max(state.last_session, fact.session),
                lost=state.lost - {fact.client},
            )
        case facts.ModelInitialized():
            return replace(
                state,
                manifest_digest=fact.manifest_digest,
                described_by=fact.client,
                initial_digest=fact.initial_digest,
                mask_epoch=fact.mask_epoch,
                mask_digest=fact.mask_digest,
                num_kept=fact.num_kept,
                base_digest=fact.base_digest,
                stage=fact.stage,
            )
        case facts.RunStarted():
            return replace(state, founders=fact.clients)
        case facts.StepStarted():
            step = Step(
                fact.step, fact.work, fact.criterion, fact.round_number, fact.attempt,
                fact.cohort, uploads={}, reducer=fact.reducer, equal_weights=fact.equal_weights,
                num_batches=fact.num_batches, reason=fact.reason, goal=fact.goal,
                fraction_bits=fact.fraction_bits, task=fact.task,
                counts_as_round=fact.counts_as_round,
            )  # fmt: skip
            return replace(state, step=step, last_step=fact.step)
        case facts.ClientsAdded():
            step = _open(state)
            return replace(state, step=replace(step, cohort={**step.cohort, **fact.cohort}))
        case facts.UploadAccepted():
            step = _open(state)
            return replace(state, step=replace(step, uploads={**step.uploads, fact.client: fact}))
        case facts.StepClosed():
            state = _with_lost_share(state, fact.lost)
            return replace(state, step=replace(_open(state), closed=fact.accepted))
        case facts.StepVoided():
            state = _with_lost_share(state, fact.lost)
            return replace(state, step=None, attempt=state.attempt + 1)
        case facts.StepCommitted():
            return _committed(state, fact)
        case facts.RefreshRequested():
            return replace(state, refresh_asked=True)
        case facts.RunPaused():
            return replace(state, paused_at=fact.at)
        case facts.RunResumed():
            return replace(state, paused_at=None)
        case facts.StopRequested():
            return replace(state, stop_asked=True)
        case facts.RunFinished():
            reason = fact.reason or state.end_reason
            done = replace(state, finished=True, stopped=fact.stopped, end_reason=reason)
            return replace(done, step=None, paused_at=None)
        case facts.ClientLeft():
            member = replace(state.members[fact.client], left=True, has_final_model=fact.finished)
            return replace(state, members={**state.members, fact.client: member})
        case facts.ClientRemoved():
            return replace(state, removed=state.removed | {fact.client})
        case facts.ClientReadmitted():
            members = dict(state.members)
            if fact.client in members:  # the next token that joins owns the name
                members[fact.client] = replace(members[fact.client], token="")
            return replace(state, removed=state.removed - {fact.client}, members=members)
        case facts.BytesCounted():
            return state
        case _:
            assert_never(fact)


def newest_counted(state: RunState) -> tuple[int, dict[ClientId, str]]:
    """Return the step that produced the model, and the digests of its counted uploads."""
    newest = state.model_step
    counted = state.counted.items()
    return newest, {client: digest for client, (step, digest) in counted if step == newest}


def _open(state: RunState) -> Step:
    if state.step is None:
        raise ValueError("the journal refers to a step that is not open")
    return state.step


def _with_lost_share(state: RunState, lost: tuple[ClientId, ...]) -> RunState:
    """Return the state with the share of lost clients updated by a training step."""
    step = _open(state)
    if step.work is not Work.TRAIN or not step.cohort:
        return state
    now = len(lost) / len(step.cohort)
    expected = state.expected_share_lost
    return replace(state, share_lost=LOST_MEMORY * expected + (1 - LOST_MEMORY) * now)


def _committed(state: RunState, fact: facts.StepCommitted) -> RunState:
    step, moved = _open(state), fact.mask_epoch != state.mask_epoch
    state = replace(
        state,
        step=None,
        attempt=0,
        mask_epoch=fact.mask_epoch,
        mask_digest=fact.mask_digest,
        num_kept=fact.num_kept,
        base_digest=fact.base_digest,
        extra_digest=fact.extra_digest,
        stage=fact.stage,
    )
    match step.work:
        case Work.EVALUATE:
            return _evaluated(replace(state, rounds_evaluated=state.rounds_done), step)
        case Work.PERSONALIZE:
            return replace(state, personalized=True)
        case Work.SCORE:
            asks_all = strategy_for(state.settings).scorers is Scorers.ALL
            asked = step.cohort if asks_all else state.ready
            known = {label for client in asked for label in state.members[client].labels}
            state = replace(
                state,
                scored_digest=fact.scored_digest,
                masked_round=state.rounds_done,
                refresh_asked=False,
                known_labels=state.known_labels | known,
                losses=(),
            )
        case Work.TRAIN:
            loss = mean_client_loss([upload.report for upload in _closed(step)])
            losses = (*state.losses, *([] if loss is None else [loss]))[-MAX_LOSSES:]
            done = state.rounds_done + step.counts_as_round
            masked = done if moved else state.masked_round
            state = replace(state, rounds_done=done, losses=losses, masked_round=masked)
    counted = {upload.client: (fact.step, upload.digest) for upload in _closed(step)}
    return replace(state, model_step=fact.step, counted={**state.counted, **counted})


def _closed(step: Step) -> list[facts.UploadAccepted]:
    return [step.uploads[client] for client in step.closed or ()]


def _evaluated(state: RunState, step: Step) -> RunState:
    """Return the state after an evaluation by all clients: the best model and the end reason."""
    reports = [upload.report for upload in _closed(step)]
    accuracy, loss = quality(reports)
    if loss is None:
        return state
    tested = Best(
        state.model_step, state.rounds_done, state.mask_epoch, state.mask_digest,
        state.base_digest, accuracy, loss, chosen_on(reports), tuple(sorted(step.closed or ())),
    )  # fmt: skip
    if not _is_comparable(state, tested, step):
        return state
    more = state.best is not None and bool(set(tested.clients) - set(state.best.clients))
    if state.best is None or more or tested.beats(state.best):
        state = replace(state, best=tested, evaluations_since_best=0)
    elif tested.chosen_on == state.best.chosen_on:
        state = replace(state, evaluations_since_best=state.evaluations_since_best + 1)
    return replace(state, end_reason=_end_reason(state, accuracy))


def _is_comparable(state: RunState, tested: Best, step: Step) -> bool:
    """Return True if an evaluation can be compared with the best one so far.

    At least `min_clients` must have tested, and every client of the best evaluation that was
    asked again. Lost clients and clients that left are not asked. If more clients test than
    before, the comparison starts over, because they may bring other data.
    """
    if len(tested.clients) < min(state.settings.min_clients, len(state.ready)):
        return False
    before = state.best.clients if state.best else ()
    return {client for client in before if client in step.cohort} <= set(tested.clients)


def _end_reason(state: RunState, accuracy: float | None) -> str:
    settings = state.settings
    if settings.target_accuracy and accuracy is not None and accuracy >= settings.target_accuracy:
        return f"accuracy {accuracy:.4f} reached --target-accuracy {settings.target_accuracy:g}"
    if settings.patience and state.evaluations_since_best >= settings.patience:
        return f"no better evaluation in the last {state.evaluations_since_best} (--patience)"
    return ""
