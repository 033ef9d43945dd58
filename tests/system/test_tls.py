"""TLS with real processes: which clients may connect, and the messages of both sides."""

import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from program.tls.pems import channel_credentials, flags, make, make_expired, trust
from ssfl.client.connection import with_token
from ssfl.client.main import main as client_main
from ssfl.program.exits import ExitCode
from ssfl.program.tls.pem import ClientTls
from ssfl.program.tls.probe import diagnose
from ssfl.server.main import main
from ssfl.v1 import coordinator_pb2 as pb
from system.federation import RUN as REAL_RUN
from system.federation import SHARDS, FinishedRun, finish
from system.programs import Coordinator, Program, Programs
from system.raw_client import RUN, RawClient, expected_values, sha256, take_part_together
from system.raw_run import refused

pytestmark = pytest.mark.system

TOKEN = "a-token-of-twenty-six-chars"


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of a federation."""
    return make(tmp_path_factory.mktemp("tls") / "certs", "ann", "bob", *SHARDS)


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the same names by another CA."""
    return make(tmp_path_factory.mktemp("tls") / "strangers", "ann", *SHARDS)


def mutual(programs: Programs, certs: Path, *more: str) -> Coordinator:
    """Start a coordinator with mutual TLS."""
    coordinator = programs.coordinator(*flags(certs, "coordinator"), *more)
    coordinator.credentials = channel_credentials(certs, certs, "admin")
    return coordinator


@contextmanager
def raw_client(
    coordinator: Coordinator, client_id: str, credentials: grpc.ChannelCredentials, **more: float
) -> Iterator[RawClient]:
    client = RawClient(
        coordinator.address,
        client_id,
        num_samples=int(more.get("num_samples", 10)),
        delta=more.get("delta", 0.5),
        credentials=credentials,
    )
    try:
        yield client
    finally:
        client.close()


def message_of(program: Program) -> str:
    """Wait for the program to end and return its last line, the message for its user."""
    program.ends()
    return program.err.splitlines()[-1]


def status(programs: Programs, coordinator: Coordinator, *more: str) -> Program:
    return programs.run("ssfl", "status", f"--admin=localhost:{coordinator.admin_port}", *more)


# -- valid credentials


def test_a_run_under_mutual_tls_has_the_digest_of_one_without_tls(
    sites: Programs, certs: Path, undisturbed: FinishedRun
) -> None:
    coordinator = mutual(sites, certs, *REAL_RUN)
    clients = [sites.client(shard, coordinator, *flags(certs, shard)) for shard in SHARDS]
    finished = finish(coordinator, clients)
    assert finished.digest == undisturbed.digest
    assert "WARNING" not in coordinator.err


def test_a_passing_check_leaves_no_warning_at_the_coordinator(
    programs: Programs, certs: Path
) -> None:
    coordinator = mutual(programs, certs, *RUN)
    where = f"--coordinator={coordinator.address}"
    check = programs.run("ssfl", "check", where, "--client-id=ann", *flags(certs, "ann"))
    assert check.ends() == 0, check.out + check.err
    coordinator.signal(signal.SIGTERM)
    assert coordinator.ends() == ExitCode.TERMINATED
    assert "WARNING" not in coordinator.err
    assert "andshake" not in coordinator.err


def test_hand_made_clients_need_nothing_but_their_certificates(
    programs: Programs, certs: Path
) -> None:
    coordinator = mutual(programs, certs, *RUN)
    with (
        raw_client(coordinator, "ann", channel_credentials(certs, certs, "ann")) as ann,
        raw_client(
            coordinator, "bob", channel_credentials(certs, certs, "bob"), num_samples=30, delta=1
        ) as bob,
    ):
        ann.join()
        bob.join()
        expected = expected_values((ann, bob))
        for final in take_part_together(ann, bob):
            assert np.array_equal(final, expected)
    assert coordinator.status().model_digest == sha256(expected.tobytes())


def test_the_admin_port_accepts_only_the_admin_certificate(
    programs: Programs, certs: Path, strangers: Path
) -> None:
    coordinator = mutual(programs, certs, *RUN)
    done = status(programs, coordinator, "--json", *flags(certs, "admin"))
    assert done.ends() == 0
    assert json.loads(done.out)["phase"] == "gathering"
    site = status(programs, coordinator, *flags(certs, "ann"))
    assert site.ends() == ExitCode.REFUSED
    sentence = "the admin port needs the certificate of 'admin', but this one is for 'ann'"
    assert f"the coordinator refused: {sentence}" in site.err
    assert sentence in coordinator.says("call refused")
    anonymous = status(programs, coordinator, f"--tls-ca={certs / 'ca.pem'}")
    assert anonymous.ends() == ExitCode.REFUSED
    assert "requires a certificate and this side has none" in anonymous.err
    wrong = status(programs, coordinator, *flags(strangers, "ann"))
    assert wrong.ends() == ExitCode.REFUSED
    assert wrong.err.startswith("ssfl status: error: the certificate of the coordinator at"), (
        "and nothing of gRPC's own"
    )
    plain = status(programs, coordinator)
    assert plain.ends() == ExitCode.REFUSED
    assert "the coordinator speaks TLS and this side does not: give --tls-ca" in plain.err


