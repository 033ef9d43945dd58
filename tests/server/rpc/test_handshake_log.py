"""gRPC's lines about handshakes, as sentences; over sockets: tests/system/test_tls.py."""

import logging
import os
import sys

import pytest

from ssfl.server.rpc.handshake_log import SAME_EVERY_S, Handshakes, _whole, heard, sentence_for

RECORD = """\
I1116 15:29:00.255012    6273 handshaker.cc:155] CallNextHandshakerLocked: error=UNKNOWN: Ssl \
handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:{error}: OK
=== Source Location Trace: ===\x20
src/core/util/status_helper.cc:68
 shutdown=false index=2, args={{endpoint=0x7fbf70002440, args={{grpc.internal.\
endpoint_local_address=ipv4:127.0.0.1:5443, grpc.internal.endpoint_peer_address={peer}, \
grpc.so_reuseport=0}}, read_buffer.Length()=0, exit_early=0}}
"""
NONE = "100000c0:SSL routines:OPENSSL_internal:PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid context"
PLAIN = "100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid context"
GOOD = (
    "I1116 15:29:00.241667    6273 handshaker.cc:155] CallNextHandshakerLocked: error=OK "
    "shutdown=false index=0, args={endpoint=0x7f, args={grpc.internal.endpoint_peer_address="
    "ipv4:10.0.0.7:1}}\n"
)
OTHER = "E1116 15:29:00.241667    6273 tcp.cc:155] something else\nwith a second line\n"


def record(error: str = NONE, peer: str = "ipv4:10.0.0.7:40860") -> str:
    return RECORD.format(error=error, peer=peer)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.getMessage(), vars(record)["from"]) for record in caplog.records]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NONE, "showed no certificate"),
        (PLAIN, "is not TLS"),
        ("SSL routines:OPENSSL_internal:HTTP_REQUEST: x", "is not TLS"),
        ("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "CA of --tls-ca"),
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired", "has expired"),
        ("CERTIFICATE_VERIFY_FAILED: unsuitable purpose: OK", "check (unsuitable purpose)"),
        ("SSL routines:OPENSSL_internal:TLSV1_ALERT_UNKNOWN_CA: x", "broke it off"),
        ("SSL routines:OPENSSL_internal:BAD_PACKET_LENGTH: x", "broke it off"),
        ("UNAVAILABLE: Handshake read failed (Socket closed)", "hung up"),
        ("something\nnew", "something new"),
    ],
)
def test_every_failure_has_a_sentence(error: str, words: str) -> None:
    assert words in sentence_for(error)


def test_a_failure_is_told_with_its_address(caplog: pytest.LogCaptureFixture) -> None:
    handshakes = Handshakes()
    assert handshakes.take(record())
    assert handshakes.take(record(PLAIN, "ipv6:%5B::1%5D:40870"))
    (first, at), (second, there) = told(caplog)
    assert first.startswith("a TLS handshake failed: the client showed no certificate")
    assert "is not TLS" in second
    assert (at, there) == ("10.0.0.7:40860", "[::1]:40870")
    assert handshakes.failed == 2


def test_other_traces_are_dropped_and_other_lines_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handshakes = Handshakes()
    assert handshakes.take(GOOD)
    assert not handshakes.take(OTHER)
    assert told(caplog) == []
    assert handshakes.failed == 0


def test_the_same_host_is_told_about_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    handshakes = Handshakes(lambda: now_s)
    for port in range(3):
        handshakes.take(record(peer=f"ipv4:10.0.0.7:{port + 1}"))
    handshakes.take(record(peer="ipv4:10.0.0.8:1"))
    assert [at for _, at in told(caplog)] == ["10.0.0.7:1", "10.0.0.8:1"]
    now_s = SAME_EVERY_S
    handshakes.take(record(peer="ipv4:10.0.0.7:9"))
    assert vars(caplog.records[-1])["times_since_last_told"] == 3
    assert handshakes.failed == 5


def write_and_log() -> None:
    """Write what the C core writes, a record at a time, and what Python writes."""
    assert os.environ["GRPC_TRACE"] == "handshaker"
    assert os.environ.get("GRPC_VERBOSITY", "info").lower() == "info"
    for one in (GOOD, record(), OTHER) * 20:  # less than the pipe holds
        os.write(2, one.encode())
    print("from Python", file=sys.stderr)
    logging.getLogger("ssfl.test").info("our log")


def test_a_read_that_ends_inside_a_record_keeps_it_for_the_next() -> None:
    first, second = GOOD.encode(), record().encode()
    assert _whole(first + second[:100]) == (first, second[:100])
    assert _whole(first) == (first, b"")


@pytest.mark.parametrize(("level", "others"), [("", 20), ("info", 20), ("ERROR", 20), ("none", 0)])
def test_what_the_c_core_writes_is_sorted_and_nothing_else_is_touched(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, level: str, others: int
) -> None:
    """`level` is what whoever started it wants to see of gRPC's own lines."""
    monkeypatch.delenv("GRPC_TRACE", raising=False)
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    if level:
        monkeypatch.setenv("GRPC_VERBOSITY", level)
    handshakes = Handshakes()
    handlers = list(logging.getLogger().handlers)
    with (
        os.fdopen(os.dup(2), "w", buffering=1) as stderr,
        monkeypatch.context() as patched,
    ):
        patched.setattr(sys, "stderr", stderr)
        with heard(handshakes, "text", "info"):
            write_and_log()
        assert sys.stderr is stderr
    logging.getLogger().handlers[:] = handlers
    assert "GRPC_TRACE" not in os.environ
    assert os.environ.get("GRPC_VERBOSITY", "") == level
    os.write(2, b"afterwards\n")
    err = capfd.readouterr().err
    assert handshakes.failed == 20
    assert err.count("something else\nwith a second line\n") == others
    assert err.count("a TLS handshake failed: the client showed no certificate") == 1
    assert "CallNext" not in err
    for line in ("from Python\n", "our log", "afterwards\n"):
        assert line in err
