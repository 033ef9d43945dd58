"""Quorum rules: required reports, reachable clients and replacements. Pure functions of RunState.

A client is away if it left, was removed, or is lost (it missed three heartbeats in a row). The goal
of a step is the number of reports it asks for: `--clients-per-round` with partial participation,
otherwise the whole cohort. Its quorum, usually smaller, is the number of reports with which it may
close. With `--reproducible`, every selected client must report.
"""

import math
from dataclasses import dataclass

from ssfl.method.exact_sum import VALUE_BOUND, max_weight
from ssfl.method.sampling import cohort_size
from ssfl.method.streams import Stream
from ssfl.server.run.refresh import refresh_due
from ssfl.server.run.state import RunState, Stall, Step, weight_of
from ssfl.strategies.contract import ClientId, Position, Scorers, Work
from ssfl.strategies.registry import strategy_for

MIN_TIME_LEFT = 0.25  # share of the round deadline that must remain to ask replacements
MAX_OVER_SELECTION = 3.0  # invitations per report needed, at most
# Clients are overdue after OVERDUE times the slowest report so far; then replacements are asked.
OVERDUE = 3.0
MIN_OVERDUE_S = 60.0


def is_away(state: RunState, client: ClientId) -> bool:
    """Return True if a member left, was removed or is lost."""
    return state.members[client].left or client in state.removed or client in state.lost


def final_model_delivered(state: RunState) -> bool:
    """Return True if the run is finished and every member that is not away has the final model."""
    return state.finished and all(
        member.has_final_model or is_away(state, member.client) for member in state.members.values()
    )


def available(state: RunState) -> list[ClientId]:
    """Return the clients that can be asked: those that are ready and not lost, sorted.

    A reproducible run that has started asks all its founders, except removed ones.
    """
    if state.settings.reproducible and state.founders:
        return sorted(set(state.founders) - state.removed)
    return [client for client in state.ready if client not in state.lost]


def is_binding(state: RunState, step: Step) -> bool:
    """Return True if the step waits for every selected client, regardless of the deadline."""
    settings = state.settings
    decides = step.work is Work.EVALUATE and (settings.patience or settings.target_accuracy)
    return settings.reproducible and (bool(decides) or not step.work.is_test)


def quorum(state: RunState, step: Step) -> int:
    """Return the number of reports with which a step may close early, if no other can arrive."""
    settings, reported = state.settings, len(step.uploads)
    if is_binding(state, step):
        return reported + step.counts.pending
    if step.work.is_test:
        return 0
    is_vote = step.work is Work.SCORE and len(step.cohort) > 1
    if is_vote and settings.scoring_quorum:
        return settings.scoring_quorum
    if step.work is Work.SCORE and not step.reason:  # the first vote also waits for lost clients
        return reported + step.counts.not_left
    return min(settings.min_clients, len(step.cohort))


def min_to_commit(state: RunState, step: Step) -> int:
    """Return the number of reports a step needs to count once it no longer waits."""
    if step.work is Work.SCORE and not step.reason and not state.settings.scoring_quorum:
        return min(state.settings.min_clients, len(step.cohort))
    return quorum(state, step)


def target_reports(state: RunState, step: Step) -> int:
    """Return the number of reports up to which a training step asks replacements."""
    return step.goal or quorum(state, step)


def can_report(step: Step) -> int:
    """Return the number of reports received or still expected from clients that are not away."""
    return len(step.uploads) + step.counts.here


def replacement_pool(state: RunState, step: Step, now_s: float) -> list[ClientId]:
    """Return the clients that could replace lost or overdue ones, in the order to ask them."""
    settings = state.settings
    if step.work is not Work.TRAIN or settings.reproducible or step.closed is not None:
        return []
    left_s = settings.round_deadline_s - (now_s - state.step_began_s)
    if left_s < MIN_TIME_LEFT * settings.round_deadline_s:
        return []
    pool = [client for client in available(state) if client not in step.cohort]
    stream = Stream(settings.seed, "replacement", step.number, len(step.cohort))
    order = [pool[i] for i in stream.permutation(len(pool))]
    return [c for c in order if _fits(step, [weight_of(state.members[c], settings)])]


def replacements(state: RunState, step: Step, now_s: float) -> dict[ClientId, int]:
    """Return the further clients to ask, with their samples, to reach `target_reports`."""
    coming = len(step.uploads) if _is_overdue(state, step, now_s) else can_report(step)
    missing = target_reports(state, step) - coming
    if missing <= 0:
        return {}
    count, chosen = num_to_invite(state, missing), dict[ClientId, int]()
    for client in replacement_pool(state, step, now_s):
        samples = weight_of(state.members[client], state.settings)
        if len(chosen) < count and _fits(step, [*chosen.values(), samples]):
            chosen[client] = samples
    return chosen


def _is_overdue(state: RunState, step: Step, now_s: float) -> bool:
    """Return True if the pending clients take so long that replacements should be asked."""
    if 2 * len(step.uploads) < target_reports(state, step):
        return False  # too few reports to know how long the work takes
    return now_s - state.asked_s > max(OVERDUE * step.counts.slowest_s, MIN_OVERDUE_S)


