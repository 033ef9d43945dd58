"""Fixtures for `ssfl check`: coordinators in this process, faulty sockets, and steps by name."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from server.run_loop_harness import SETTINGS, conduct, context_of
from server.step_harness import receiver_of
from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.shard_file import Shard
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.limits import Limits
from ssfl.server.rpc.auth import Authenticator
from ssfl.server.rpc.interceptors import StatusInterceptor
from ssfl.server.rpc.preflight import Preflight
from ssfl.server.rpc.service import CoordinatorService
from ssfl.tools.check.command import CheckConfig, CheckReport, run_check
from ssfl.tools.check.steps import CheckStep, CheckVerdict, Steps
from ssfl.v1 import admin_pb2_grpc, coordinator_pb2_grpc

StepsByName = dict[str, CheckStep]


def small() -> Shard:
    """Return a shard of 40 digits, with 20 more to test on."""
    whole = digits()
    return Shard(
        whole.train_x[:40], whole.train_y[:40], whole.test_x[:20], whole.test_y[:20], num_classes=10
    )


def manifest(model: str = "mlp") -> Manifest:
    """Return the description of a built-in model for `small()`."""
    from ssfl.learning.describe import manifest_of
    from ssfl.learning.load_task import load_task
    from ssfl.learning.models import build_model

    description = load_task("image").description(RunSettings(model=model), small())
    return manifest_of(build_model(model, (1, 8, 8), 10), description)


def report_of(**config: Any) -> CheckReport:
    """Return the report of a check with these settings."""
    return run_check(CheckConfig(**config), Steps())


def steps_of(**config: Any) -> StepsByName:
    return {step.name: step for step in report_of(**config).steps.all}


def fails(steps: StepsByName, name: str) -> str:
    """Return the text and remedies of a failed step, which must be the first failure."""
    failed = [step for step in steps.values() if step.verdict is CheckVerdict.FAILED]
    assert [step.name for step in failed][:1] == [name], steps
    assert failed[0].remedy is not None
    options = failed[0].remedy.options()
    remedies = " or ".join(f"{remedy.owner}: {remedy.action}" for remedy in options)
    return f"{failed[0].text} → {remedies}"


def with_coordinator(
    folder: Path,
    body: Callable[[str], None],
    *,
    settings: RunSettings = SETTINGS,
    prepare: Callable[[Coordinator], Awaitable[None]] | None = None,
    limits: Limits | None = None,
    certs: Path | None = None,
    token: str = "",
    wall: Callable[[], float] | None = None,
) -> None:
    """Serve a run and call `body` with its address; `wall` is the coordinator's clock."""

    async def script(coordinator: Coordinator) -> None:
        if prepare:
            await prepare(coordinator)
        authenticator = Authenticator(token=token, certificates=certs is not None)
        status = StatusInterceptor(coordinator.refusals, authenticator=authenticator)
        server = grpc.aio.server(interceptors=[status])
        service = _service(coordinator, limits, wall)
        coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(service, server)
        if certs:
            port = server.add_secure_port("127.0.0.1:0", credentials_of(certs))
        else:
            port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await asyncio.to_thread(body, f"127.0.0.1:{port}")
        finally:
            await server.stop(0)

    folder.mkdir(parents=True, exist_ok=True)
    conduct(folder, script, settings)


def _service(
    coordinator: Coordinator, limits: Limits | None, wall: Callable[[], float] | None
) -> CoordinatorService:
    uploads = receiver_of(coordinator)
    for client in coordinator.run.state.members:
        coordinator.presence.heard(client, coordinator.clock())
    context = context_of(coordinator)
    if wall is None:
        return CoordinatorService(context, uploads, "on", limits)
    shifted = Preflight(context, Limits(), 8, "on", wall)

    class Shifted(CoordinatorService):
        def Check(self, requests: Any, context: Any) -> Any:
            return shifted.answer(requests, context.peer())

    return Shifted(context, uploads, "on", limits)


def credentials_of(certs: Path, *, mutual: bool = True) -> grpc.ServerCredentials:
    pair = [(certs / f"coordinator{part}.pem").read_bytes() for part in ("-key", "")]
    return grpc.ssl_server_credentials(
        [tuple(pair)], (certs / "ca.pem").read_bytes(), require_client_auth=mutual
    )


@contextmanager
def grpc_server(
    servicer: Any = None, credentials: grpc.ServerCredentials | None = None, admin: Any = None
) -> Iterator[str]:
    """A gRPC server that is not a coordinator, or pretends to be one."""
    with ThreadPoolExecutor(2) as pool:
        serving = grpc.server(pool)
        if servicer is not None:
            coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(servicer, serving)
        if admin is not None:
            admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, serving)
        if credentials:
            port = serving.add_secure_port("127.0.0.1:0", credentials)
        else:
            port = serving.add_insecure_port("127.0.0.1:0")
        serving.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            serving.stop(None).wait()


@contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A listening socket that calls `answer` with every connection, each in its own thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed at the end of the test
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def replies(reply: bytes) -> Callable[[socket.socket], None]:
    """Return a handler that reads something, sends `reply` and hangs up."""

    def answer(connection: socket.socket) -> None:
        with suppress(OSError), connection:  # the peer may have hung up
            connection.recv(4096)
            connection.sendall(reply)

    return answer


def silent(connection: socket.socket) -> None:
    """Read everything and send nothing until the peer hangs up."""
    with suppress(OSError), connection:
        while connection.recv(4096):
            pass
