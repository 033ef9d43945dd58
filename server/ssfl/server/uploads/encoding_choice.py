"""Choice of encodings for a client, by what it can read and by its link.

Coding values against a reference saves a quarter of the bytes and costs some CPU. That pays on
every link except loopback, so `auto` uses it on all other links.
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
    """The encodings that a client can read and send."""

    encodings: frozenset[int]  # as listed in Join
    coded: bool = False  # code values against a reference on this link

    def reads(self, encoding: transfer_pb2.Encoding) -> bool:
        return encoding in self.encodings

    @property
    def knows_references(self) -> bool:
        """True if payloads may be coded against a reference that the client holds."""
        return self.reads(transfer_pb2.ENCODING_REFERENCE)

    def update_encoding(self, settings: RunSettings) -> transfer_pb2.Encoding:
        """Return the encoding that the client must use for its updates."""
        lossy = LOSSY.get(settings.value_type)
        if lossy is not None and self.reads(lossy):
            return lossy
        if self.coded and self.knows_references:
            return transfer_pb2.ENCODING_REFERENCE
        return transfer_pb2.ENCODING_VALUES_ONLY

    def encoding_name(self, settings: RunSettings) -> str:
        """Return the name of the encoding of values on this link."""
        return encoding_word(self.update_encoding(settings))


def reader_of(member: Member, peer: str, reference_coding: str) -> Reader:
    """Return the encodings of a client that is connected from the gRPC address `peer`."""
    return Reader(frozenset(member.encodings), is_coded(peer, reference_coding))


def is_coded(peer: str, reference_coding: str) -> bool:
    """Return True if values are coded against a reference on a connection."""
    return reference_coding == "on" or (reference_coding == "auto" and not is_loopback(peer))


def is_loopback(peer: str) -> bool:
    """Return True if a connection stays on this machine.

    >>> is_loopback("ipv4:127.0.0.1:43210"), is_loopback("ipv6:%5B::1%5D:43210")
    (True, True)
    >>> is_loopback("ipv4:192.0.2.7:43210"), is_loopback("unix:/run/ssfl.sock")
    (False, True)
    """
    if peer.startswith("unix"):
        return True
    place = place_of(peer)  # None: an unknown kind of address, treated as remote
    return place is not None and ip_address(place[0]).is_loopback
