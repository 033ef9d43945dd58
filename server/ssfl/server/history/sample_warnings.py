"""Sample counts that someone should look at: one client with most of the data, or another count.

A count is the client's word. What it can do is bounded by --max-samples; here it is only told.
"""

import logging

from ssfl.method.strategies.contract import ClientId
from ssfl.server.run.state import Member, RunState
from ssfl.server.run.weights import weight_of

log = logging.getLogger("ssfl.run")

FEWEST = 3  # of two clients, one nearly always has more than half


def majority(state: RunState) -> ClientId | None:
    """Return the client, of those at work, that has more than half of all samples."""
    weights = {one: weight_of(state.members[one], state.settings) for one in state.ready}
    if len(weights) < FEWEST:
        return None
    client = max(weights, key=lambda one: weights[one])
    return client if 2 * weights[client] > sum(weights.values()) else None


def warn_of_majority(state: RunState) -> ClientId | None:
    """Say who has more than half of all samples; return that client."""
    client = majority(state)
    if client is not None:
        log.warning(
            "one client has more than half of all samples: the model is mostly its own "
            "(--max-samples bounds what a client may claim)",
            extra={"client": client, "num_samples": state.members[client].num_samples},
        )
    return client


class SampleCounts:
    """Watches joins; says each thing once per client."""

    def __init__(self) -> None:
        self._changed: set[ClientId] = set()
        self._majority: set[ClientId] = set()

    def joined(self, client: ClientId, before: Member | None, state: RunState) -> None:
        """Look at a client that has just joined; `before` is what it was, if it was here."""
        now = state.members[client]
        if before and before.num_samples != now.num_samples and client not in self._changed:
            self._changed.add(client)
            log.warning(
                "a client joined again with another number of samples: it counts from the next "
                "step on",
                extra={
                    "client": client,
                    "was": before.num_samples,
                    "num_samples": now.num_samples,
                },
            )
        if state.founders and client not in self._majority and majority(state) == client:
            self._majority.add(client)  # before the start, everyone may still come
            warn_of_majority(state)
