"""Calls to a coordinator's admin port."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from ssfl.client.connection import channel_to
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.v1 import admin_pb2 as pb
from ssfl.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from ssfl.program.tls import ClientTls

TIMEOUT_S = 10.0


class AdminClient:
    """A coordinator as its operator sees it."""

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

    def start(self) -> int:
        response = self._call(self._stub.StartRun, pb.StartRunRequest())
        return int(response.num_clients)

    def pause(self) -> pb.PauseRunResponse:
        response: pb.PauseRunResponse = self._call(self._stub.PauseRun, pb.PauseRunRequest())
        return response

    def resume(self) -> bool:
        """Let the run go on; tell whether it was paused."""
        return bool(self._call(self._stub.ResumeRun, pb.ResumeRunRequest()).was_paused)

    def refresh_mask(self) -> pb.RefreshMaskResponse:
        response: pb.RefreshMaskResponse = self._call(
            self._stub.RefreshMask, pb.RefreshMaskRequest()
        )
        return response

    def remove(self, client_id: str, *, readmit: bool) -> bool:
        request = pb.RemoveClientRequest(client_id=client_id, readmit=readmit)
        return bool(self._call(self._stub.RemoveClient, request).was_member)

    def stop(self) -> None:
        self._call(self._stub.StopRun, pb.StopRunRequest())

    def close(self) -> None:
        self._channel.close()

    def _call(self, rpc: Callable[..., Any], request: Any) -> Any:
        try:
            return rpc(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            code, text = error.code(), error.details()
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                from ssfl.program.tls_probe import find_out  # only where something went wrong

                finding = find_out(self.address, self._tls)
                if finding and finding.final:
                    raise ProgramError(finding.text, ExitCode.REFUSED) from error
                raise ProgramError(
                    f"no coordinator answers on its admin port {self.address} "
                    f"(--admin; it prints the port when it starts): {text}",
                    ExitCode.UNREACHABLE,
                ) from error
            raise ProgramError(f"the coordinator refused: {text}", ExitCode.REFUSED) from error
