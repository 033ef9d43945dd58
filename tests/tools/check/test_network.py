"""`ssfl check` and failures on the route, with real sockets."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from program.tls.pems import make, make_expired
from ssfl.program.exits import ExitCode
from ssfl.tools.check.network import Route, check_route
from ssfl.tools.check.steps import CheckResult, CheckVerdict, Steps
from ssfl.tools.check.view import step_text
from tools.check.check_fixtures import (
    credentials_of,
    fails,
    grpc_server,
    listener,
    replies,
    report_of,
    silent,
    steps_of,
)


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("tls") / "certs", "ann")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("tls") / "others", "ann")


def tls(folder: Path, name: str = "", authority: Path | None = None) -> dict[str, object]:
    """Return the settings of a client that uses the certificates of a folder."""
    pair = {"tls_cert": folder / f"{name}.pem", "tls_key": folder / f"{name}-key.pem"}
    return {"tls_ca": str((authority or folder) / "ca.pem"), **(pair if name else {})}


def route(address: str, **environ: str) -> tuple[dict[str, tuple[str, str]], Steps]:
    """Check a route without TLS, with only these variables; return verdicts and texts."""
    steps = Steps()
    steps.run("files", lambda: CheckResult(""))
    check_route(steps, Route(address, None, environ, deadline_s=0.3))
    return {step.name: (step.verdict.value, step.text) for step in steps.all}, steps


def failure(steps: Steps) -> str:
    return fails(
        {step.name: step for step in steps.all}, steps.with_verdict(CheckVerdict.FAILED)[0].name
    )


def test_no_listener_is_for_the_operator() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        found = report_of(coordinator=address).steps
    by_name = {step.name: step for step in found.all}
    message = fails(by_name, "tcp")
    assert f"{address}: nothing listens there → the coordinator's operator: start it" in message
    assert found.exit_code is ExitCode.UNREACHABLE
    assert by_name["bandwidth"].verdict is CheckVerdict.SKIPPED
    assert by_name["bandwidth"].text == "because tcp failed"


def test_a_firewall_that_drops_packets_is_for_network_administrators() -> None:
    with socket.socket() as full:  # a full backlog drops connections silently
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(address)
        verdicts, steps = route(f"127.0.0.1:{address[1]}")
        for connection in waiting:
            connection.close()
    assert verdicts["tcp"] == ("FAILED", f"127.0.0.1:{address[1]}: no answer within 0.3 s")
    assert "network administrators: allow outgoing TCP to 127.0.0.1:" in failure(steps)


def test_an_unknown_name_is_for_network_administrators() -> None:
    verdicts, steps = route("no-such-host.invalid:50051")
    assert verdicts["name"][0] == "FAILED"
    assert "network administrators: make no-such-host.invalid known to this machine" in failure(
        steps
    )


def test_an_invalid_host_name_fails_the_lookup() -> None:
    verdicts, steps = route("fl..example.org:50051")
    assert "this is not a valid host name" in verdicts["name"][1]
    assert "if it is misspelt, correct --coordinator" in failure(steps)


def test_a_lookup_without_an_answer_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()

    def hangs(*_arguments: object, **_more: object) -> list[object]:
        over.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    verdicts, _ = route("fl.example.org:50051")
    over.set()
    assert verdicts["name"][0] == "FAILED"
    assert "no name server answers within 0.3 s" in verdicts["name"][1]


def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_server() as address:
        port = int(address.rpartition(":")[2])
        known = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
            for host in ("127.0.0.3", "127.0.0.1")  # only the second answers
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: known)
        verdicts, _ = route(f"fl.example.org:{port}")
    assert verdicts["name"][1].startswith("fl.example.org is 127.0.0.3, 127.0.0.1 (")
    assert verdicts["tcp"][0] == "warning"
    assert "answers at 127.0.0.1 (" in verdicts["tcp"][1]
    assert verdicts["tcp"][1].endswith("not at 127.0.0.3")
    assert verdicts["http/2"] == ("ok", "answers")


def test_a_silent_listener_times_out() -> None:
    with listener(silent) as address:
        _, steps = route(address)
    message = failure(steps)
    assert f"{address} accepts connections, but sends nothing within 0.3 s" in message
    assert "the coordinator's operator: check that a coordinator runs behind" in message


def test_a_web_server_is_not_a_coordinator() -> None:
    with listener(replies(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        _, steps = route(address)
    assert f"an HTTP/1 web server answers at {address}, not a coordinator" in failure(steps)
    assert "tell the site the coordinator's port" in failure(steps)


def test_a_server_of_another_protocol_is_not_a_coordinator() -> None:
    with listener(replies(b"SSH-2.0-OpenSSH_9.2\r\n")) as address:
        _, steps = route(address)
    assert f"something without HTTP/2 answers at {address}, not a coordinator" in failure(steps)


def test_good_tls_is_reported_with_version_and_expiry(certs: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        found = steps_of(coordinator=address, client_id="ann", **tls(certs, "ann"))
    assert found["tls"].verdict is CheckVerdict.OK
    assert found["tls"].text.startswith("TLSv1.3, certificate until 20")
    assert found["files"].text.endswith("ca.pem, certificate of ann")


def test_a_readable_key_is_a_warning_with_the_chmod_command(tmp_path: Path) -> None:
    folder = make(tmp_path / "certs", "ann")
    (folder / "ann-key.pem").chmod(0o644)
    with grpc_server(credentials=credentials_of(folder)) as address:
        found = steps_of(coordinator=address, client_id="ann", **tls(folder, "ann"))
    assert found["tls"].verdict is CheckVerdict.WARNING
    assert f"chmod 600 {folder / 'ann-key.pem'}" in step_text(found["tls"], 1000).plain


def test_a_wrong_ca_is_for_the_administrator_of_the_machine(certs: Path, others: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        found = report_of(coordinator=address, **tls(others, "ann")).steps
    message = fails({step.name: step for step in found.all}, "tls")
    assert "was not issued by a CA in" in message
    assert "→ the administrator of the machine: ask its operator for the CA's file" in message
    assert found.exit_code is ExitCode.REFUSED


def test_an_expired_certificate_of_the_coordinator_is_for_the_operator(tmp_path: Path) -> None:
    old = make_expired(tmp_path / "old")
    with grpc_server(credentials=credentials_of(old, mutual=False)) as address:
        message = fails(steps_of(coordinator=address, **tls(old)), "tls")
    assert "has expired → the coordinator's operator: renew it" in message
    assert "or the administrator of the machine: set this machine's clock" in message


def test_an_expired_certificate_of_the_site_fails_the_files_step(tmp_path: Path) -> None:
    old = make_expired(tmp_path / "old", "ann")
    with grpc_server() as address:
        found = report_of(coordinator=address, **tls(old, "ann")).steps
    by_name = {step.name: step for step in found.all}
    assert "expired on" in fails(by_name, "files")
    assert found.exit_code is ExitCode.USAGE
    assert by_name["tcp"].verdict is CheckVerdict.OK, "steps without certificates still run"
    assert by_name["tls"].verdict is CheckVerdict.SKIPPED


def test_a_wrong_server_name_has_two_remedies(certs: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        more = tls(certs, "ann") | {"tls_server_name": "fl.example.org"}
        message = fails(steps_of(coordinator=address, **more), "tls")
    assert "is not for fl.example.org → the administrator of the machine: use a name" in message
    assert "or the coordinator's operator: add this name to it" in message


def test_a_site_certificate_of_another_ca_names_the_operator_to_ask(
    certs: Path, others: Path
) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        message = fails(steps_of(coordinator=address, **tls(others, "ann", certs)), "tls")
    assert "does not accept the certificate" in message
    assert (
        "→ the administrator of the machine: ask its operator for a certificate of the CA"
        in message
    )


def test_a_coordinator_without_tls_has_a_remedy_for_each_end(certs: Path) -> None:
    with grpc_server() as address:
        found = steps_of(coordinator=address, **tls(certs, "ann"))
    message = fails(found, "tls")
    assert "does not speak TLS → the administrator of the machine: omit --tls-ca" in message
    assert "or the coordinator's operator: start it with --tls-cert and --tls-key" in message
    lines = step_text(found["tls"], 200).plain.splitlines()
    assert lines[2].strip().startswith("or the coordinator's operator: start it with")


def test_a_missing_site_certificate_is_requested(certs: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        message = fails(steps_of(coordinator=address, **tls(certs)), "tls")
    assert "this side has none → the administrator of the machine: give --tls-cert" in message


def test_tls_only_at_the_coordinator_fails(certs: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        message = fails(steps_of(coordinator=address), "tls")
    assert (
        "speaks TLS and this side does not → the administrator of the machine: give --tls-ca"
        in message
    )


def proxied(answer: bytes) -> str:
    """Check a route through a proxy that gives this answer to CONNECT; return the failure."""
    with listener(replies(answer)) as proxy:
        verdicts, steps = route("fl.example.org:50051", https_proxy=f"http://{proxy}")
    assert verdicts["proxy"][1].startswith(f"{proxy} (https_proxy)")
    assert verdicts["http/2"] == ("skipped", "because tunnel failed")
    return failure(steps)


def test_a_proxy_that_refuses_connect_is_for_network_administrators() -> None:
    message = proxied(b"HTTP/1.1 403 Forbidden\r\nX: y\r\n\r\n")
    assert "answers CONNECT fl.example.org:50051 with: HTTP/1.1 403 Forbidden" in message
    assert "→ network administrators: let the proxy" in message


def test_a_proxy_that_wants_a_password_names_the_variable() -> None:
    assert "give user and password in https_proxy" in proxied(b"HTTP/1.1 407 Who?\r\n\r\n")


def test_a_proxy_that_hangs_up_fails_the_tunnel() -> None:
    assert "with: nothing" in proxied(b"")


def test_a_missing_proxy_names_its_variable() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{reserved.getsockname()[1]}"
        _, steps = route("fl.example.org:50051", grpc_proxy=f"http://{place}")
    assert f"start the proxy at {place}, or correct grpc_proxy" in failure(steps)


def test_a_working_proxy_reaches_the_coordinator() -> None:
    with grpc_server() as address:
        asked: list[bytes] = []

        def passes(connection: socket.socket) -> None:
            place = ("127.0.0.1", int(address.rpartition(":")[2]))
            with suppress(OSError), connection, socket.create_connection(place, 5) as far:
                asked.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                far.sendall(connection.recv(4096))
                connection.sendall(far.recv(4096))

        with listener(passes) as proxy:
            verdicts, _ = route("fl.example.org:50051", http_proxy=f"http://a:b@{proxy}")
    assert verdicts["tunnel"] == ("ok", "CONNECT fl.example.org:50051 works")
    assert verdicts["http/2"] == ("ok", "answers")
    assert b"Proxy-Authorization: Basic YTpi\r\n" in asked[-1]
    assert "the network in between can read the traffic" in verdicts["tls"][1]


def test_a_proxy_variable_that_grpc_ignores_is_a_warning() -> None:
    with grpc_server() as address:
        port = address.rpartition(":")[2]
        verdicts, _ = route(f"127.0.0.1.nip.invalid:{port}", HTTPS_PROXY="http://proxy:3128")
    assert verdicts["proxy"][0] == "warning"
    assert "gRPC reads https_proxy, in lower case" in verdicts["proxy"][1]
