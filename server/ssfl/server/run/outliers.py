"""Outlier scores: a million times those of the median client, which only a fault produces.

Scores are summed on a grid that follows the largest score, so one absurd score would flatten all
others. The decision depends only on the largest score of each report, which is in the journal.
At most half of the clients can be above the median. With one or two clients, or if half of them
report only zeros, no client is an outlier.
"""

from collections.abc import Iterable, Mapping
from statistics import median

from ssfl.method.strategies.contract import ClientId
from ssfl.server.run import facts

OUTLIER = 1e6  # times the median of the clients' largest scores


def outliers(
    uploads: Mapping[ClientId, facts.UploadAccepted], closed: Iterable[ClientId]
) -> tuple[ClientId, ...]:
    """Return the clients in `closed` whose scores are outliers, sorted."""
    largest = {client: uploads[client].largest for client in closed}
    middle = median(largest.values()) if largest else 0.0
    if not middle:
        return ()
    return tuple(sorted(client for client in largest if largest[client] > OUTLIER * middle))
