"""Diagnoses of the probe, each against a server or socket with one fault."""

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from program.tls.pems import make, make_expired, trust
from ssfl.program.tls.probe import Finding, diagnose


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("tls") / "certs", "ann")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("tls") / "others", "ann")


@contextmanager
def server(certs: Path | None, *, mutual: bool = True) -> Iterator[str]:
    """Run a gRPC server with the coordinator's certificate of a folder, or without TLS."""
    with ThreadPoolExecutor(1) as pool:
        serving = grpc.server(pool)
        if certs is None:
            port = serving.add_insecure_port("127.0.0.1:0")
        else:
            pair = [(certs / f"coordinator{part}.pem").read_bytes() for part in ("-key", "")]
            credentials = grpc.ssl_server_credentials(
                [tuple(pair)], (certs / "ca.pem").read_bytes(), require_client_auth=mutual
            )
            port = serving.add_secure_port("127.0.0.1:0", credentials)
        serving.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            serving.stop(None).wait()


def final(finding: Finding | None) -> str:
    assert finding is not None
    assert finding.final
    return finding.text


def test_a_working_connection_has_no_finding(certs: Path) -> None:
    with server(certs) as address:
        assert diagnose(address, trust(certs, "ann")) is None
    with server(certs, mutual=False) as address:
        assert diagnose(address, trust(certs)) is None
    with server(None) as address:
        assert diagnose(address, None) is None


def test_a_certificate_of_another_ca_is_reported_with_the_trusted_file(
    certs: Path, others: Path
) -> None:
    with server(certs) as address:
        text = final(diagnose(address, trust(others, "ann")))
    assert f"of the coordinator at {address} was not issued by a CA in {others / 'ca.pem'}" in text


def test_an_expired_coordinator_certificate_is_reported(tmp_path: Path) -> None:
    old = make_expired(tmp_path / "old")
    with server(old, mutual=False) as address:
        text = final(diagnose(address, trust(old)))
    assert f"certificate of the coordinator at {address} has expired" in text


def test_a_certificate_for_another_name_is_reported(certs: Path) -> None:
    with server(certs) as address:
        text = final(diagnose(address, trust(certs, "ann", "fl.example.org")))
    assert "is not for fl.example.org" in text
    assert "--tls-server-name" in text


def test_an_address_that_is_not_in_the_certificate_is_reported(certs: Path) -> None:
    with server(certs) as address:
        text = final(diagnose(address, trust(certs, "ann", "127.0.0.2")))
    assert "is not for 127.0.0.2" in text


def test_a_missing_client_certificate_is_reported(certs: Path) -> None:
    with server(certs) as address:
        text = final(diagnose(address, trust(certs)))
    assert "requires a certificate and this side has none: give --tls-cert" in text


def test_a_rejected_client_certificate_is_reported_with_its_issuer(
    certs: Path, others: Path
) -> None:
    mixed = trust(others, "ann")
    trusting = type(mixed)(trust(certs).authorities, "ca.pem", mixed.pair, "")
    with server(certs) as address:
        text = final(diagnose(address, trusting))
    assert f"does not accept the certificate {others / 'ann.pem'} of 'ann'" in text
    assert "issued by 'ssfl test CA'" in text


def test_tls_on_one_side_only_is_reported(certs: Path) -> None:
    with server(certs) as address:
        assert "the coordinator speaks TLS and this side does not" in final(diagnose(address, None))
    with server(None) as address:
        text = final(diagnose(address, trust(certs)))
    assert f"the server at {address} does not speak TLS" in text


def test_a_refused_connection_is_not_final() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        finding = diagnose(address, None)
    assert finding == Finding(f"{address}: Connection refused", final=False)


def test_a_silent_server_costs_only_the_deadline(certs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for tls in (None, trust(certs)):
            finding = diagnose(address, tls, deadline_s=0.2)
            assert finding == Finding(f"{address}: no answer within 0.2 s", final=False)


def test_tls_without_http2_is_reported(certs: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs / "coordinator.pem", certs / "coordinator-key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, context.wrap_socket(connection, server_side=True) as wrapped:
                wrapped.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        text = final(diagnose(address, trust(certs)))
        serving.join()
    assert "speaks TLS, but not HTTP/2" in text


def test_there_is_no_probe_behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    assert diagnose("fl.invalid:50051", None) is None
    monkeypatch.setenv("no_proxy", "localhost,.invalid")
    finding = diagnose("fl.invalid:50051", None)
    assert finding is not None
    assert "the name fl.invalid cannot be resolved" in finding.text
