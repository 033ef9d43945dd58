"""The link of benchmarks/plan_accuracy.py: what it does to packets, without a namespace."""

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "shaped_link.py"
PACKET = bytes(1000)
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
    """A TUN device is a file of packets; so is a pair of datagram sockets."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for one in (one for pair in pairs for one in pair):
        one.setblocking(False)
    yield pairs[0], pairs[1]
    for one in (one for pair in pairs for one in pair):
        one.close()


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
    way = link.Way(source.fileno(), sink.fileno(), 8e6, delay_s=0.050, queue_s=1.0)
    for _ in range(3):
        sender.send(PACKET)
    way.take(10.0)
    assert way.give(10.0505) == pytest.approx(0.0005)
    assert arrived(receiver) == 0
    assert way.give(10.0515) == pytest.approx(0.0005)
    assert arrived(receiver) == 1
    way.give(10.0535)
    assert arrived(receiver) == 2


def test_what_finds_the_queue_full_is_dropped(link: ModuleType, ends: tuple[Ends, Ends]) -> None:
    (sender, source), (sink, receiver) = ends
    way = link.Way(source.fileno(), sink.fileno(), 8e6, delay_s=0.0, queue_s=0.0045)
    for _ in range(9):
        sender.send(PACKET)
    way.take(10.0)
    way.give(11.0)
    assert arrived(receiver) == 5  # those that had to wait for 0, 1, 2, 3 and 4 ms
    sender.send(PACKET)
    way.take(11.0)
    way.give(12.0)
    assert arrived(receiver) == 1


def test_without_rights_it_says_so_instead_of_measuring(
    link: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(link.LinkUnavailable, match="need root"), link.shaped_link(1e6, 1e6, 0.1):
        pass
