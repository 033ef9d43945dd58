"""Limits of a coordinator other than upload slots: members, joins, calls and model size.

docs/limits.md lists all limits with the status that a client gets.
"""

import logging
import resource
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ssfl.method.manifest import Manifest
from ssfl.program.exits import usage_error
from ssfl.server.errors import ModelUnusable, RunFull, TooManyJoins
from ssfl.server.run.state import RunState
from ssfl.strategies.contract import ClientId

log = logging.getLogger(__name__)

MAX_CLIENTS = 10_000
MAX_MODEL_VALUES = 150_000_000  # one core builds about 11 million values a second from a seed
MAX_CONNECTIONS = 4096
MAX_STREAMS = 64  # concurrent calls on one connection; ssfl-client has at most four
MAX_METADATA_BYTES = 16 << 10
OTHER_FILES = 256  # open files other than connections: journal, spool, libraries
JOINS, JOIN_EVERY_S = 20, 2.0  # per client: a burst of JOINS, then one every JOIN_EVERY_S
CLASSES = 2000  # this many class counts or labels in a Join count as one more Join
NEW_CLIENTS, NEW_CLIENT_EVERY_S = 1000, 0.01  # for all new ids together


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that an operator may set."""

    max_clients: int = MAX_CLIENTS
    max_model_values: int = MAX_MODEL_VALUES

    def check_room(
        self, client: ClientId, state: RunState, joining: Collection[ClientId] = ()
    ) -> None:
        """Raise RunFull if there is no room for one more member, counting those now joining."""
        taken = len(state.members.keys() | set(joining))
        if client not in state.members and taken >= self.max_clients:
            raise RunFull(
                f"this run has {taken} clients, the most that its coordinator allows: "
                "restart the coordinator with a larger --max-clients"
            )

    def check_model(self, manifest: Manifest) -> None:
        """Raise ModelUnusable for a model over the limit, before any of it is in memory."""
        if manifest.size > self.max_model_values:
            raise ModelUnusable(
                f"the model has {manifest.size} values; this coordinator allows at most "
                f"{self.max_model_values}: restart it with a larger --max-model-values"
            )


class Bucket:
    """Token bucket: allows a burst of `most` calls, then one every `every_s`."""

    def __init__(self, most: int, every_s: float, now_s: float) -> None:
        self._most, self._every_s = most, every_s
        self._left, self._at_s = float(most), now_s

    def spend(self, now_s: float, cost: float = 1.0) -> float:
        """Spend `cost` tokens and return 0, or return the seconds until there are enough."""
        refilled = self._left + (now_s - self._at_s) / self._every_s
        self._left, self._at_s = min(float(self._most), refilled), now_s
        if self._left < cost:
            return (cost - self._left) * self._every_s
        self._left -= cost
        return 0.0


class Joins:
    """Limits the rate of joins, which take space in the journal and in memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._newcomers = Bucket(NEW_CLIENTS, NEW_CLIENT_EVERY_S, clock())
        self._known: dict[ClientId, Bucket] = {}  # members only

    def check(self, client: ClientId, state: RunState, num_classes: int = 0) -> None:
        """Raise TooManyJoins if this Join must wait; one with many classes costs more."""
        now_s = self._clock()
        if client in state.members:
            bucket = self._known.setdefault(client, Bucket(JOINS, JOIN_EVERY_S, now_s))
            who = f"{client} joins"
        else:
            bucket, who = self._newcomers, "new clients join"
        if wait_s := bucket.spend(now_s, 1 + num_classes / CLASSES):
            raise TooManyJoins(f"{who} too often: try again in {wait_s:.1f} s")


def check_open_files(clients: int) -> None:
    """Raise ProgramError(USAGE) if the system allows too few open files for `clients` connections.

    The soft limit is raised first, as far as the hard limit lets it.
    """
    needed = clients + OTHER_FILES
    soft = _raised_limit(needed)
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise usage_error(
            f"{clients} clients need {needed} open files, and the system allows {soft}: raise the "
            f"limit with `ulimit -n {needed}` (systemd: LimitNOFILE={needed}, Docker: "
            f"--ulimit nofile={needed}) and start again"
        )


def connections_that_fit(wanted: int) -> int:
    """Return the number of connections this process may have, after raising its file limit.

    A coordinator that runs out of open files cannot write its journal.
    """
    soft = _raised_limit(wanted + OTHER_FILES)
    fit = wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - OTHER_FILES))
    if fit < wanted:
        log.warning(
            "the system allows fewer open files than --max-connections needs (ulimit -n)",
            extra={"max_connections": fit, "wanted": wanted},
        )
    return fit


def _raised_limit(needed: int) -> int:
    """Raise the limit of open files towards `needed`; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
