"""The invariants of `ssfl.server.run.state`, each quoted and checked between two states.

`check_invariants` runs after every event of the core harness, so that every random run, story and
recovery test holds them.
"""

from collections.abc import Callable

from ssfl.server.run.apply import received_s, standing
from ssfl.server.run.state import RunState, Step, StepCounts
from ssfl.strategies.contract import Work

Holds = Callable[[RunState, RunState], bool]


def count_step(state: RunState, step: Step) -> StepCounts:
    """Return the counts of a step by walking over its whole cohort."""
    standings = [(0, 0, 0), *(standing(state, step, client) for client in step.cohort)]
    pending, not_left, here = (sum(column) for column in zip(*standings, strict=True))
    slowest_s = max((received_s(upload) for upload in step.uploads.values()), default=0.0)
    return StepCounts(pending, not_left, here, slowest_s)


def _of_step(holds: Callable[[Step, RunState], bool]) -> Holds:
    return lambda _, after: after.step is None or holds(after.step, after)


def _of_same_step(holds: Callable[[Step, Step], bool]) -> Holds:
    def both(before: RunState, after: RunState) -> bool:
        if before.step is None or after.step is None or before.step.number != after.step.number:
            return True
        return holds(before.step, after.step)

    return both


def _uploads_stay(before: Step, after: Step) -> bool:
    return set(after.uploads) <= set(after.cohort) and all(
        after.uploads.get(client) == upload for client, upload in before.uploads.items()
    )


def _closed_counts_its_uploads(before: Step, after: Step) -> bool:
    if after.closed is None:
        return before.closed is None
    if before.closed is not None and before.uploads != after.uploads:
        return False
    return after.closed == tuple(sorted(after.uploads))


def _rounds_follow_training(before: RunState, after: RunState) -> bool:
    """One event commits at most one step, the one that was open and closed before it."""
    step = before.step if after.model_step != before.model_step else None
    is_round = step is not None and step.work is Work.TRAIN and step.counts_as_round
    return after.rounds_done == before.rounds_done + int(is_round)


INVARIANTS: dict[str, Holds] = {
    "no two members have the same session.": lambda _, after: (
        len({member.session for member in after.members.values()}) == len(after.members)
    ),
    "the counts of a step equal those that a new count over its cohort gives.": _of_step(
        lambda step, state: step.counts == count_step(state, step)
    ),
    "step numbers only grow; a void step's number is not used again.": lambda before, after: (
        after.last_step >= before.last_step
        and (after.step is None or after.step.number == after.last_step)
        and (
            before.step == after.step
            or after.step is None
            or before.step is None
            or before.step.number == after.step.number
            or after.step.number > before.last_step
        )
    ),
    "every client of a cohort is a member.": _of_step(
        lambda step, state: set(step.cohort) <= set(state.members)
    ),
    "no client leaves the cohort of a step, and none changes its samples.": _of_same_step(
        lambda before, after: set(before.cohort.items()) <= set(after.cohort.items())
    ),
    "accepted uploads come from the cohort; none is replaced or withdrawn.": _of_same_step(
        _uploads_stay
    ),
    "a closed step counts exactly its accepted uploads, and accepts no more.": _of_same_step(
        _closed_counts_its_uploads
    ),
    "a member never disappears; one that leaves or is removed stays listed.": (
        lambda before, after: set(before.members) <= set(after.members)
    ),
    "the model is described once; its manifest digest never changes afterwards.": (
        lambda before, after: before.manifest_digest in ("", after.manifest_digest)
    ),
    "the mask epoch never falls, and the mask digest changes only with it.": lambda before, after: (
        after.mask_epoch > before.mask_epoch
        or (after.mask_epoch, after.mask_digest) == (before.mask_epoch, before.mask_digest)
    ),
    "founders are set once.": lambda before, after: before.founders in ((), after.founders),
    "rounds_done grows by one with each committed TRAIN step that counts as a round, "
    "and never otherwise.": (_rounds_follow_training),
    "no counted upload belongs to a later step than the model's.": lambda _, after: all(
        step <= after.model_step for step, _digest in after.counted.values()
    ),
    "a finished run has no step and stays finished.": lambda before, after: (
        not (after.finished and after.step) and after.finished >= before.finished
    ),
    "no member has a session after last_session.": lambda _, after: all(
        member.session <= after.last_session for member in after.members.values()
    ),
    "num_ready is the length of `ready`.": lambda _, after: after.num_ready == len(after.ready),
}


def check_invariants(before: RunState, after: RunState) -> None:
    """Raise AssertionError quoting every invariant that the change of state breaks."""
    broken = [sentence for sentence, holds in INVARIANTS.items() if not holds(before, after)]
    assert not broken, f"broken: {broken}"