def test_a_coordinator_without_tls_is_reported(programs: Programs, certs: Path) -> None:
    coordinator = programs.coordinator(*RUN)
    done = status(programs, coordinator, *flags(certs, "admin"))
    assert done.ends() == ExitCode.REFUSED
    assert f"the server at localhost:{coordinator.admin_port} does not speak TLS" in done.err


def test_renewed_certificates_are_used_without_a_restart(programs: Programs) -> None:
    own = programs.folder / "own"
    make(own, "ann")
    coordinator = mutual(programs, own, *RUN)

    def serial() -> str:
        context = ssl.create_default_context(cafile=str(own / "ca.pem"))
        context.load_cert_chain(own / "ann.pem", own / "ann-key.pem")
        with (
            socket.create_connection(("localhost", coordinator.port), 20) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as wrapped,
        ):
            return str((wrapped.getpeercert() or {})["serialNumber"])

    before = serial()
    assert serial() == before
    assert programs.run("ssfl", "certs", "--out=own", "--overwrite", "ann").ends() == 0
    assert serial() != before
    coordinator.says("certificates renewed")


# -- failed handshakes


def found(coordinator: Coordinator, tls: ClientTls | None) -> str:
    """Return a client's explanation of a failed connection."""
    finding = diagnose(coordinator.address, tls)
    assert finding is not None
    assert finding.final
    return finding.text


def test_a_client_explains_why_its_handshake_failed(
    sites: Programs, certs: Path, strangers: Path
) -> None:
    """Two cases use real clients, which take seconds to start; all cases use the same probe."""
    coordinator = mutual(sites, certs, "--clients=9", "--model=mlp")
    wrong_ca = sites.client("shard_00", coordinator, *flags(strangers, "shard_00"))
    impostor = sites.client(
        "shard_00", coordinator, *flags(certs, "shard_01"), "--state-dir=another"
    )
    foreign = replace(trust(strangers, "ann"), authorities=trust(certs).authorities)
    assert "does not accept the certificate" in found(coordinator, foreign)
    assert "requires a certificate and this side has none" in found(coordinator, trust(certs))
    assert "speaks TLS and this side does not: give --tls-ca" in found(coordinator, None)
    misnamed = found(coordinator, trust(certs, "ann", "fl.example.org"))
    assert f"the coordinator at {coordinator.address} is not for fl.example.org" in misnamed

    address = coordinator.address
    assert f"at {address} was not issued by a CA in {strangers / 'ca.pem'}" in message_of(wrong_ca)
    both = "the client calls itself 'shard_00', but its certificate is for 'shard_01'"
    assert f"the coordinator refused: {both}" in message_of(impostor)
    assert [wrong_ca.ends(), impostor.ends()] == [ExitCode.REFUSED] * 2

    assert both in coordinator.says("call refused: the client calls itself")
    assert list(coordinator.status().clients) == []


