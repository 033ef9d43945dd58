"""What a coordinator takes at most, beside its slots: members, joins, calls, values of a model.

docs/limits.md has them all, with their answers on the wire.
"""

import logging
import resource
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ssfl.method.manifest import Manifest
from ssfl.method.strategies.contract import ClientId
from ssfl.program.exits import usage_error
from ssfl.server.errors import ModelUnusable, RunFull, TooManyJoins
from ssfl.server.run.state import RunState

log = logging.getLogger(__name__)

MAX_CLIENTS = 10_000
MAX_MODEL_VALUES = 150_000_000  # one core builds about 11 million values a second from a seed
MAX_CONNECTIONS = 4096
MAX_STREAMS = 64  # calls at once on one connection; a client of ours has at most four
MAX_METADATA_BYTES = 16 << 10
OTHER_FILES = 256  # that are open beside the connections: journal, spool, libraries
JOINS, JOIN_EVERY_S = 20, 2.0  # of one client: so many at once, then one every so often
CLASSES = 2000  # told in a join, as counts or labels: they count like one more join
NEW_CLIENTS, NEW_CLIENT_EVERY_S = 1000, 0.01  # of ids that were never seen, all together


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator may set."""

    max_clients: int = MAX_CLIENTS
    max_model_values: int = MAX_MODEL_VALUES

    def check_room(
        self, client: ClientId, state: RunState, joining: Collection[ClientId] = ()
    ) -> None:
        """Raise RunFull if one member more, beside those just joining, would be too many."""
        taken = len(state.members.keys() | set(joining))
        if client not in state.members and taken >= self.max_clients:
            raise RunFull(
                f"this run has {taken} clients, as many as its coordinator takes: "
                "start it again with a larger --max-clients"
            )

    def check_model(self, manifest: Manifest) -> None:
        """Raise ModelUnusable for a model beyond the limit; nothing of it is in memory yet."""
        if manifest.size > self.max_model_values:
            raise ModelUnusable(
                f"the model has {manifest.size} values, this coordinator takes at most "
                f"{self.max_model_values}: start it again with a larger --max-model-values"
            )


class Bucket:
    """Lets `most` through at once, and then one every `every_s`."""

    def __init__(self, most: int, every_s: float, now_s: float) -> None:
        self._most, self._every_s = most, every_s
        self._left, self._at_s = float(most), now_s

    def spend(self, now_s: float, cost: float = 1.0) -> float:
        """Let one through and return 0; or return the seconds until it may pass."""
        refilled = self._left + (now_s - self._at_s) / self._every_s
        self._left, self._at_s = min(float(self._most), refilled), now_s
        if self._left < cost:
            return (cost - self._left) * self._every_s
        self._left -= cost
        return 0.0


class Joins:
    """Keeps a flood of joins from the journal and from memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._newcomers = Bucket(NEW_CLIENTS, NEW_CLIENT_EVERY_S, clock())
        self._known: dict[ClientId, Bucket] = {}  # of members: as many as they are, at most

    def check(self, client: ClientId, state: RunState, num_classes: int = 0) -> None:
        """Raise TooManyJoins if this one has to wait; one that tells many classes counts more."""
        now_s = self._clock()
        if client in state.members:
            bucket = self._known.setdefault(client, Bucket(JOINS, JOIN_EVERY_S, now_s))
            who = f"{client} joins"
        else:
            bucket, who = self._newcomers, "new clients join"
        if wait_s := bucket.spend(now_s, 1 + num_classes / CLASSES):
            raise TooManyJoins(f"{who} more often than anybody has to: try again in {wait_s:.1f} s")


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
    """Return how many connections this process may have, after asking the system for room.

    A coordinator that runs out of open files could not write its journal either.
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
