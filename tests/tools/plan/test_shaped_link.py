"""The shaped link of benchmarks/plan_accuracy.py, without a network namespace."""

import importlib.util
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[3] / "benchmarks" / "shaped_link.py"
PACKET = bytes(1000)
SYN = 2
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("shaped_link", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ends() -> Iterator[tuple[Ends, Ends]]:
    """Pairs of datagram sockets, in place of TUN devices."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for end in (end for pair in pairs for end in pair):
        end.setblocking(False)
    yield pairs[0], pairs[1]
    for end in (end for pair in pairs for end in pair):
        end.close()


def arrived(receiver: socket.socket) -> int:
    count = 0
    while True:
        try:
            receiver.recv(2000)
        except BlockingIOError:
            return count
        count += 1


def test_packets_leave_at_the_rate_and_arrive_after_the_delay(
    link: ModuleType, ends: tuple[Ends, Ends]
) -> None:
    (sender, source), (sink, receiver) = ends
    # 8 Mbit/s: a packet of 1000 bytes takes 1 ms.
    direction = link.LinkDirection(source.fileno(), sink.fileno(), 8e6, delay_s=0.050, queue_s=1.0)
    for _ in range(3):
        sender.send(PACKET)
    direction.receive(10.0)
    assert direction.deliver(10.0505) == pytest.approx(0.0005)
    assert arrived(receiver) == 0
    assert direction.deliver(10.0515) == pytest.approx(0.0005)
    assert arrived(receiver) == 1
    direction.deliver(10.0535)
    assert arrived(receiver) == 2


def test_packets_are_dropped_when_the_queue_is_full(
    link: ModuleType, ends: tuple[Ends, Ends]
) -> None:
    (sender, source), (sink, receiver) = ends
    direction = link.LinkDirection(source.fileno(), sink.fileno(), 8e6, delay_s=0.0, queue_s=0.0045)
    for _ in range(9):
        sender.send(PACKET)
    direction.receive(10.0)
    direction.deliver(11.0)
    assert arrived(receiver) == 5  # packets with a wait of 0, 1, 2, 3 and 4 ms
    sender.send(PACKET)
    direction.receive(11.0)
    direction.deliver(12.0)
    assert arrived(receiver) == 1


def segment(sequence: int, payload: int, flags: int = 0, port: int = 5000) -> bytes:
    """Return an IPv4 packet with a TCP segment, with the fields that the link reads."""
    ip = bytes([0x45, 0]) + bytes(7) + bytes([6]) + bytes(10)
    tcp = struct.pack("!HHIIBB", port, 80, sequence, 0, 5 << 4, flags) + bytes(6)
    return ip + tcp + bytes(payload)


def test_a_link_that_forgets_lets_only_new_connections_pass_after_a_cut(link: ModuleType) -> None:
    faults = link.FaultInjector(link.LinkFaults(cut_every_s=30, down_s=4, forgets=True))
    faults.begin(100.0)
    assert faults.passes(segment(0, 0, SYN), 100.0)
    assert faults.passes(segment(1, 10), 129.0)
    assert not faults.passes(segment(1, 10), 131.0)  # the link is down
    assert not faults.passes(segment(1, 10), 135.0)  # the link has forgotten the connection
    assert faults.passes(segment(0, 0, SYN, port=5001), 135.0)
    assert faults.passes(segment(1, 10, port=5001), 136.0)
    faults.cut()
    assert not faults.passes(segment(1, 10, port=5001), 137.0)


def test_a_link_that_remembers_works_after_a_cut(link: ModuleType) -> None:
    faults = link.FaultInjector(link.LinkFaults(cut_every_s=30, down_s=4))
    assert faults.passes(segment(1, 10), 1e6)  # before the cuts begin
    faults.begin(100.0)
    assert not faults.passes(segment(1, 10), 163.9)
    assert faults.passes(segment(1, 10), 164.1)


def test_packets_are_lost_at_the_set_share(link: ModuleType) -> None:
    faults = link.FaultInjector(link.LinkFaults(loss=0.02, seed=3))
    lost = sum(not faults.passes(PACKET, 0.0) for _ in range(10_000))
    assert 150 <= lost <= 250


def test_tcp_payload_is_counted_as_offered_delivered_and_distinct(
    link: ModuleType, ends: tuple[Ends, Ends]
) -> None:
    (sender, source), (sink, _receiver) = ends
    faults = link.FaultInjector(link.LinkFaults(cut_every_s=30, down_s=4))
    direction = link.LinkDirection(source.fileno(), sink.fileno(), 8e9, 0.0, 1.0, faults)
    start = 2**32 - 150  # the sequence numbers wrap to 0
    for packet in (segment(start - 1, 0, SYN), segment(start, 100), segment(start, 100)):
        sender.send(packet)
    direction.receive(10.0)
    faults.begin(0.0)
    sender.send(segment(start + 100, 100))
    direction.receive(31.0)  # lost
    sender.send(segment((start + 100) % 2**32, 100))
    direction.receive(40.0)
    assert direction.counts.totals() == {"offered": 400, "delivered": 300, "distinct": 200}


def test_a_link_without_root_is_refused(link: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(link.LinkUnavailable, match="need root"), link.shaped_link(1e6, 1e6, 0.1):
        pass
