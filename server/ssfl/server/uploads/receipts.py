"""The run's reply to an upload as a protocol message."""

from ssfl.server.errors import UpdateConflict
from ssfl.server.run.events import Reply
from ssfl.v1 import transfer_pb2

_OUTCOMES = {
    Reply.ACCEPTED: transfer_pb2.OUTCOME_ACCEPTED,
    Reply.ALREADY_ACCEPTED: transfer_pb2.OUTCOME_ALREADY_ACCEPTED,
    Reply.STEP_CLOSED: transfer_pb2.OUTCOME_STEP_CLOSED,
}


def outcome_of(reply: Reply) -> transfer_pb2.Outcome:
    """Return the outcome for a reply of the run; raise UpdateConflict for a conflict."""
    if reply is Reply.CONFLICT:
        raise UpdateConflict("other bytes of this client were accepted in this step")
    return _OUTCOMES[reply]


def receipt_of(reply: Reply) -> transfer_pb2.Receipt:
    """Return the receipt that ends an upload."""
    return transfer_pb2.Receipt(outcome=outcome_of(reply))
