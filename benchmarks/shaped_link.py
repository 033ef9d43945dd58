"""A link between two network namespaces with a chosen rate, delay and queue.

Each namespace has one TUN device; a process of ours carries the packets between them, so TCP's
handshakes, slow start and losses are real. A packet waits for its turn at the rate, then for
the one-way delay; it is dropped if the queue is full. The rate is that of IP packets, headers
included. Routes use cubic unless another congestion control is given.

A link can also have faults: random packet loss, and cuts, after which it may have forgotten
existing connections, like a restarted router. It counts TCP payload.

Needs root, /dev/net/tun and `ip`; LinkUnavailable names what is missing. Accurate up to about
100 Mbit/s.
"""

import ctypes
import fcntl
import json
import os
import random
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

QUEUE_S = 0.1
MTU = 1500
CONGESTION_CONTROL = "cubic"
PRIORITY = 50  # real-time, of the carrier; otherwise a busy machine adds milliseconds
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _CLONE_NEWNET = 0x400454CA, 1, 0x1000, 0x40000000
_DEVICE = "wan0"
_STDIN = 0
_BURST = 64  # packets read from one side before the other side's turn


class LinkUnavailable(Exception):
    """This machine cannot make a link; the message says why."""


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """The faults of a link; cuts are timed from `ShapedLink.start_cuts`."""

    loss: float = 0.0  # share of packets, per direction
    cut_every_s: float = 0.0  # 0: never
    down_s: float = 0.0  # duration of a cut
    forgets: bool = False  # connections from before a cut are silently dropped
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """One end of the link."""

    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Return the command that runs `words` at this end."""
        return ["ip", "netns", "exec", self.namespace, *words]


@dataclass(frozen=True, slots=True)
class ShapedLink:
    """The coordinator's end, the clients' end, and the carrier between them."""

    coordinator: Side
    clients: Side
    up_bits_per_s: float  # clients to coordinator
    down_bits_per_s: float
    rtt_s: float
    carrier: "subprocess.Popen[str]"

    def start_cuts(self) -> None:
        """Start the period until the first cut."""
        self._command("begin")

    def cut(self) -> None:
        """Cut the link for an instant; connections are forgotten if its LinkFaults says so."""
        self._command("cut")

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the TCP payload bytes so far, by direction: "up" and "down".

        offered: sent into the link, with retransmissions; delivered: bytes that came out of it;
        distinct: bytes that came out for the first time.
        """
        self._command("count")
        assert self.carrier.stdout is not None
        totals: dict[str, dict[str, int]] = json.loads(self.carrier.stdout.readline())
        return totals

    def _command(self, word: str) -> None:
        assert self.carrier.stdin is not None
        self.carrier.stdin.write(word + "\n")
        self.carrier.stdin.flush()


