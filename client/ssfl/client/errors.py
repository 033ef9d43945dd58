"""Why talking to the coordinator failed; one class per thing the agent does about it.

CallError
├─ Unavailable     the wire or the coordinator is gone: back off, join again, resume
├─ SlotReclaimed     others wait for our upload slot: queue again at once, nothing is lost
├─ Resync          the coordinator knows us no longer, or moved on: join again at once
└─ Refused         final: tell the person, end
"""

import grpc

from ssfl.program.printable import printable


class CallError(Exception):
    """Base of everything a call raises on purpose."""


class Unavailable(CallError):
    """Try again after a while."""


class SlotReclaimed(CallError):
    """Ask for the slot again and go on where the coordinator says."""


class Resync(CallError):
    """Join again, then go on."""


class Refused(CallError):
    """The coordinator will not have this client."""


_TRY_AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DATA_LOSS,
    # What gRPC and proxies make of a wire that broke in an odd moment; or a coordinator in trouble.
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}
_BACK_OFF = {"too_many_joins", "too_many_calls"}
_RESYNC = {"unknown_client", "join_again", "stale_base", "stale_mask"}


def reason_of(error: grpc.RpcError) -> str:
    """Return the coordinator's `ssfl-reason`; empty if it said none."""
    metadata = dict(error.trailing_metadata() or ())
    return str(metadata.get("ssfl-reason", ""))


def translate(error: grpc.RpcError) -> CallError:
    """Return what a gRPC failure means for the agent; its text is in one line, safe to show."""
    code, reason, text = error.code(), reason_of(error), printable(error.details() or "")
    if reason == "slot_yielded":
        return SlotReclaimed(text)
    if code in _TRY_AGAIN or reason in _BACK_OFF:
        return Unavailable(text or code.name.lower())
    if reason in _RESYNC:
        return Resync(text)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        text = f"this is not an ssfl coordinator, or one of another version ({text})"
    return Refused(text or code.name.lower())
