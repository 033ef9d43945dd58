"""`ssfl check` and everything that can be wrong on the way, with real sockets."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from program.tls.pems import make, make_expired
from ssfl.program.exits import ExitCode
from ssfl.tools.check.network import Route, check_route
from ssfl.tools.check.steps import CheckVerdict, StepResult, Steps
from ssfl.tools.check.view import step_text
from tools.check.check_fixtures import (
    checked,
    credentials_of,
    fails,
    grpc_server,
    listener,
    says,
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
    """Return the settings with which a client uses the certificates of a folder."""
    pair = {"tls_cert": folder / f"{name}.pem", "tls_key": folder / f"{name}-key.pem"}
    return {"tls_ca": str((authority or folder) / "ca.pem"), **(pair if name else {})}


def route(address: str, **environ: str) -> tuple[dict[str, tuple[str, str]], Steps]:
    """Try a way without TLS, with these variables alone; return verdicts and texts."""
    steps = Steps()
    steps.run("files", lambda: StepResult(None, ""))
    check_route(steps, Route(address, None, environ, deadline_s=0.3))
    return {step.name: (step.verdict.value, step.text) for step in steps.all}, steps


def failure(steps: Steps) -> str:
    return fails(
        {step.name: step for step in steps.all}, steps.with_verdict(CheckVerdict.FAILED)[0].name
    )


def test_no_listener_is_for_whoever_runs_the_coordinator() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        found = checked(coordinator=address).steps
    by_name = {step.name: step for step in found.all}
    said = fails(by_name, "tcp")
    assert f"{address}: nothing listens there → the coordinator's operator: start it" in said
    assert found.exit_code is ExitCode.UNREACHABLE
    assert by_name["bandwidth"].verdict is CheckVerdict.SKIPPED
    assert by_name["bandwidth"].text == "because tcp failed"


def test_a_firewall_that_drops_is_for_the_network_people() -> None:
    with socket.socket() as full:  # a backlog that is full takes no connection, and says nothing
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        verdicts, steps = route(f"127.0.0.1:{address[1]}")
        for one in waiting:
            one.close()
    assert verdicts["tcp"] == ("FAILED", f"127.0.0.1:{address[1]}: no answer within 0.3 s")
    assert "network administrators: allow outgoing TCP to 127.0.0.1:" in failure(steps)


def test_a_name_that_nobody_knows_is_for_the_network_people() -> None:
    verdicts, steps = route("no-such-host.invalid:50051")
    assert verdicts["name"][0] == "FAILED"
    assert "network administrators: make no-such-host.invalid known to this machine" in failure(
        steps
    )


def test_a_name_that_cannot_be_is_told_at_once() -> None:
    verdicts, steps = route("fl..example.org:50051")
    assert "this is not a valid host name" in verdicts["name"][1]
    assert "if it is misspelt, correct --coordinator" in failure(steps)


def test_a_name_server_that_does_not_answer_is_not_waited_for(
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
            for host in ("127.0.0.3", "127.0.0.1")  # the server has the second only
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: known)
        verdicts, _ = route(f"fl.example.org:{port}")
    assert verdicts["name"][1].startswith("fl.example.org is 127.0.0.3, 127.0.0.1 (")
    assert verdicts["tcp"][0] == "warning"
    assert "answers at 127.0.0.1 (" in verdicts["tcp"][1]
    assert verdicts["tcp"][1].endswith("not at 127.0.0.3")
    assert verdicts["http/2"] == ("ok", "answers")


def test_a_listener_that_says_nothing_is_not_waited_for() -> None:
    with listener(silent) as address:
        _, steps = route(address)
    said = failure(steps)
    assert f"{address} accepts connections, but sends nothing within 0.3 s" in said
    assert "the coordinator's operator: check that a coordinator runs behind" in said


def test_a_web_server_is_told_from_a_coordinator() -> None:
    with listener(says(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        _, steps = route(address)
    assert f"an HTTP/1 web server answers at {address}, not a coordinator" in failure(steps)
    assert "tell the site the coordinator's port" in failure(steps)


def test_another_protocol_is_told_too() -> None:
    with listener(says(b"SSH-2.0-OpenSSH_9.2\r\n")) as address:
        _, steps = route(address)
    assert f"something without HTTP/2 answers at {address}, not a coordinator" in failure(steps)


def test_tls_that_is_fine_is_told_with_its_version_and_end(certs: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        found = steps_of(coordinator=address, client_id="ann", **tls(certs, "ann"))
    assert found["tls"].verdict is CheckVerdict.OK
    assert found["tls"].text.startswith("TLSv1.3, certificate until 20")
    assert found["files"].text.endswith("ca.pem, certificate of ann")


def test_a_key_that_others_can_read_is_a_warning_with_what_to_run(tmp_path: Path) -> None:
    folder = make(tmp_path / "certs", "ann")
    (folder / "ann-key.pem").chmod(0o644)
    with grpc_server(credentials=credentials_of(folder)) as address:
        found = steps_of(coordinator=address, client_id="ann", **tls(folder, "ann"))
    assert found["tls"].verdict is CheckVerdict.WARNING
    assert f"chmod 600 {folder / 'ann-key.pem'}" in step_text(found["tls"], 1000).plain


def test_a_wrong_ca_is_for_whoever_set_up_the_machine(certs: Path, others: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        found = checked(coordinator=address, **tls(others, "ann")).steps
    said = fails({step.name: step for step in found.all}, "tls")
    assert "was not made by a CA in" in said
    assert "→ the administrator of the machine: ask its operator for the CA's file" in said
    assert found.exit_code is ExitCode.REFUSED


def test_an_expired_coordinator_is_for_whoever_runs_it(tmp_path: Path) -> None:
    old = make_expired(tmp_path / "old")
    with grpc_server(credentials=credentials_of(old, mutual=False)) as address:
        said = fails(steps_of(coordinator=address, **tls(old)), "tls")
    assert "has expired → the coordinator's operator: renew it" in said
    assert "or the administrator of the machine: set this machine's clock" in said


def test_an_expired_certificate_of_the_site_is_found_in_its_file(tmp_path: Path) -> None:
    old = make_expired(tmp_path / "old", "ann")
    with grpc_server() as address:
        found = checked(coordinator=address, **tls(old, "ann")).steps
    by_name = {step.name: step for step in found.all}
    assert "expired on" in fails(by_name, "files")
    assert found.exit_code is ExitCode.USAGE
    assert by_name["tcp"].verdict is CheckVerdict.OK, "what needs no certificate is tried"
    assert by_name["tls"].verdict is CheckVerdict.SKIPPED


def test_a_wrong_name_is_told_with_what_would_do(certs: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        more = tls(certs, "ann") | {"tls_server_name": "fl.example.org"}
        said = fails(steps_of(coordinator=address, **more), "tls")
    assert "is not for fl.example.org → the administrator of the machine: use a name" in said
    assert "or the coordinator's operator: add this name to it" in said


def test_a_certificate_of_another_ca_is_told_with_whom_to_ask(certs: Path, others: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        said = fails(steps_of(coordinator=address, **tls(others, "ann", certs)), "tls")
    assert "does not accept the certificate" in said
    assert (
        "→ the administrator of the machine: ask its operator for a certificate of the CA" in said
    )


def test_a_coordinator_without_tls_is_told_with_what_each_end_can_do(certs: Path) -> None:
    with grpc_server() as address:
        found = steps_of(coordinator=address, **tls(certs, "ann"))
    said = fails(found, "tls")
    assert "does not speak TLS → the administrator of the machine: leave --tls-ca away" in said
    assert "or the coordinator's operator: start it with --tls-cert and --tls-key" in said
    lines = step_text(found["tls"], 200).plain.splitlines()
    assert lines[2].strip().startswith("or the coordinator's operator: start it with")


def test_a_certificate_that_is_missing_is_asked_for(certs: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        said = fails(steps_of(coordinator=address, **tls(certs)), "tls")
    assert "this side has none → the administrator of the machine: give --tls-cert" in said


def test_tls_at_one_end_only_is_told(certs: Path) -> None:
    with grpc_server(credentials=credentials_of(certs)) as address:
        said = fails(steps_of(coordinator=address), "tls")
    assert (
        "speaks TLS and this side does not → the administrator of the machine: give --tls-ca"
        in said
    )


def proxied(answer: bytes) -> str:
    """Try a way through a proxy that gives this answer to CONNECT."""
    with listener(says(answer)) as proxy:
        verdicts, steps = route("fl.example.org:50051", https_proxy=f"http://{proxy}")
    assert verdicts["proxy"][1].startswith(f"{proxy} (https_proxy)")
    assert verdicts["http/2"] == ("skipped", "because tunnel failed")
    return failure(steps)


def test_a_proxy_that_refuses_connect_is_for_the_network_people() -> None:
    said = proxied(b"HTTP/1.1 403 Forbidden\r\nX: y\r\n\r\n")
    assert "answers CONNECT fl.example.org:50051 with: HTTP/1.1 403 Forbidden" in said
    assert "→ network administrators: let the proxy" in said


def test_a_proxy_that_wants_a_password_is_told() -> None:
    assert "give user and password in https_proxy" in proxied(b"HTTP/1.1 407 Who?\r\n\r\n")


def test_a_proxy_that_hangs_up_is_told() -> None:
    assert "with: nothing" in proxied(b"")


def test_a_proxy_that_is_not_there_is_told() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{reserved.getsockname()[1]}"
        _, steps = route("fl.example.org:50051", grpc_proxy=f"http://{place}")
    assert f"start the proxy at {place}, or correct grpc_proxy" in failure(steps)


def test_a_proxy_that_passes_leads_to_the_coordinator() -> None:
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


def test_a_variable_that_grpc_leaves_alone_is_warned_of() -> None:
    with grpc_server() as address:
        port = address.rpartition(":")[2]
        verdicts, _ = route(f"127.0.0.1.nip.invalid:{port}", HTTPS_PROXY="http://proxy:3128")
    assert verdicts["proxy"][0] == "warning"
    assert "gRPC reads https_proxy, in lower case" in verdicts["proxy"][1]
