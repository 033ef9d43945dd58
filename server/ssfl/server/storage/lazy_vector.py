"""A vector in the state directory, read on first use, that can be released from memory."""

import threading
from collections.abc import Callable

from ssfl.method.model_state import StoredVector, Vector


class LazyVector(StoredVector):
    """Reads its vector on first use; any thread may call it."""

    def __init__(
        self, digest: bytes, read: Callable[[], Vector], vector: Vector | None = None
    ) -> None:
        """Take `read`, which returns a vector with this digest, and the vector if it is loaded."""
        self.digest = digest
        self._read = read
        self._vector = vector
        self._lock = threading.Lock()

    def vector(self) -> Vector:
        """Return the vector. It stays in memory until it is released."""
        with self._lock:
            if self._vector is None:
                self._vector = self._read()
            return self._vector

    def copy(self) -> Vector:
        """Return a copy that belongs to the caller. A vector read for this is not kept."""
        with self._lock:
            return self._read() if self._vector is None else self._vector.copy()

    def release(self) -> None:
        """Drop the vector from memory. The next call waits until it is read again."""
        with self._lock:
            self._vector = None
