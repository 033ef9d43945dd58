"""Accepted uploads for an audit, which may run while the coordinator moves them."""

import re
from contextlib import suppress

from ssfl.method.strategies.contract import ClientId
from ssfl.server.storage.spool import read_sums, stored_name
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.server.storage.upload_files import StoredValues, Vector


class KeptUploads:
    """Accepted uploads, in the spool or among those that `--keep-uploads` kept."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory

    def holds(self, step: int) -> bool:
        """Return True if the uploads of a step were kept."""
        return (self._directory.accepted / str(step)).is_dir()

    def find(self, step: int, client: ClientId, digest: str) -> StoredValues:
        """Return the values of an upload; raise FileNotFoundError if they are missing."""
        name = stored_name(client, digest)
        places = (self._directory.accepted, self._directory.spool)
        kept, spooled = (place / str(step) / name for place in places)
        for path in (kept, spooled, kept):  # twice: a running coordinator may just have moved it
            if path.exists():
                return StoredValues(path)
        raise FileNotFoundError(f"{spooled if not self.holds(step) else kept} is missing")

    def noted_digest(self, step: int, client: ClientId, digest: str) -> bytes:
        """Return the SHA-256 of the values that was recorded when they were kept."""
        sums = read_sums(self._directory.accepted / str(step))
        noted = sums.get(stored_name(client, digest), "")
        return bytes.fromhex(noted) if re.fullmatch("[0-9a-f]{64}", noted) else b""

    def read(self, step: int, client: ClientId, digest: bytes, start: int, count: int) -> Vector:
        """Return values of an upload, for the sum."""
        for _ in range(2):  # a running coordinator may move it once
            with suppress(FileNotFoundError):
                return self.find(step, client, digest.hex()).read(start, count)
        return self.find(step, client, digest.hex()).read(start, count)
