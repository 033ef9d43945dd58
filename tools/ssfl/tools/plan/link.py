"""Transfer times on a link, from its rate, its round trip and TCP slow start.

A connection was idle while the client trained, so TCP starts with a window of ten segments and
doubles it every round trip until it covers rate x round trip. From then on the link is full.
Losses, other traffic and slow machines are not modelled. `benchmarks/plan_accuracy.py` compares
these times with measured ones.
"""

import math
import re
from dataclasses import dataclass

from ssfl.method.errors import SettingsError

SEGMENT_BYTES = 1448  # of payload in a full TCP segment: 1500 without IP, TCP and timestamps
PACKET_BYTES = 1500
FIRST_WINDOW_BYTES = 10 * SEGMENT_BYTES  # RFC 6928; the same after idle time (RFC 2861)
FRAME_BYTES = 1 << 14  # gRPC cuts messages into HTTP/2 frames of this size
FRAME_HEADER_BYTES = 9

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIMES = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Link:
    """A client's link to the coordinator. Rates count IP packets with their headers."""

    up_bits_per_s: float  # client to coordinator
    down_bits_per_s: float
    rtt_s: float

    def shared(self, coordinator_bits_per_s: float, num_clients: int) -> "Link":
        """Return the link of a client if `num_clients` share the coordinator's link."""
        share = coordinator_bits_per_s / num_clients
        return Link(min(self.up_bits_per_s, share), min(self.down_bits_per_s, share), self.rtt_s)

    def up_s(self, message_bytes: int) -> float:
        """Return the seconds from the first byte sent to the last byte received."""
        return _transfer_s(message_bytes, self.up_bits_per_s, self.rtt_s)

    def down_s(self, message_bytes: int) -> float:
        """Return the seconds from the first byte sent to the last byte received."""
        return _transfer_s(message_bytes, self.down_bits_per_s, self.rtt_s)


def _transfer_s(message_bytes: int, bits_per_s: float, rtt_s: float) -> float:
    frames = math.ceil(message_bytes / FRAME_BYTES)
    num_bytes = message_bytes + frames * FRAME_HEADER_BYTES
    goodput = bits_per_s / 8 * SEGMENT_BYTES / PACKET_BYTES
    # Doublings until the window covers the link, and the bytes sent by then.
    doublings: float = max(0.0, math.log2(goodput * rtt_s / FIRST_WINDOW_BYTES)) if rtt_s else 0.0
    ramp_bytes: float = FIRST_WINDOW_BYTES * (2.0**doublings - 1)
    if num_bytes >= ramp_bytes:
        return rtt_s / 2 + doublings * rtt_s + (num_bytes - ramp_bytes) / goodput
    # The transfer ends before the link is full: whole round trips, then the last window.
    rounds = math.floor(math.log2(num_bytes / FIRST_WINDOW_BYTES + 1))
    left = num_bytes - FIRST_WINDOW_BYTES * (2.0**rounds - 1)
    return rtt_s / 2 + rounds * rtt_s + left / goodput


def framed_bits(payload_bytes: float) -> float:
    """Return the bits of payload bytes on the wire, with TCP, IP and HTTP/2 headers."""
    return 8 * payload_bytes * (1 + FRAME_HEADER_BYTES / FRAME_BYTES) * PACKET_BYTES / SEGMENT_BYTES


def parse_rate(text: str) -> float:
    """Return bits per second.

    >>> parse_rate("20mbit"), parse_rate("512 kbit")
    (20000000.0, 512000.0)
    """
    return _parse(text, _RATES, "a rate is a number and kbit, mbit or gbit, per second")


def parse_time(text: str) -> float:
    """Return seconds.

    >>> parse_time("50ms"), parse_time("0.2s")
    (0.05, 0.2)
    """
    return _parse(text, _TIMES, "a time is a number and ms or s")


def parse_link(text: str) -> Link:
    """Return a symmetric link from its rate and round trip, such as "20mbit/50ms"."""
    rate, slash, rtt = text.partition("/")
    if not slash:
        raise SettingsError(f"a link is a rate and a round trip (20mbit/50ms), got {text!r}")
    return Link(parse_rate(rate), parse_rate(rate), parse_time(rtt))


def _parse(text: str, units: dict[str, float], what: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = units.get(match.group(2).lower()) if match else None
    if not match or unit is None:
        raise SettingsError(f"{what}, got {text!r}")
    value = float(match.group(1)) * unit
    if not (value or units is _TIMES):
        raise SettingsError(f"a rate must be above 0, got {text!r}")
    return value
