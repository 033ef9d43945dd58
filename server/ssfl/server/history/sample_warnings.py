"""Warnings about sample counts: one client has most of the data, or its count changed.

Counts are claims of the clients. --max-samples limits their effect; this module only warns.
"""

import logging

from ssfl.method.strategies.contract import ClientId
from ssfl.server.run.state import Member, RunState
from ssfl.server.run.weights import weight_of

log = logging.getLogger("ssfl.run")

MIN_CLIENTS = 3  # of two clients, one nearly always has more than half


def majority(state: RunState) -> ClientId | None:
    """Return the ready client that has more than half of all samples, if there is one."""
    weights = {name: weight_of(state.members[name], state.settings) for name in state.ready}
    if len(weights) < MIN_CLIENTS:
        return None
    client = max(weights, key=lambda name: weights[name])
    return client if 2 * weights[client] > sum(weights.values()) else None


def warn_of_majority(state: RunState) -> ClientId | None:
    """Log and return the client that has more than half of all samples."""
    client = majority(state)
    if client is not None:
        log.warning(
            "one client has more than half of all samples: the model is mostly its own "
            "(--max-samples bounds what a client may claim)",
            extra={"client": client, "num_samples": state.members[client].num_samples},
        )
    return client


class SampleCounts:
    """Checks clients that join; logs each warning once per client."""

    def __init__(self) -> None:
        self._changed: set[ClientId] = set()
        self._majority: set[ClientId] = set()

    def joined(self, client: ClientId, before: Member | None, state: RunState) -> None:
        """Check a client that has just joined; `before` is its earlier membership, if any."""
        now = state.members[client]
        if before and before.num_samples != now.num_samples and client not in self._changed:
            self._changed.add(client)
            log.warning(
                "a client joined again with another number of samples: it counts from the next "
                "step on",
                extra={"client": client, "was": before.num_samples, "num_samples": now.num_samples},
            )
        if state.founders and client not in self._majority and majority(state) == client:
            self._majority.add(client)  # before the start, more clients may join
            warn_of_majority(state)
