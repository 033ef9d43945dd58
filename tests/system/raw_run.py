"""A federation of two raw clients, driven to a chosen step and then to its end."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from system.programs import Coordinator, Programs
from system.raw_client import (
    RUN,
    RawClient,
    Received,
    expected_mask,
    expected_values,
    sha256,
    take_part_together,
)


class RawRun:
    """Clients `ann` (10 samples, adds 0.5) and `bob` (30 samples, adds 1) and their coordinator."""

    def __init__(self, programs: Programs, coordinator: Coordinator) -> None:
        self.programs = programs
        self.coordinator = coordinator
        self._clients: list[RawClient] = []
        self.ann = self.client("ann", num_samples=10, delta=0.5)
        self.bob = self.client("bob", num_samples=30, delta=1.0)

    def client(
        self, client_id: str, num_samples: int = 10, delta: float = 0.5, manifest: bytes = b""
    ) -> RawClient:
        """Return another client that has not joined."""
        client = RawClient(
            self.coordinator.address,
            client_id,
            num_samples=num_samples,
            delta=delta,
            manifest=manifest,
        )
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def scoring(self) -> Received:
        """Advance to the SCORE step and return ann's task; bob has not asked for his yet."""
        self.ann.join()
        self.bob.join()
        self.ann.answer(self.ann.next_task())
        return self.ann.next_task()

    def training(self) -> Received:
        """Advance to round 0 and return ann's task; bob has not asked for his yet."""
        self.ann.answer(self.scoring())
        self.bob.answer(self.bob.next_task())
        return self.ann.next_task()

    def restart(self, *flags: str) -> None:
        """Kill the coordinator with SIGKILL and restart it with the same state and port."""
        self.coordinator.kill()
        self.coordinator = self.programs.coordinator(*RUN, *flags, port=self.coordinator.port)

    def finish_honestly(self) -> None:
        """Let both clients take part to the end; their model must be the expected one."""
        clients = (self.ann, self.bob)
        expected = expected_values(clients)
        for final in take_part_together(*clients):
            assert np.array_equal(final, expected)
        assert {client.mask_digest for client in clients} == {expected_mask(clients)}
        assert self.coordinator.running
        assert self.coordinator.status().model_digest == sha256(expected.tobytes())


@contextmanager
def refused(code: grpc.StatusCode, reason: str, *words: str) -> Iterator[None]:
    """Expect a refusal with this status, this `ssfl-reason` and these words in the details."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    error = caught.value
    metadata = dict(error.trailing_metadata() or ())
    assert (error.code(), metadata.get("ssfl-reason", "")) == (code, reason), error.details()
    for word in words:
        assert word in error.details()
