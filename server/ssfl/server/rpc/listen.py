"""The gRPC servers: the client port, with health and reflection, and the admin port."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from ssfl.codec import MAX_CHUNK_BYTES
from ssfl.method.manifest import MAX_MANIFEST_BYTES
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.server.config import CoordinatorConfig
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.limits import MAX_METADATA_BYTES, MAX_STREAMS, Limits, connections_that_fit
from ssfl.server.loop.refusals import Refusals
from ssfl.server.rpc.admin import AdminService
from ssfl.server.rpc.auth import Authenticator
from ssfl.server.rpc.call_context import CallContext
from ssfl.server.rpc.interceptors import StatusInterceptor
from ssfl.server.rpc.service import CoordinatorService
from ssfl.server.rpc.session_numbers import SessionNumbers, read_session_key
from ssfl.server.uploads.receive import UploadReceiver
from ssfl.v1 import admin_pb2_grpc, coordinator_pb2, coordinator_pb2_grpc

if TYPE_CHECKING:
    from ssfl.server.rpc.tls import Security  # loads cryptography

OPTIONS = [
    ("grpc.max_receive_message_length", MAX_CHUNK_BYTES + MAX_MANIFEST_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients may ping every 10 s (docs/wire-format.md, section Connections).
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # otherwise a second server could share the port without an error
    # By default a connection keeps read buffers as large as its largest burst: 1.4 MB for each
    # client that has uploaded megabytes (docs/decisions/0002-asyncio-server.md).
    ("grpc.experimental.tcp_max_read_buffer_size", 8 << 10),
]
GRACE_S = 1.0  # for open calls when a server stops
# These three apply only to the client port, which is open to untrusted peers.
HANDSHAKE_S = 20  # a connection that does not speak HTTP/2 by then is closed
PENDING_S = 300  # a call that the event loop has not taken up by then is cancelled
IDLE_S = 300  # a connection without calls is closed; a working client calls every 10 s


def client_options(max_connections: int) -> list[tuple[str, int]]:
    """Return the options of the client port."""
    return [
        *OPTIONS,
        ("grpc.max_allowed_incoming_connections", max_connections),
        # Calls that have arrived and wait for the event loop. By default gRPC cancels some of them
        # beyond 1,000, all beyond 3,000, and each after 30 s. A client opens at most two at once:
        # NextTask and an upload.
        ("grpc.server.max_pending_requests", max(1000, 2 * max_connections)),
        ("grpc.server.max_pending_requests_hard_limit", max(3000, 4 * max_connections)),
        ("grpc.server_max_unrequested_time_in_server", PENDING_S),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_S),
        ("grpc.max_connection_idle_ms", 1000 * IDLE_S),
    ]


class Listener:
    """The coordinator's two gRPC servers."""

    def __init__(
        self,
        config: CoordinatorConfig,
        coordinator: Coordinator,
        security: "Security | None" = None,  # None: no TLS and no token
    ) -> None:
        self._config = config
        self._security = security
        self._connections = coordinator.connections
        token, mutual = (security.token, security.mutual) if security else ("", False)
        service = service_for(config, coordinator, names_proven=mutual)
        self.uploads = service.uploads
        authenticator = Authenticator(token=token, certificates=mutual)
        client_interceptor = StatusInterceptor(
            coordinator.refusals, config.run.no_progress_s, authenticator
        )
        self._clients = grpc.aio.server(
            interceptors=[client_interceptor],
            options=client_options(connections_that_fit(config.max_connections)),
        )
        coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(service, self._clients)
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._clients)
        name = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"].full_name
        names = (name, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._clients)
        # Refusals on the admin port are logged, but not counted as refusals of clients.
        admin_interceptor = StatusInterceptor(
            Refusals(coordinator.clock, lambda _name: False),
            authenticator=Authenticator(certificates=mutual, admin=True),
        )
        self._admin = grpc.aio.server(interceptors=[admin_interceptor], options=OPTIONS)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminService(coordinator, str(config.out_dir)), self._admin
        )
        self.port = 0
        self.admin_port = 0

    async def start(self) -> None:
        """Listen on both ports; raise ProgramError(PORT_IN_USE) if one is not available."""
        config = self._config
        self.port = self._bind(self._clients, config.host, config.port, "--port")
        self._connections.port = self.port
        self.admin_port = self._bind(
            self._admin, config.admin_host, config.admin_port, "--admin-port"
        )
        await self._clients.start()
        await self._admin.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    def _bind(self, server: grpc.aio.Server, host: str, port: int, flag: str) -> int:
        with _refused(host, port, flag) as address:
            _check_address(host, port)  # the error of gRPC does not include the reason
            if self._security and (certificates := self._security.certificates):
                return int(server.add_secure_port(address, certificates.server_credentials()))
            return int(server.add_insecure_port(address))

    async def stop(self) -> None:
        """Refuse new calls, and end open ones after GRACE_S. Has no effect before `start`."""
        await self._connections.count()  # count their bytes before they close
        await self._health.enter_graceful_shutdown()
        await self._clients.stop(GRACE_S)
        await self._admin.stop(GRACE_S)


def service_for(
    config: CoordinatorConfig, coordinator: Coordinator, *, names_proven: bool = False
) -> CoordinatorService:
    """Return the service that clients call."""
    receiver = UploadReceiver(
        coordinator.spool, coordinator.ledger, coordinator.counters,
        coordinator.refusals.count_error, config.upload_slots, config.run.no_progress_s,
        coordinator.clock, coordinator.disk_space,
    )  # fmt: skip
    limits = Limits(config.max_clients, config.max_model_values)
    numbers = SessionNumbers(read_session_key(coordinator.directory))
    context = CallContext(coordinator, numbers, names_proven=names_proven)
    return CoordinatorService(context, receiver, config.reference_coding, limits)


def check_ports(config: CoordinatorConfig) -> None:
    """Raise ProgramError(PORT_IN_USE) if one of the ports is not available.

    Call it before a start changes the state directory. The probe port is open by then.
    """
    for flag, host, port in (
        ("--port", config.host, config.port),
        ("--admin-port", config.admin_host, config.admin_port),
        ("--metrics-port", config.metrics_host, config.metrics_port),
        ("--status-port", config.status_host, config.status_port),
    ):
        if port is not None:
            with _refused(host, port, flag):
                _check_address(host, port)


@contextmanager
def _refused(host: str, port: int, flag: str) -> Iterator[str]:
    """Yield the address; turn an error of the block into ProgramError(PORT_IN_USE)."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        yield address
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ProgramError(
            f"cannot listen on {address}: {why}; choose another port with {flag}, or {flag} 0 "
            f"for a free one (the host is set with {flag.replace('port', 'host')})",
            ExitCode.PORT_IN_USE,
        ) from error


def _check_address(host: str, port: int) -> None:
    """Raise OSError if a socket cannot be bound to the address."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
