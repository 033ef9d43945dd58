"""Calls to a coordinator's admin port."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from threading import Timer
from typing import TYPE_CHECKING, Any

import grpc

from ssfl.client.connection import channel_to
from ssfl.program.exits import ExitCode, ProgramError, usage_error
from ssfl.program.printable import printable
from ssfl.v1 import admin_pb2 as pb
from ssfl.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from ssfl.program.tls.pem import ClientTls

CONNECT_S = 5.0  # for one attempt to connect; a port that is silent longer is not an admin port
TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0  # of the status that explains a failed call
DIAGNOSIS_S = 2.0  # of each step of the diagnosis: connect, handshake, answer
NOTICE_S = 2.0  # a longer wait is reported


class AdminClient:
    """Client of a coordinator's admin service."""

    def __init__(self, address: str, tls: "ClientTls | None" = None) -> None:
        self.address = address
        self._tls = tls
        # Without a limit on messages, since a history may be long.
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT_S)),
        ]
        self._channel = channel_to(address, tls, options)
        self._stub: Any = admin_pb2_grpc.AdminServiceStub(self._channel)

    def status(self) -> pb.GetStatusResponse:
        response: pb.GetStatusResponse = self.call("GetStatus")
        return response

    def close(self) -> None:
        self._channel.close()

    def call(self, name: str, **fields: Any) -> Any:
        """Return the answer of a call of AdminService; raise ProgramError if it fails."""
        with self._notice(0.0 if name == "GetStatus" else STATUS_TIMEOUT_S):
            return self._call(name, fields)

    def _call(self, name: str, fields: dict[str, Any]) -> Any:
        request = getattr(pb, f"{name}Request")(**fields)
        try:
            return getattr(self._stub, name)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            match error.code():
                case grpc.StatusCode.DEADLINE_EXCEEDED if name == "GetStatus":
                    failure = self._unreachable(error)
                case grpc.StatusCode.DEADLINE_EXCEEDED:
                    failure = self._timed_out(error)
                case grpc.StatusCode.UNAVAILABLE:
                    failure = self._unreachable(error)
                case grpc.StatusCode.UNIMPLEMENTED:
                    failure = self._unimplemented()
                case _:
                    text = f"the coordinator refused: {details_of(error)}"
                    failure = ProgramError(text, ExitCode.REFUSED)
            raise failure from error

    @contextmanager
    def _notice(self, more_s: float) -> Iterator[None]:
        """Print what the block waits for, and until when, if it takes longer than NOTICE_S."""
        most_s = CONNECT_S + TIMEOUT_S + more_s + 3 * DIAGNOSIS_S
        until = datetime.now() + timedelta(seconds=most_s)
        text = f"waiting for {self.address} to answer, until {until:%H:%M:%S} at the latest"
        timer = Timer(NOTICE_S, lambda: print(text, file=sys.stderr, flush=True))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _timed_out(self, error: grpc.RpcError) -> ProgramError:
        """Return the error for a call without an answer in time; the disk may be full."""
        status = self._status_now()
        if status is None:
            return self._unreachable(error)
        return ProgramError(
            f"the coordinator answers, but has not done it within {TIMEOUT_S:g} s (it waits for "
            f"{status.waiting_for or 'nothing'}); it may still do it, see `ssfl status`",
            ExitCode.NOT_YET,
        )

    def _unreachable(self, error: grpc.RpcError) -> ProgramError:
        from ssfl.program.tls.probe import diagnose  # only needed after a failure

        finding = diagnose(self.address, self._tls, DIAGNOSIS_S)
        if finding and finding.final:
            return ProgramError(finding.text, ExitCode.REFUSED)
        is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        late = f"it accepted the connection, but did not answer within {TIMEOUT_S:g} s"
        why = late if is_late else details_of(error)
        return ProgramError(
            f"no coordinator answers on its admin port {self.address} "
            f"(--admin; it prints the port when it starts): {why}",
            ExitCode.UNREACHABLE,
        )

    def _unimplemented(self) -> ProgramError:
        """Return the error for an unknown call: a wrong port, or an earlier version."""
        if self._status_now() is not None:
            text = "the coordinator has an earlier version that does not know this command"
            return ProgramError(text, ExitCode.REFUSED)
        return usage_error(
            f"--admin: {self.address} is not an admin port; it may be the port for clients. The "
            "coordinator prints both when it starts"
        )

    def _status_now(self) -> pb.GetStatusResponse | None:
        """Return the status, which the coordinator answers from memory; None if it fails."""
        status: pb.GetStatusResponse | None = None
        with suppress(grpc.RpcError):
            status = self._stub.GetStatus(pb.GetStatusRequest(), timeout=STATUS_TIMEOUT_S)
        return status


def details_of(error: grpc.RpcError) -> str:
    """Return the reason of a failed call without control characters."""
    return printable(error.details() or error.code().name.lower())