def _fits(step: Step, more: list[int]) -> bool:
    """Return True if the step's grid, announced at its start, has room for more clients."""
    if step.fraction_bits is None:
        return False
    added = len(more) if step.equal_weights else sum(more)
    return sum(step.weights.values()) + added <= max_weight(VALUE_BOUND, step.fraction_bits)


def num_to_invite(state: RunState, reports: int) -> int:
    """Return how many clients to ask to get `reports`, given the recent share of lost clients."""
    if state.settings.over_selection <= 1:
        return reports
    return clients_for(reports, state.expected_share_lost)


def clients_for(reports: int, share_lost: float) -> int:
    """Return how many clients to ask to get `reports` if `share_lost` of them are lost.

    >>> [clients_for(10, share) for share in (0.0, 0.1, 0.3, 0.9)]
    [10, 12, 15, 30]
    """
    return math.ceil(reports / max(1 - share_lost, 1 / MAX_OVER_SELECTION) - 1e-9)


def goal(state: RunState, clients: list[ClientId]) -> int:
    """Return the number of reports that closes a training round; 0: all of the cohort."""
    if state.settings.reproducible:
        return 0
    count = cohort_size(state.settings, len(clients))
    return count if count < len(clients) else 0


def needed_next(state: RunState) -> int:
    """Return how many clients the next step of a started run needs."""
    settings, strategy = state.settings, strategy_for(state.settings)
    if not settings.scoring_quorum or strategy.scorers is not Scorers.ALL:
        return settings.min_clients
    position = Position(state.rounds_done, state.mask_epoch, 0, bool(refresh_due(state)))
    if not strategy.is_mask_due(position):
        return settings.min_clients
    return max(settings.min_clients, settings.scoring_quorum)


def find_stall(state: RunState, now_s: float) -> Stall | None:
    """Return why the run cannot continue with the present clients; None if it can.

    None also before the run starts, when it is finished, and while the coordinator shuts down.
    """
    if not state.founders or state.finished or state.draining:
        return None
    step, settings = state.step, state.settings
    if step is None:
        here, need = len(available(state)), needed_next(state)
        if here >= need:
            return None
        gone = sorted(c for c in state.members if is_away(state, c) and c not in state.removed)
        reason = f"clients: {here} of at least {need} are here for the next step"
        return Stall(reason, tuple(gone), f"{_clients(need - here)} to return or to join", now_s)
    if step.closed is not None:
        return None
    need, possible = quorum(state, step), can_report(step)
    if possible < need:
        possible += len(replacement_pool(state, step, now_s))
    if possible >= need:
        return None
    absent = _pending_away(state, step)
    reason = f"{step.work.value}: {possible} of at least {need} reports can come"
    unblock = _clients(need - possible)
    unblock += " of those missing to return" if absent else " to join"
    if absent and step.work is Work.TRAIN and not settings.reproducible:
        unblock += ", or others to join"
    if not is_binding(state, step):
        enough = can_report(step) >= min_to_commit(state, step)
        then = "it continues without them" if enough else "it is void and tried again"
        unblock += f", or the round deadline (--round-deadline-s {settings.round_deadline_s:g})"
        unblock += f": then {then}"
    return Stall(reason, absent, unblock, now_s)


def _pending_away(state: RunState, step: Step) -> tuple[ClientId, ...]:
    """Return the pending clients that left or are lost, sorted."""
    pending = step.pending - state.removed
    return tuple(sorted(client for client in pending if is_away(state, client)))


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a step ends: with these reports, or void."""

    void: str = ""  # the reason; empty: the step counts
    lost: tuple[ClientId, ...] = ()  # asked clients that are away, or missed the deadline


def verdict(state: RunState, step: Step, now_s: float) -> Verdict | None:
    """Return how a step ends if it ends now; None while it is open.

    A pausing run does not wait for clients that are away. A step that cannot finish without them
    is void and is retried after the pause; otherwise the pause would never begin.
    """
    counts, reported = step.counts, len(step.uploads)
    late = now_s - state.step_began_s >= state.settings.round_deadline_s
    late = late and not is_binding(state, step)
    alone = step.work is Work.SCORE and len(step.cohort) == 1 and not state.settings.reproducible
    if alone and counts.pending and not counts.here and available(state):
        return Verdict("the client asked for the scores is away", _pending_away(state, step))
    reached = bool(step.goal) and reported >= step.goal
    waits = counts.here or reported < quorum(state, step)
    if counts.pending and waits and not reached and not late:
        stall = find_stall(state, now_s) if state.paused else None
        return Verdict(stall.reason, _pending_away(state, step)) if stall else None
    away = _pending_away(state, step)
    lost = tuple(sorted(step.pending - state.removed)) if late else away
    enough = min_to_commit(state, step)
    if not step.work.is_test and reported < enough:
        return Verdict(f"{reported} of at least {enough} reported", lost)
    return Verdict("", lost)
