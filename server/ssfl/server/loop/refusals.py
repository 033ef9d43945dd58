"""Counts of refused calls by client and reason, logged at a limited rate.

The number of names is bounded. Clients that have not joined can use any name, so they have a
separate share and cannot displace the names of members. Names beyond the bound are counted as
"others". The first refusal of a kind is logged at once, later ones once a minute with their number.
The counts are lost when the process ends.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from ssfl.codec.errors import ChecksumMismatch, CodecError, DigestMismatch
from ssfl.method.errors import ManifestError
from ssfl.server.errors import Refusal

log = logging.getLogger(__name__)

MAX_MEMBERS, MAX_STRANGERS = 200, 50  # names kept
EVERY_S = 60.0
OTHERS, UNNAMED = "others", "unnamed"
OUTLIER = "outlier"  # the reason for scores left out of the mean
REASONS: dict[type[Exception], str] = {  # for errors that are not a Refusal
    CodecError: "bad_payload",
    ChecksumMismatch: "checksum_mismatch",
    DigestMismatch: "digest_mismatch",
    ManifestError: "bad_manifest",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Refusals:
    """Counts since the coordinator started."""

    def __init__(self, clock: Callable[[], float], is_member: Callable[[str], bool]) -> None:
        self._clock = clock
        self._is_member = is_member
        self._members: set[str] = set()
        self._strangers: set[str] = set()
        self._counts: Counter[tuple[str, str]] = Counter()
        # Time of the last log line, and the count then.
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def count(self, client: str, reason: str, text: str, **where: Any) -> None:
        """Count a refusal; log it unless one was logged within the last minute."""
        key = self._named(client), reason
        self._counts[key] += 1
        now_s = self._clock()
        logged_s, logged = self._logged.get(key, (-EVERY_S, 0))
        if logged and now_s - logged_s < EVERY_S:
            return
        count = self._counts[key]
        self._logged[key] = now_s, count
        times = {"times": count - logged} if count - logged > 1 else {}
        extra = {"client": key[0], "reason": reason, **where, **times}
        log.warning("call refused: %s", text, extra=extra)

    def count_error(self, client: str, error: Exception) -> None:
        """Count an error if it is a refusal."""
        if (reason := reason_of(error)) != "internal":
            self.count(client, reason, str(error))

    def rows(self) -> list[dict[str, Any]]:
        """Return client_id, reason and count, sorted by the first two."""
        return [
            {"client_id": client, "reason": reason, "count": count}
            for (client, reason), count in sorted(self._counts.items())
        ]

    def by_reason(self) -> dict[str, int]:
        """Return how often each reason was given, sorted by reason."""
        return self._totals(1)

    def by_client(self) -> dict[str, int]:
        """Return the number of refusals of each client, sorted by name."""
        return self._totals(0)

    def _totals(self, part: int) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for key, count in list(self._counts.items()):
            totals[key[part]] += count
        return dict(sorted(totals.items()))

    def _named(self, client: str) -> str:
        """Return the name to count under."""
        if not _NAME.fullmatch(client):
            return UNNAMED
        member = self._is_member(client)
        names, most = (self._members, MAX_MEMBERS) if member else (self._strangers, MAX_STRANGERS)
        if client in names or len(names) < most:
            names.add(client)
            return client
        return OTHERS


def reason_of(error: Exception) -> str:
    """Return the `ssfl-reason` metadata; "internal" if the error is not one of ours."""
    if isinstance(error, Refusal):
        return error.reason
    return next((REASONS[k] for k in type(error).__mro__ if k in REASONS), "internal")


def speaker_of(request: Any) -> str:
    """Return the client id in a request or in its `caller`; empty if there is none."""
    for holder in (getattr(request, "caller", None), request):
        name = getattr(holder, "client_id", "")
        if isinstance(name, str) and name:
            return name
    return ""
