"""Calls to a coordinator's admin port."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from ssfl.client.connection import channel_to
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.printable import printable
from ssfl.v1 import admin_pb2 as pb
from ssfl.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from ssfl.program.tls.pem import ClientTls

TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0  # of the status that explains a failed call


class AdminClient:
    """Client of a coordinator's admin service."""

    def __init__(self, address: str, tls: "ClientTls | None" = None) -> None:
        self.address = address
        self._tls = tls
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
        self._channel = channel_to(address, tls, options)  # a history may be long
        self._stub: Any = admin_pb2_grpc.AdminServiceStub(self._channel)

    def status(self) -> pb.GetStatusResponse:
        response: pb.GetStatusResponse = self._call(self._stub.GetStatus, pb.GetStatusRequest())
        return response

    def history_json(self) -> str:
        response = self._call(self._stub.GetHistory, pb.GetHistoryRequest())
        return str(response.history_json)

    def start(self) -> pb.StartRunResponse:
        response: pb.StartRunResponse = self._call(self._stub.StartRun, pb.StartRunRequest())
        return response

    def pause(self) -> pb.PauseRunResponse:
        response: pb.PauseRunResponse = self._call(self._stub.PauseRun, pb.PauseRunRequest())
        return response

    def resume(self) -> bool:
        """Resume the run; return True if it was paused."""
        return bool(self._call(self._stub.ResumeRun, pb.ResumeRunRequest()).was_paused)

    def refresh_mask(self) -> pb.RefreshMaskResponse:
        response: pb.RefreshMaskResponse = self._call(
            self._stub.RefreshMask, pb.RefreshMaskRequest()
        )
        return response

    def remove(self, client_id: str, *, readmit: bool) -> pb.RemoveClientResponse:
        request = pb.RemoveClientRequest(client_id=client_id, readmit=readmit)
        response: pb.RemoveClientResponse = self._call(self._stub.RemoveClient, request)
        return response

    def stop(self) -> None:
        self._call(self._stub.StopRun, pb.StopRunRequest())

    def close(self) -> None:
        self._channel.close()

    def _call(self, rpc: Callable[..., Any], request: Any) -> Any:
        try:
            return rpc(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            match error.code():
                case grpc.StatusCode.DEADLINE_EXCEEDED:
                    failure = self._timed_out(error)
                case grpc.StatusCode.UNAVAILABLE:
                    failure = self._unreachable(error)
                case grpc.StatusCode.UNIMPLEMENTED:
                    failure = self._unimplemented()
                case _:
                    text = f"the coordinator refused: {_details(error)}"
                    failure = ProgramError(text, ExitCode.REFUSED)
            raise failure from error

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

        finding = diagnose(self.address, self._tls)
        if finding and finding.final:
            return ProgramError(finding.text, ExitCode.REFUSED)
        return ProgramError(
            f"no coordinator answers on its admin port {self.address} "
            f"(--admin; it prints the port when it starts): {_details(error)}",
            ExitCode.UNREACHABLE,
        )

    def _unimplemented(self) -> ProgramError:
        """Return the error for an unknown call: a wrong port, or an earlier version."""
        if self._status_now() is not None:
            return ProgramError(
                "the coordinator has an earlier version that does not know this command",
                ExitCode.REFUSED,
            )
        return ProgramError(
            f"--admin: {self.address} is not an admin port; it may be the port for clients. The "
            "coordinator prints both when it starts",
            ExitCode.USAGE,
        )

    def _status_now(self) -> pb.GetStatusResponse | None:
        """Return the status, which the coordinator answers from memory; None if it fails."""
        try:
            status: pb.GetStatusResponse = self._stub.GetStatus(
                pb.GetStatusRequest(), timeout=STATUS_TIMEOUT_S
            )
        except grpc.RpcError:
            return None
        return status


def _details(error: grpc.RpcError) -> str:
    return printable(error.details() or error.code().name.lower())
