"""Sampling of the clients that train in a round."""

from collections.abc import Collection, Sequence
from typing import TypeVar

from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

Name = TypeVar("Name", bound=str)


def sample_cohort(
    settings: RunSettings,
    round_number: int,
    attempt: int,
    clients: Sequence[Name],
    newcomers: Collection[Name] = (),
    spare: int = 0,
) -> list[Name]:
    """Return the round's clients, sorted; the order of `clients` does not matter.

    `newcomers` are the clients that joined after the start. With `newcomers_per_round` they are
    sampled separately, so that a round has that number of them: fewer if there are fewer, more if
    there are too few other clients. `spare` more clients are sampled in case some are lost.
    """
    pool = sorted(clients)
    count = cohort_size(settings, len(pool)) + spare
    if count >= len(pool):
        return pool
    new = sorted(set(newcomers) & set(pool)) if settings.newcomers_per_round else []
    stream = Stream(settings.seed, "cohort", round_number, attempt)
    if not new:
        return [pool[i] for i in stream.choose(len(pool), count)]
    others = sorted(set(pool) - set(new))
    num_new = max(min(settings.newcomers_per_round, len(new), count), count - len(others))
    chosen = [others[i] for i in stream.choose(len(others), count - num_new)]
    return sorted(chosen + [new[i] for i in stream.choose(len(new), num_new)])


def cohort_size(settings: RunSettings, num_clients: int) -> int:
    """Return how many of the available clients train in a round."""
    if settings.client_fraction:
        target = int(settings.client_fraction * num_clients + 0.5)
        return min(num_clients, max(target, settings.min_clients))
    return min(num_clients, settings.clients_per_round or num_clients)
