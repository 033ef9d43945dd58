"""Whose scores may not count: a million times the median client's, as only a fault has.

Scores are summed on a grid that follows the largest of them, so one absurd score would flatten
everybody else's. Who is left out follows from the largest score of each report alone, which is
in the journal. At most half of the clients can be above the median; with one or two clients, or
where half have nothing but zeros, nothing can be said and everyone counts.
"""

from collections.abc import Iterable, Mapping
from statistics import median

from ssfl.method.strategies.contract import ClientId
from ssfl.server.run import facts

OUTLIER = 1e6  # times the median of the clients' largest scores


def outliers(
    uploads: Mapping[ClientId, facts.UploadAccepted], closed: Iterable[ClientId]
) -> tuple[ClientId, ...]:
    """Return the clients, of those in `closed`, whose scores dwarf all others', sorted."""
    largest = {client: uploads[client].largest for client in closed}
    middle = median(largest.values()) if largest else 0.0
    if not middle:
        return ()
    return tuple(sorted(client for client in largest if largest[client] > OUTLIER * middle))
