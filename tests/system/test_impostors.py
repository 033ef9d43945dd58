"""Attackers that act for another client: guessed sessions, foreign names, forged Leave calls.

In each mode of a coordinator: without TLS, with TLS and a join token, and with mutual TLS.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from program.tls.pems import channel_credentials, flags, make
from ssfl.client.connection import with_token
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.v1 import coordinator_pb2 as pb
from system.programs import Coordinator, Programs
from system.raw_client import RUN, RawClient, Received, chunks_of
from system.raw_run import RawRun, refused
from system.test_abuse import calls_of

pytestmark = pytest.mark.system

OTHER_TOKEN = b"of another site."
JOIN_TOKEN = "a-token-of-twenty-six-chars"
GUESSES = (*range(20), 2**62, 2**63 - 1, 2**64 - 1)

unknown_session = partial(
    refused, StatusCode.FAILED_PRECONDITION, "join_again", "not a session of ann: join again"
)
name_taken = partial(
    refused, StatusCode.ALREADY_EXISTS, "client_id_taken", "belongs to the client that joined",
    "ssfl remove ann --readmit", "--state-dir", "--client-id",
)  # fmt: skip


def run_id_for(stranger: RawClient) -> str:
    """Return the run id as a stranger can learn it, from the answer to Check."""
    question = pb.CheckQuestion(protocol_version=1, token=OTHER_TOKEN, num_samples=1)
    request = pb.CheckRequest(client_id="eve", question=question)
    return str(next(stranger.stub.Check(iter([request]))).answer.run_id)


def speaks_for_ann(attacker: RawClient, session: int) -> pb.Caller:
    return pb.Caller(run_id=run_id_for(attacker), client_id="ann", session=session)


def attacks(attacker: RawClient, got: Received) -> None:
    """Try every call under ann's name with every guess; fail unless all get the same refusal."""
    forged = attacker.trained(got)
    header = attacker.update_header(got, forged)
    answers = set()
    for guess in GUESSES:
        caller = speaks_for_ann(attacker, guess)
        forge = partial(attacker.upload, header, chunks_of(forged), caller=caller)
        calls: list[Callable[[], Any]] = [forge, *calls_of(attacker, caller)]
        answers |= {answer_to(call) for call in calls}
    assert answers == {"join_again"}


def answer_to(call: Callable[[], Any]) -> str:
    """Return the reason of a refusal, or "served" if there is none."""
    try:
        call()
    except grpc.RpcError as error:
        return str(dict(error.trailing_metadata() or ()).get("ssfl-reason", error))
    return "served"


def operator(programs: Programs, coordinator: Coordinator, *flags: str) -> str:
    """Run `ssfl remove` and return what it prints."""
    return programs.run("ssfl", "remove", f"--admin=localhost:{coordinator.admin_port}", *flags).out


# -- without TLS


def test_calls_with_guessed_sessions_are_refused(raw: RawRun) -> None:
    got = raw.training()
    eve = raw.client("eve", num_samples=10, delta=1000.0)
    attacks(eve, got)
    assert raw.coordinator.client_state("ann") == "working"
    assert not raw.coordinator.facts("ClientLeft")
    raw.finish_honestly()


def test_a_name_belongs_to_its_token_after_a_leave_call(raw: RawRun) -> None:
    raw.training()
    raw.ann.leave(pb.LEAVE_REASON_STOPPING)
    with name_taken():
        raw.ann.join(token=OTHER_TOKEN)
    raw.ann.join()
    raw.finish_honestly()


def test_a_client_whose_membership_ended_joins_again(raw: RawRun) -> None:
    raw.training()
    raw.ann.leave(pb.LEAVE_REASON_STOPPING)
    *calls, leave = calls_of(raw.ann, raw.ann.caller)
    for call in calls:
        with refused(StatusCode.FAILED_PRECONDITION, "join_again", "ann has left run"):
            call()
    leave()  # a repeated Leave call is harmless
    raw.ann.join()
    raw.finish_honestly()


@pytest.mark.parametrize("removed", [True, False])
def test_an_operator_can_release_a_name_to_the_next_token(raw: RawRun, *, removed: bool) -> None:
    raw.training()
    with name_taken():
        raw.ann.join(token=OTHER_TOKEN)
    if removed:
        operator(raw.programs, raw.coordinator, "ann")
    output = operator(raw.programs, raw.coordinator, "ann", "--readmit")
    owns = "ann was not removed; the next client that joins under this name owns it"
    assert ("ann may join again" if removed else owns) in output
    old = raw.ann.caller
    raw.ann.join(token=OTHER_TOKEN)
    for call in calls_of(raw.ann, old):
        with unknown_session():
            call()
    with name_taken():
        raw.ann.join()
    raw.finish_honestly()


