"""Which encodings a client gets: what it can read, and whether its link is worth the work.

Coding values against a reference saves a quarter of the bytes for some CPU. That pays on every
link that is not this machine's own, so `auto` codes for all clients but those on loopback.
"""

from dataclasses import dataclass
from ipaddress import ip_address

from ssfl.method.settings import RunSettings
from ssfl.server.accounting.kernel_bytes import place_of
from ssfl.server.accounting.ledger import encoding_word
from ssfl.server.run.state import Member
from ssfl.v1 import transfer_pb2

REFERENCE_CODING = ("auto", "on", "off")
LOSSY = {
    "bfloat16": transfer_pb2.ENCODING_BFLOAT16,
    "int8": transfer_pb2.ENCODING_INT8,
    "grid": transfer_pb2.ENCODING_GRID,
}


@dataclass(frozen=True, slots=True)
class Reader:
    """A client as a receiver and sender of encodings."""

    encodings: frozenset[int]  # all that it listed in Join
    coded: bool = False  # values are coded against a reference on its link

    def reads(self, encoding: transfer_pb2.Encoding) -> bool:
        return encoding in self.encodings

    @property
    def knows_references(self) -> bool:
        """Tell whether a payload may be coded against something the client holds."""
        return self.reads(transfer_pb2.ENCODING_REFERENCE)

    def update_encoding(self, settings: RunSettings) -> transfer_pb2.Encoding:
        """Return how the client is to encode its updates."""
        lossy = LOSSY.get(settings.value_type)
        if lossy is not None and self.reads(lossy):
            return lossy
        if self.coded and self.knows_references:
            return transfer_pb2.ENCODING_REFERENCE
        return transfer_pb2.ENCODING_VALUES_ONLY

    def encoding_name(self, settings: RunSettings) -> str:
        """Return how values travel on this link, in a word."""
        return encoding_word(self.update_encoding(settings))


def reader_of(member: Member, peer: str, reference_coding: str) -> Reader:
    """Return what a client reads, over the connection whose other end gRPC calls `peer`."""
    return Reader(frozenset(member.encodings), is_coded(peer, reference_coding))


def is_coded(peer: str, reference_coding: str) -> bool:
    """Tell whether values are coded against a reference on a connection."""
    return reference_coding == "on" or (reference_coding == "auto" and not is_loopback(peer))


def is_loopback(peer: str) -> bool:
    """Tell whether a connection stays on this machine.

    >>> is_loopback("ipv4:127.0.0.1:43210"), is_loopback("ipv6:%5B::1%5D:43210")
    (True, True)
    >>> is_loopback("ipv4:192.0.2.7:43210"), is_loopback("unix:/run/ssfl.sock")
    (False, True)
    """
    if peer.startswith("unix"):
        return True
    place = place_of(peer)  # None, something new: code, which is never wrong
    return place is not None and ip_address(place[0]).is_loopback
