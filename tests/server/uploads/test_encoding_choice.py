"""Which encodings a client gets: what it listed, and where its connection comes from."""

import pytest

from ssfl.method.settings import RunSettings
from ssfl.server.run.state import Member
from ssfl.server.uploads.encoding_choice import Reader, is_loopback, reader_of
from ssfl.strategies.contract import ClientId
from ssfl.v1 import transfer_pb2

BASIC = (1, 2, 3, 4)
ALL = tuple(range(1, 11))
FAR, NEAR = "ipv4:192.0.2.7:43210", "ipv4:127.0.0.1:43210"


def member(encodings: tuple[int, ...]) -> Member:
    return Member(ClientId("c1"), 1, "t", 10, "m", "cpu", encodings=encodings)


@pytest.mark.parametrize(
    "peer",
    [
        "ipv4:127.0.0.1:43210",
        "ipv4:127.8.9.1:1",
        "ipv6:[::1]:43210",
        "ipv6:%5B::1%5D:43210",  # as gRPC writes it
        "ipv6:%5b::1%5d:43210",
        "ipv6:[::ffff:127.0.0.1]:43210",
        "ipv6:%5B::ffff:127.0.0.1%5D:43210",
        "unix:/run/ssfl.sock",
        "unix:",
        "unix-abstract:ssfl",
    ],
)
def test_this_machine(peer: str) -> None:
    assert is_loopback(peer)


@pytest.mark.parametrize(
    "peer",
    [
        "ipv4:192.0.2.7:43210",
        "ipv4:10.0.0.1:43210",
        "ipv4:128.0.0.1:43210",
        "ipv4:0.0.0.0:43210",
        "ipv6:[2001:db8::7]:43210",
        "ipv6:%5B2001:db8::7%5D:43210",
        "ipv6:[fe80::1%eth0]:43210",
        "ipv6:%5Bfe80::1%25eth0%5D:43210",
        "ipv6:[::ffff:192.0.2.7]:43210",
        "ipv6:[::]:43210",
        "ipv4:localhost:43210",  # a name is not an address
        "vsock:2:1234",
        "something new",
        "",
    ],
)
def test_another_machine_or_something_unknown(peer: str) -> None:
    assert not is_loopback(peer)


@pytest.mark.parametrize(
    ("reference_coding", "peer", "coded"),
    [
        ("auto", NEAR, False),
        ("auto", FAR, True),
        ("on", NEAR, True),
        ("on", FAR, True),
        ("off", NEAR, False),
        ("off", FAR, False),
    ],
)
def test_a_link_is_coded_unless_it_is_loopback_or_an_operator_decides(
    reference_coding: str, peer: str, coded: bool
) -> None:
    reader = reader_of(member(ALL), peer, reference_coding)
    assert reader == Reader(frozenset(ALL), coded)


def test_an_encoding_of_the_future_is_kept_and_never_used() -> None:
    reader = reader_of(member((*BASIC, 77)), FAR, "on")
    assert 77 in reader.encodings
    assert not reader.knows_references
    assert reader.encoding_name(RunSettings()) == "values_only"


@pytest.mark.parametrize("value_type", ["float32", "bfloat16", "int8", "grid"])
def test_an_older_client_sends_plain_values_in_every_run(value_type: str) -> None:
    settings = RunSettings(value_type=value_type)
    for coded in (False, True):
        reader = Reader(frozenset(BASIC), coded)
        assert reader.update_encoding(settings) == transfer_pb2.ENCODING_VALUES_ONLY


@pytest.mark.parametrize(
    ("value_type", "word"), [("bfloat16", "bfloat16"), ("int8", "int8"), ("grid", "grid")]
)
def test_a_lossy_run_is_lossy_on_every_link(value_type: str, word: str) -> None:
    settings = RunSettings(value_type=value_type)
    for coded in (False, True):
        assert Reader(frozenset(ALL), coded).encoding_name(settings) == word


def test_a_client_without_the_runs_lossy_code_sends_exact_values() -> None:
    settings = RunSettings(value_type="int8")
    without = frozenset({*BASIC, transfer_pb2.ENCODING_REFERENCE, transfer_pb2.ENCODING_GRID})
    assert Reader(without, coded=True).encoding_name(settings) == "reference"
    assert Reader(without, coded=False).encoding_name(settings) == "values_only"


def test_an_exact_run_is_coded_where_the_link_is() -> None:
    assert Reader(frozenset(ALL), coded=True).encoding_name(RunSettings()) == "reference"
    assert Reader(frozenset(ALL), coded=False).encoding_name(RunSettings()) == "values_only"