def test_sessions_survive_a_restart_of_the_coordinator(raw: RawRun) -> None:
    raw.training()
    assert StateDirectory(raw.coordinator.state_dir).session_key.stat().st_mode & 0o777 == 0o600
    raw.restart()
    raw.finish_honestly()  # with the sessions from before


def test_a_state_directory_without_a_key_gets_one_and_its_clients_join_again(raw: RawRun) -> None:
    raw.training()
    (joined,) = (fact for fact in raw.coordinator.facts("ClientJoined") if fact["client"] == "ann")
    raw.coordinator.kill()
    key = StateDirectory(raw.coordinator.state_dir).session_key
    before = key.read_bytes()
    key.unlink()
    raw.coordinator = raw.programs.coordinator(*RUN, port=raw.coordinator.port)
    assert key.read_bytes() != before
    for session in (joined["session"], raw.ann.caller.session):  # the first: of an older version
        with unknown_session():
            raw.ann.next_task(caller=speaks_for_ann(raw.ann, session))
    raw.ann.join()
    raw.bob.join()
    raw.finish_honestly()


# -- with certificates


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("impostors") / "certs", "ann", "bob")


class SecuredRawRun(RawRun):
    """A raw run whose clients use a join token or certificates."""

    def __init__(self, programs: Programs, coordinator: Coordinator, certs: Path, mode: str):
        self._certs, self._mode = certs, mode
        super().__init__(programs, coordinator)

    def client(self, client_id: str, *details: Any, **more: Any) -> RawClient:
        del details
        if self._mode == "mutual":
            credentials = channel_credentials(self._certs, self._certs, client_id)
        else:
            credentials = grpc.ssl_channel_credentials((self._certs / "ca.pem").read_bytes())
        client = RawClient(self.coordinator.address, client_id, credentials=credentials, **more)
        if self._mode == "token":
            client.stub = with_token(client.stub, JOIN_TOKEN)
        self._clients.append(client)
        return client


@pytest.fixture
def federation(
    programs: Programs, certs: Path, request: pytest.FixtureRequest
) -> Iterator[SecuredRawRun]:
    if request.param == "token":
        (programs.folder / "join-token").write_text(JOIN_TOKEN + "\n")
        _, *own = flags(certs, "coordinator")
        coordinator = programs.coordinator(*RUN, *own, "--join-token-file=join-token")
        coordinator.credentials = grpc.ssl_channel_credentials((certs / "ca.pem").read_bytes())
    else:
        coordinator = programs.coordinator(*RUN, *flags(certs, "coordinator"))
        coordinator.credentials = channel_credentials(certs, certs, "admin")
    run = SecuredRawRun(programs, coordinator, certs, request.param)
    try:
        yield run
    finally:
        run.close()


@pytest.mark.parametrize("federation", ["token"], indirect=True)
def test_with_a_join_token_a_site_cannot_act_for_another(federation: SecuredRawRun) -> None:
    got = federation.training()
    attacks(federation.bob, got)
    with name_taken():
        federation.client("ann").join(token=federation.bob.token)
    federation.ann.leave(pb.LEAVE_REASON_STOPPING)
    with name_taken():
        federation.client("ann").join(token=federation.bob.token)
    federation.ann.join()
    federation.finish_honestly()


@pytest.mark.parametrize("federation", ["mutual"], indirect=True)
def test_a_certificate_gives_its_name_to_another_token_unless_a_client_is_live(
    federation: SecuredRawRun,
) -> None:
    federation.training()
    second = federation.client("ann", num_samples=10, delta=0.5)
    with refused(StatusCode.ALREADY_EXISTS, "client_id_taken", "ann is already here: stop it"):
        second.join(token=OTHER_TOKEN)
    first, federation.ann = federation.ann, second
    first.leave(pb.LEAVE_REASON_STOPPING)
    second.join(token=OTHER_TOKEN)
    with unknown_session():
        first.next_task()
    federation.finish_honestly()


@pytest.mark.parametrize("federation", ["mutual"], indirect=True)
def test_with_mutual_tls_a_site_cannot_act_for_another(federation: SecuredRawRun) -> None:
    federation.training()
    calls = calls_of(federation.bob, federation.ann.caller)
    calls.append(lambda: federation.bob.join(client_id="ann"))
    for call in calls:
        with refused(StatusCode.PERMISSION_DENIED, "wrong_name"):
            call()
    federation.finish_honestly()
