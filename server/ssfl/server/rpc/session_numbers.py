"""Session numbers that cannot be guessed: the journal counts Joins, the wire carries a signature.

    number := 2^62 + the first 62 bits of HMAC-SHA256(key, run id NUL client id NUL count)

The key is a file of the state directory, so a session survives a restart of the coordinator. A
client sends its number back unchanged. The leading 2^62 keeps every number nine bytes long on the
wire and apart from the counts 1, 2, 3, … that earlier versions sent.
"""

import hashlib
import hmac
import secrets

from ssfl.server.errors import StateError
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.strategies.contract import ClientId

KEY_BYTES = 32
LARGEST = (1 << 63) - 1
_LEADING = 1 << 62


def read_session_key(directory: StateDirectory) -> bytes:
    """Return the key of a state directory; create it if the directory has none."""
    key = directory.read_session_key(lambda: secrets.token_bytes(KEY_BYTES))
    if len(key) != KEY_BYTES:
        raise StateError(
            f"{directory.session_key} has {len(key)} bytes instead of {KEY_BYTES}: restore it from "
            "a backup, or delete it; the coordinator then creates another, and all clients join "
            "again"
        )
    return key


class SessionNumbers:
    """Signs sessions, and recognizes its signatures."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def number(self, run_id: str, client: ClientId, count: int) -> int:
        """Return the number on the wire for the session that the journal counts as `count`."""
        text = b"\0".join((run_id.encode(), client.encode(), str(count).encode()))
        digest = hmac.digest(self._key, text, hashlib.sha256)
        return _LEADING | int.from_bytes(digest[:8]) >> 2

    def is_signed(self, number: int, run_id: str, client: ClientId, count: int) -> bool:
        """Return True if a number from the wire stands for this session."""
        expected = self.number(run_id, client, count)
        return hmac.compare_digest(number.to_bytes(8), expected.to_bytes(8))
