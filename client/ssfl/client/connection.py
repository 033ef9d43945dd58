"""The channel to the coordinator: how it is opened, reopened and watched."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc

from ssfl.client.client_stats import ClientStats
from ssfl.client.errors import Unavailable
from ssfl.codec import MAX_CHUNK_BYTES
from ssfl.method.manifest import MAX_MANIFEST_BYTES
from ssfl.program.addresses import is_loopback, split
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.v1 import coordinator_pb2_grpc

if TYPE_CHECKING:
    from ssfl.program.tls.pem import ClientTls
    from ssfl.program.tls.probe import Finding

log = logging.getLogger(__name__)

UNARY_TIMEOUT_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


def open_channel(address: str, tls: "ClientTls | None" = None) -> grpc.Channel:
    """Return a channel with keepalive, through the proxy that `https_proxy` names, if any."""
    options = [
        ("grpc.max_receive_message_length", MAX_CHUNK_BYTES + MAX_MANIFEST_BYTES),
        # A dead connection is detected within 20 s, or within 10 s during a transfer.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.enable_http_proxy", 0 if is_loopback(split(address)[0]) else 1),
        ("grpc.use_local_subchannel_pool", 1),  # a new channel opens a new connection
    ]
    return channel_to(address, tls, options)


def channel_to(
    address: str, tls: "ClientTls | None", options: list[tuple[str, Any]]
) -> grpc.Channel:
    """Return a TLS channel, or a plain one if `tls` is None."""
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    if tls.server_name:
        options = [*options, ("grpc.ssl_target_name_override", tls.server_name)]
    key, certificate = (tls.pair.key, tls.pair.certificate) if tls.pair else (None, None)
    credentials = grpc.ssl_channel_credentials(tls.authorities, key, certificate)
    return grpc.secure_channel(address, credentials, options=options)


def stub_for(channel: grpc.Channel, token: str = "") -> Any:
    """Return the coordinator's stub; its calls carry the join token if `token` is not empty."""
    stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
    return with_token(stub, token) if token else stub


def with_token(stub: Any, token: str) -> Any:
    """Return a stub whose calls carry a join token."""
    metadata = (("authorization", f"Bearer {token}"),)
    calls = {name: partial(call, metadata=metadata) for name, call in vars(stub).items()}
    return SimpleNamespace(**calls)


class Connection:
    """The coordinator's stub over a channel that is replaced after every failure.

    gRPC notices a half-open connection only when its keepalive fails. A new channel waits neither
    for that nor for gRPC's own reconnect backoff.
    """

    def __init__(self, open_new: Callable[[], grpc.Channel], token: str = "") -> None:
        self._open_new = open_new
        self._token = token
        self._open()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    def reopen(self) -> None:
        """Close the channel, which cancels its calls, and open a new one."""
        self.close()
        self._open()

    def close(self) -> None:
        self._channel.close()

    def _open(self) -> None:
        self._channel = self._open_new()
        self._stub = stub_for(self._channel, self._token)


@dataclass
class ReconnectBackoff:
    """Exponential backoff with full jitter and a deadline."""

    address: str
    give_up_after_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    diagnose: Callable[[], "Finding | None"] = lambda: None  # returns the cause of a failure
    retry: Callable[[], None] = lambda: None  # called after each pause
    stats: ClientStats = field(default_factory=ClientStats)
    _was_reached: bool = False
    _since_s: float | None = None  # of the first failure after the last answer
    _pause_s: float = FIRST_PAUSE_S

    def reached(self) -> None:
        """Record that the coordinator answered: reset the pauses and the deadline."""
        self.stats.connected = True
        if self._since_s is not None:
            log.info("reached the coordinator", extra={"address": self.address})
        self._since_s, self._pause_s, self._was_reached = None, FIRST_PAUSE_S, True

    def failed_for(self, seconds: float) -> bool:
        """Return True if every call has failed for `seconds` or for --give-up-after."""
        if self._since_s is None:
            return False
        return self.clock() - self._since_s >= min(seconds, self.give_up_after_s)

    def pause(self) -> None:
        """Sleep briefly, so that clients do not all join again at once."""
        self.sleep(random.uniform(0.1, FIRST_PAUSE_S))

    def wait(self, error: Unavailable) -> None:
        """Sleep before the next try; raise ProgramError(UNREACHABLE) if the deadline has passed.

        Raise ProgramError(REFUSED) if the cause is final and the coordinator has never answered.
        Once it has answered, even a final cause may pass, such as a captive network portal.
        """
        now_s = self.clock()
        self.stats.failed()
        self._since_s = now_s if self._since_s is None else self._since_s
        finding = self.diagnose()
        if finding and finding.final and not self._was_reached:
            raise ProgramError(finding.text, ExitCode.REFUSED)
        cause = finding.text if finding else str(error)
        left_s = self.give_up_after_s - (now_s - self._since_s)
        if left_s <= 0:
            raise ProgramError(
                f"no coordinator at {self.address} for {self.give_up_after_s:g} s "
                f"(--give-up-after): {cause}",
                ExitCode.UNREACHABLE,
            )
        pause_s = min(random.uniform(0.1, self._pause_s), left_s)
        log.warning(
            "cannot reach the coordinator, retrying",
            extra={
                "address": self.address,
                "in_s": round(pause_s, 1),
                "giving_up_in_s": round(left_s),
                "error": cause,
            },
        )
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        self.sleep(pause_s)
        self.retry()


class Watchdog:
    """Cancels a call if `feed` has not been called for `no_progress_s`."""

    def __init__(self, no_progress_s: float) -> None:
        self._no_progress_s = no_progress_s
        self._fed_s = time.monotonic()

    def feed(self) -> None:
        self._fed_s = time.monotonic()

    @contextmanager
    def watch(self, call: Any) -> Iterator[None]:
        """Watch a call inside the `with` block."""
        over = threading.Event()
        self.feed()

        def cancel_if_idle() -> None:
            while not over.wait(max(0.05, self._fed_s + self._no_progress_s - time.monotonic())):
                if time.monotonic() - self._fed_s >= self._no_progress_s:
                    call.cancel()
                    return

        watcher = threading.Thread(target=cancel_if_idle, name="watchdog", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
