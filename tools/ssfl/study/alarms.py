"""Hits and false alarms of the trigger that refreshes a mask on a jump of the loss.

The rule of the service (`ssfl.server.run.refresh`) is applied to the losses of a finished run whose
mask was kept, so one run serves for every factor. As in a run, the count begins again after an
alarm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ssfl.server.run.refresh import loss_jump

WITHIN = 5  # rounds after an arrival in which an alarm is a hit


@dataclass(frozen=True, slots=True)
class Alarms:
    """The alarms of a run in which something changed at a known round."""

    hit: bool  # an alarm in the rounds after the change
    delay: int | None  # rounds until the first of them; 0: the first changed round
    false: int  # alarms before the change
    rounds_before: int


def alarms(losses: Sequence[float], factor: float) -> list[int]:
    """Return the rounds, counted from 0, whose loss is a jump.

    >>> alarms([1.0, 1.0, 1.0, 1.0, 2.0, 2.0], 1.5), alarms([1.0, 1.0, 2.0], 1.5)
    ([4], [])
    """
    found, since = [], 0
    for number in range(len(losses)):
        if loss_jump(losses[since : number + 1], factor):
            found.append(number)
            since = number + 1
    return found


def detection(losses: Sequence[float], factor: float, arrival: int) -> Alarms:
    """Return the alarms of a run whose data change in round `arrival`."""
    found = alarms(losses, factor)
    hits = [number - arrival for number in found if arrival <= number < arrival + WITHIN]
    before = sum(number < arrival for number in found)
    return Alarms(bool(hits), hits[0] if hits else None, before, arrival)