def test_a_client_with_unusable_tls_files_exits_before_it_connects(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = make_expired(here / "old", "ann")
    assert client_main(["--data=ann", *flags(old, "ann")]) == ExitCode.USAGE
    assert f"the certificate in {old / 'ann.pem'} expired on" in capsys.readouterr().err
    assert client_main(["--data=ann", "--tls-cert=x.pem"]) == ExitCode.USAGE
    assert "--tls-cert needs --tls-ca" in capsys.readouterr().err
    assert not (here / ".ssfl").exists()


def test_an_expired_certificate_is_refused(programs: Programs, tmp_path: Path) -> None:
    """Our client refuses to start with it; other clients, or running ones, may still use it."""
    make_expired(tmp_path / "own", "ann")
    own = make(tmp_path / "own", "admin")  # by the same CA, today
    for name in ("coordinator.pem", "coordinator-key.pem"):
        (own / name).unlink()
    make(own)
    coordinator = mutual(programs, own, *RUN)
    with raw_client(coordinator, "ann", channel_credentials(own, own, "ann")) as ann:
        with pytest.raises(grpc.RpcError) as caught:
            ann.join()
        assert caught.value.code() is StatusCode.UNAVAILABLE
    assert list(coordinator.status().clients) == []


def test_a_certificate_allows_calls_only_under_its_own_name(
    programs: Programs, certs: Path
) -> None:
    coordinator = mutual(programs, certs, *RUN)
    with (
        raw_client(coordinator, "ann", channel_credentials(certs, certs, "ann")) as ann,
        raw_client(coordinator, "bob", channel_credentials(certs, certs, "bob")) as bob,
    ):
        ann.join()
        bob.join()
        bob.caller = ann.caller
        denied = partial(
            refused, StatusCode.PERMISSION_DENIED, "wrong_name", "itself 'ann'", "is for 'bob'"
        )
        with denied():
            bob.next_task()
        with denied():
            bob.leave(pb.LEAVE_REASON_STOPPING)
        with denied():
            bob.upload(bob.initial_header(), [])
        with denied():
            bob.join(client_id="ann")
        assert coordinator.client_state("ann") in ("waiting", "working"), "bob sent it away"


# -- the join token


def test_only_clients_with_the_join_token_can_join(sites: Programs, certs: Path) -> None:
    (sites.folder / "token").write_text(TOKEN + "\n")
    server = flags(certs, "coordinator")[1:]
    coordinator = sites.coordinator(
        *server, "--join-token-file=token", "--clients=2", "--model=mlp"
    )
    authority = f"--tls-ca={certs / 'ca.pem'}"
    knows = sites.client("shard_00", coordinator, authority, "--join-token-file=token")
    only_tls = grpc.ssl_channel_credentials((certs / "ca.pem").read_bytes())
    with raw_client(coordinator, "ann", only_tls) as ann:
        missing = partial(refused, StatusCode.UNAUTHENTICATED, "unauthenticated", "asks for a join")
        with missing():
            ann.join()
        ann.caller = pb.Caller(client_id="shard_00", session=1)
        with missing():
            ann.leave(pb.LEAVE_REASON_STOPPING)
        ann.stub = with_token(ann.stub, TOKEN.upper())
        with refused(StatusCode.UNAUTHENTICATED, "unauthenticated", "is not that of this"):
            ann.join()
    knows.says("joined")
    coordinator.says("client ready")
    for program in (coordinator, knows):
        assert TOKEN not in program.err + program.out
    assert TOKEN.upper() not in coordinator.err


# -- settings that a coordinator refuses


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host=0.0.0.0"], "--host 0.0.0.0 can be reached from other machines"),
        (["--host=0.0.0.0", "--join-token-file=x"], "--insecure if this is inside a VPN"),
        (["--tls-cert=x.pem"], "--tls-cert and --tls-key belong together"),
        (["--tls-cert=x.pem", "--tls-key=y.pem"], "--tls-cert: there is no file x.pem"),
        (["--join-token-file=x"], "--join-token-file: there is no file x"),
    ],
)
def test_a_coordinator_with_unsafe_or_incomplete_tls_flags_does_not_start(
    here: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == ExitCode.USAGE
    err = capfd.readouterr().err
    assert err.startswith("ssfl-coordinator: error: ")
    assert words in err
    assert list(here.iterdir()) == [], "a wrong flag must leave no trace"


def test_a_coordinator_with_an_expired_certificate_does_not_start(
    programs: Programs, tmp_path: Path
) -> None:
    old = make_expired(tmp_path / "old")
    coordinator = programs.try_coordinator(*flags(old, "coordinator"))
    assert coordinator.ends() == ExitCode.USAGE
    assert f"the certificate in {old / 'coordinator.pem'} expired on" in coordinator.err


def test_insecure_listens_and_warns_at_every_start(programs: Programs) -> None:
    for _ in range(2):
        coordinator = programs.coordinator("--host=0.0.0.0", "--insecure", *RUN)
        coordinator.says("--insecure: listening beyond this machine without TLS")
        coordinator.says("anyone who reaches this port can join")
        assert "127.0.0.1" in coordinator.out  # the admin port stays on loopback
        coordinator.kill()


def test_variables_name_the_files_as_flags_do(programs: Programs, certs: Path) -> None:
    coordinator = mutual(programs, certs, *RUN)
    names = {"SSFL_TLS_CA": "ca.pem", "SSFL_TLS_CERT": "admin.pem", "SSFL_TLS_KEY": "admin-key.pem"}
    environment = os.environ | {name: str(certs / file) for name, file in names.items()}
    environment["SSFL_ADMIN"] = f"localhost:{coordinator.admin_port}"
    command: list[str | Path] = [programs.scripts / "ssfl", "status", "--json"]
    program = Program("status", command, programs.folder, environment)
    programs.started.append(program)
    assert program.ends() == 0
