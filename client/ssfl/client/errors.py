"""Failures of calls to the coordinator; the class decides what the agent does."""

import grpc

from ssfl.program.printable import printable


class CallError(Exception):
    """Base class of all failures of a call."""


class Unavailable(CallError):
    """The network or the coordinator is down: back off, join again, resume."""


class SlotReclaimed(CallError):
    """Other clients wait for the upload slot: queue again, resume at the offset of the grant."""


class Resync(CallError):
    """The session, base or mask is no longer current: join again at once."""


class Refused(CallError):
    """The coordinator does not accept this client: report the error and exit."""


_TRY_AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DATA_LOSS,
    # gRPC and proxies report some broken connections with these two codes.
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}
_BACK_OFF = {"too_many_joins", "too_many_calls"}
_RESYNC = {"unknown_client", "join_again", "stale_base", "stale_mask"}


def reason_of(error: grpc.RpcError) -> str:
    """Return the coordinator's `ssfl-reason`, or an empty string if there is none."""
    metadata = dict(error.trailing_metadata() or ())
    return str(metadata.get("ssfl-reason", ""))


def translate(error: grpc.RpcError) -> CallError:
    """Return the CallError for a gRPC failure; its text is one line and safe to print."""
    code, reason, text = error.code(), reason_of(error), printable(error.details() or "")
    if reason == "slot_yielded":
        return SlotReclaimed(text)
    if code in _TRY_AGAIN or reason in _BACK_OFF:
        return Unavailable(text or code.name.lower())
    if reason in _RESYNC:
        return Resync(text)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        text = f"the server is not an ssfl coordinator, or has another version ({text})"
    return Refused(text or code.name.lower())
