"""Rules for refreshing the mask: on request, at a round, for new labels, or on a loss jump.

Pure functions of RunState. A reason is a text for users; it is empty if there is none.
"""

from collections.abc import Sequence
from statistics import median

from ssfl.method.schedule import parse_rounds, sparsity_at
from ssfl.server.run.state import RunState
from ssfl.strategies.contract import Work
from ssfl.strategies.registry import strategy_for

USUAL_ROUNDS = 5  # the usual loss is the median of this many rounds
MIN_ROUNDS = 3  # before a jump can be detected


def has_mask(state: RunState) -> bool:
    """Return True if there is an agreed mask to refresh (the all-ones mask of a warm-up is not)."""
    if strategy_for(state.settings).why_fixed:
        return False
    return state.mask_epoch > (1 if state.settings.warmup_rounds else 0)


def no_round_left(state: RunState) -> bool:
    """Return True if no further round could use a new mask."""
    training = state.step is not None and state.step.work is Work.TRAIN
    return state.rounds_done + training >= state.settings.rounds or bool(state.end_reason)


def refresh_due(state: RunState) -> str:
    """Return why the mask is due for a refresh before the next round; empty if it is not."""
    settings, done = state.settings, state.rounds_done
    if not has_mask(state) or done >= settings.rounds or state.end_reason:
        return ""
    if state.refresh_asked:
        return "asked for by the operator"
    if done == state.masked_round:  # the mask is new
        return ""
    if done in parse_rounds(settings.refresh_rounds):
        return f"before round {done}, as set"
    if settings.refresh_every and done % settings.refresh_every == 0:
        return f"every {settings.refresh_every} rounds, as set"
    if settings.sparsity_schedule:
        now = sparsity_at(settings.sparsity_schedule, done)
        if now != sparsity_at(settings.sparsity_schedule, state.masked_round):
            return f"sparsity {now} from round {done} on, as set"
    if settings.refresh_on_new_labels and (new := _new_labels(state)):
        return f"new labels: {', '.join(str(label) for label in new[:10])}"
    if settings.refresh_on_loss_jump:
        return loss_jump(state.losses, settings.refresh_on_loss_jump)
    return ""


def _new_labels(state: RunState) -> list[int]:
    present = [client for client in state.ready if client not in state.lost]
    here = {label for client in present for label in state.members[client].labels}
    return sorted(here - state.known_labels) if state.known_labels else []


def loss_jump(losses: Sequence[float], factor: float) -> str:
    """Return why the newest loss is a jump; empty if it is none."""
    if len(losses) <= MIN_ROUNDS:
        return ""
    *before, now = losses
    usual = median(before[-USUAL_ROUNDS:])
    # A multiple of a negative loss is lower than it, so no loss is a jump from a negative one.
    if usual < 0 or now <= usual or now < factor * usual:
        return ""
    return f"the mean client loss rose to {now:.3g}, usual was {usual:.3g}"
