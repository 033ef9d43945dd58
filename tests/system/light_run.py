"""A federation of light clients (benchmarks/light_client.py) in one thread of the test."""

import asyncio
import threading
from contextlib import suppress
from types import TracebackType

from benchmarks.light_client import LightClient
from benchmarks.workload import SEED, manifest_of

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest

MASKED, DENSE = 800, 30
JOINED_S = 300.0


class LightRun:
    """Clients in a thread of their own, until the run is over."""

    def __init__(
        self,
        port: int,
        num_clients: int,
        masked: int = MASKED,
        chunk_bytes: int = 256,
        manifest: Manifest | None = None,
    ) -> None:
        manifest = manifest or manifest_of(masked, DENSE)
        initial = initial_vector(manifest, SEED)
        self.clients = [
            LightClient(f"localhost:{port}", number, manifest, initial, chunk_bytes)
            for number in range(num_clients)
        ]
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="light clients", daemon=True)

    def __enter__(self) -> "LightRun":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._loop is not None:  # the test has failed: do not wait
            with suppress(RuntimeError):  # the loop is closed: the clients have ended
                self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(JOINED_S)

    def finish(self) -> set[str]:
        """Wait until every client has the final model; return the digests of their models."""
        self._thread.join(JOINED_S)
        assert not self._thread.is_alive(), "the light clients did not end"
        self.check()
        return {client.final_digest.hex() for client in self.clients}

    def check(self) -> None:
        """Raise the error of the first client that failed, if any."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:  # noqa: BLE001 -- raised where the test waits
            self._failure = error

    async def _all(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(client.take_part())

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
