"""Which clients train in a round."""

from collections.abc import Sequence
from typing import TypeVar

from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

Name = TypeVar("Name", bound=str)


def sample_cohort(
    settings: RunSettings, round_number: int, attempt: int, clients: Sequence[Name]
) -> list[Name]:
    """Return the round's clients, sorted; the same names in any order give the same cohort."""
    pool = sorted(clients)
    if not settings.clients_per_round or settings.clients_per_round >= len(pool):
        return pool
    stream = Stream(settings.seed, "cohort", round_number, attempt)
    return [pool[i] for i in stream.choose(len(pool), settings.clients_per_round)]