@contextmanager
def shaped_link(
    up_bits_per_s: float,
    down_bits_per_s: float,
    rtt_s: float,
    queue_s: float = QUEUE_S,
    faults: LinkFaults | None = None,
    congestion_control: str = CONGESTION_CONTROL,
) -> Iterator[ShapedLink]:
    """Make the link; remove it, and nothing else, at the end."""
    _check_possible()
    sides = tuple(
        Side(f"ssfl-{os.getpid()}-{name}", f"10.98.0.{host}")
        for name, host in (("coordinator", 1), ("clients", 2))
    )
    made: list[Side] = []
    carrier: subprocess.Popen[str] | None = None
    try:
        for side in sides:
            _ip("netns", "add", side.namespace)
            made.append(side)
        numbers = (down_bits_per_s, up_bits_per_s, rtt_s / 2, queue_s)
        carrier = subprocess.Popen(
            [
                *(sys.executable, __file__, *(s.namespace for s in sides), *map(str, numbers)),
                json.dumps(asdict(faults or LinkFaults())),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert carrier.stdout is not None
        if carrier.stdout.readline() != "ready\n":
            raise LinkUnavailable("the process that carries the packets did not start")
        for side in sides:
            _configure(side, congestion_control)
        yield ShapedLink(sides[0], sides[1], up_bits_per_s, down_bits_per_s, rtt_s, carrier)
    finally:
        if carrier is not None:
            carrier.kill()
            carrier.wait()
            for pipe in (carrier.stdin, carrier.stdout):
                if pipe:
                    with suppress(BrokenPipeError):
                        pipe.close()
        for side in made:
            _ip("netns", "delete", side.namespace)


def measure(link: ShapedLink, seconds: float = 4.0) -> dict[str, float]:
    """Return round trip and goodput down the link, as a plain TCP connection sees them."""
    child = [sys.executable, __file__]
    with subprocess.Popen(
        link.coordinator.command(*child, "--source", link.coordinator.address, str(seconds)),
        stdout=subprocess.PIPE,
        text=True,
    ) as source:
        assert source.stdout is not None
        port = source.stdout.readline().strip()
        done = subprocess.run(
            link.clients.command(*child, "--sink", link.coordinator.address, port),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    rtt_s, bits_per_s = map(float, done.stdout.split())
    return {"rtt_s": rtt_s, "goodput_bits_per_s": bits_per_s}


def _check_possible() -> None:
    if os.geteuid() != 0:
        raise LinkUnavailable("network namespaces need root")
    if not Path("/dev/net/tun").exists():
        raise LinkUnavailable("there is no /dev/net/tun")


def _configure(side: Side, congestion_control: str) -> None:
    inside = ("-n", side.namespace)
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "address", "add", f"{side.address}/24", "dev", _DEVICE)
    _ip(*inside, "link", "set", _DEVICE, "up", "mtu", str(MTU), "txqueuelen", "1000")
    _ip(
        *(*inside, "route", "replace", "10.98.0.0/24", "dev", _DEVICE, "proto", "kernel"),
        *("scope", "link", "src", side.address, "congctl", congestion_control),
    )


def _ip(*words: str) -> None:
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise LinkUnavailable("there is no command ip (iproute2)") from None
    except subprocess.CalledProcessError as error:
        raise LinkUnavailable(f"ip {' '.join(words)}: {error.stderr.strip()}") from error


class FaultInjector:
    """The faults of both directions: decides which packets pass."""

    def __init__(self, faults: LinkFaults) -> None:
        self._faults = faults
        self._chance = random.Random(faults.seed)
        self._began_s = float("inf")
        self._ordered = 0  # cuts on request
        self._made: dict[tuple[int, int], int] = {}  # connection: cuts before it was opened

    def begin(self, now_s: float) -> None:
        self._began_s = now_s

    def cut(self) -> None:
        self._ordered += 1

    def passes(self, packet: bytes, now_s: float) -> bool:
        """Return True if a packet passes."""
        faults, cuts = self._faults, self._ordered
        if faults.cut_every_s and now_s >= self._began_s:
            periods, since_s = divmod(now_s - self._began_s, faults.cut_every_s)
            if periods and since_s < faults.down_s:
                return False
            cuts += int(periods)
        if faults.loss and self._chance.random() < faults.loss:
            return False
        segment = read_segment(packet)
        if segment is None or not faults.forgets:
            return True
        if segment.opens:
            self._made[segment.connection] = cuts
        return self._made.get(segment.connection, cuts) == cuts


@dataclass(frozen=True, slots=True)
class Segment:
    """The fields of a TCP segment that are used here."""

    connection: tuple[int, int]  # its two ports, the smaller one first
    sequence: int
    num_bytes: int  # of payload
    opens: bool


def read_segment(packet: bytes) -> Segment | None:
    """Return the TCP segment in an IPv4 packet, or None."""
    if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
        return None
    start = 4 * (packet[0] & 15)
    source, target, sequence = struct.unpack_from("!HHI", packet, start)
    header = 4 * (packet[start + 12] >> 4)
    ports = (min(source, target), max(source, target))
    return Segment(ports, sequence, len(packet) - start - header, bool(packet[start + 13] & 2))


class Counts:
    """TCP payload of one direction."""

    def __init__(self) -> None:
        self.offered = self.delivered = self.distinct = 0
        self._next: dict[tuple[int, int], int] = {}  # next sequence number not seen

    def offer(self, segment: Segment | None) -> None:
        self.offered += segment.num_bytes if segment else 0

    def deliver(self, segment: Segment | None) -> None:
        if segment is None:
            return
        self.delivered += segment.num_bytes
        end = segment.sequence + segment.num_bytes
        if segment.opens or segment.connection not in self._next:
            self._next[segment.connection] = end + segment.opens
            self.distinct += segment.num_bytes
            return
        new = (end - self._next[segment.connection]) & 0xFFFFFFFF
        if 0 < new < 1 << 31:  # a gap counts as delivered: it was sent before and will be repeated
            self.distinct += new
            self._next[segment.connection] = end & 0xFFFFFFFF

    def totals(self) -> dict[str, int]:
        return {
            "offered": self.offered, "delivered": self.delivered, "distinct": self.distinct,
        }  # fmt: skip


class LinkDirection:
    """One direction: packets wait for their turn at the rate, then for the delay."""

    def __init__(
        self,
        source: int,
        sink: int,
        bits_per_s: float,
        delay_s: float,
        queue_s: float,
        injector: FaultInjector | None = None,
    ) -> None:
        self.source, self.sink = source, sink
        self._bytes_per_s = bits_per_s / 8
        self._delay_s, self._queue_s = delay_s, queue_s
        self._free_s = 0.0  # when the link has sent all accepted packets
        self._flying: deque[tuple[float, bytes]] = deque()
        self._injector = injector or FaultInjector(LinkFaults())
        self.counts = Counts()

    def receive(self, now_s: float) -> None:
        """Read arrived packets; drop those that find the queue full."""
        for _ in range(_BURST):
            try:
                packet = os.read(self.source, 65536)
            except BlockingIOError:
                return
            segment = read_segment(packet)
            self.counts.offer(segment)
            if not self._injector.passes(packet, now_s):
                continue
            start_s = max(now_s, self._free_s)
            if start_s - now_s > self._queue_s:
                continue
            self._free_s = start_s + len(packet) / self._bytes_per_s
            self.counts.deliver(segment)
            self._flying.append((self._free_s + self._delay_s, packet))

    def deliver(self, now_s: float) -> float:
        """Deliver due packets; return the seconds until the next one."""
        while self._flying and self._flying[0][0] <= now_s:
            _, packet = self._flying.popleft()
            with suppress(OSError):  # the other end is not up yet, or gone
                os.write(self.sink, packet)
        return self._flying[0][0] - now_s if self._flying else 1.0


def carry(
    namespaces: Sequence[str],
    rates: Sequence[float],
    delay_s: float,
    queue_s: float,
    faults: LinkFaults,
) -> None:
    """Carry packets between the TUN devices of two namespaces forever."""
    first, second = (_open_tun(namespace) for namespace in namespaces)
    injector = FaultInjector(faults)
    directions = (
        LinkDirection(first, second, rates[0], delay_s, queue_s, injector),
        LinkDirection(second, first, rates[1], delay_s, queue_s, injector),
    )
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    print("ready", flush=True)
    while True:
        now_s = time.monotonic()
        wait_s = min(direction.deliver(now_s) for direction in directions)
        readable, _, _ = select.select([first, second, _STDIN], [], [], max(0.0, wait_s))
        now_s = time.monotonic()
        if _STDIN in readable:
            words = os.read(_STDIN, 4096).decode().split()
            if not words:  # the parent process has ended
                return
            for word in words:
                _run_command(word, injector, directions, now_s)
        for direction in directions:
            if direction.source in readable:
                direction.receive(now_s)


def _run_command(
    word: str,
    injector: FaultInjector,
    directions: Sequence[LinkDirection],
    now_s: float,
) -> None:
    """Run a command of ShapedLink; commands are short, so reads do not split them."""
    match word:
        case "begin":
            injector.begin(now_s)
        case "cut":
            injector.cut()
        case "count":
            totals = {"down": directions[0].counts.totals(), "up": directions[1].counts.totals()}
            print(json.dumps(totals), flush=True)


def _open_tun(namespace: str) -> int:
    """Return a TUN device in a namespace; this thread stays in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as inside:
        if libc.setns(inside.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, request)
    return device


def _source(address: str, seconds: float) -> None:
    """Answer pings of one byte, then send for `seconds`: the peer of `_sink`."""
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(10):
                connection.sendall(connection.recv(1))
            end_s = time.monotonic() + seconds
            with suppress(ConnectionError):
                while time.monotonic() < end_s:
                    connection.sendall(bytes(1 << 14))


def _sink(address: str, port: int) -> None:
    """Print the median round trip, and the goodput after the first second of slow start."""
    with socket.create_connection((address, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pings = []
        for _ in range(10):
            began_s = time.monotonic()
            connection.sendall(b"x")
            connection.recv(1)
            pings.append(time.monotonic() - began_s)
        began_s, counted, counting_s = time.monotonic(), 0, 0.0
        while data := connection.recv(1 << 16):
            now_s = time.monotonic()
            if now_s - began_s < 1.0:
                counting_s = now_s
            else:
                counted, last_s = counted + len(data), now_s
    print(statistics.median(pings), 8 * counted / (last_s - counting_s))


def main() -> None:
    match sys.argv[1:]:
        case ["--source", address, seconds]:
            _source(address, float(seconds))
        case ["--sink", address, port]:
            _sink(address, int(port))
        case [first, second, down, up, delay_s, queue_s, faults]:
            rates = (float(down), float(up))
            injected = LinkFaults(**json.loads(faults))
            carry((first, second), rates, float(delay_s), float(queue_s), injected)


if __name__ == "__main__":
    main()
