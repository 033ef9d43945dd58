"""`ssfl check` and the answers of a coordinator to a client that has not joined."""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from program.tls.pems import make
from server.run_loop_harness import C1, SETTINGS, begin
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.loop.limits import Limits
from ssfl.server.rpc import preflight
from ssfl.server.run import events
from ssfl.tools.check import probe
from ssfl.tools.check.steps import CheckVerdict
from ssfl.v1 import admin_pb2, admin_pb2_grpc, coordinator_pb2_grpc, settings_pb2
from ssfl.v1 import coordinator_pb2 as pb
from system.proxy import Proxy
from tools.check.check_fixtures import fails, grpc_server, report_of, steps_of, with_coordinator

TOKEN = "0123456789abcdef"
TOY = Manifest((TensorSpec("fc.weight", (2, 2), Role.MASKED, Init("normal", 0.1)),), {"name": "x"})


@pytest.fixture(autouse=True)
def _little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "NOISE_BYTES", 1 << 18)


def test_every_step_passes_if_the_client_would_be_admitted(tmp_path: Path) -> None:
    def body(address: str) -> None:
        found = report_of(coordinator=address, client_id="ann")
        assert found.steps.with_verdict(CheckVerdict.FAILED) == []
        assert found.steps.with_verdict(CheckVerdict.SKIPPED) == []
        assert found.steps.exit_code is ExitCode.DONE
        assert found.settings == SETTINGS
        assert found.session and found.session.link
        assert found.session.link.up_bits_per_s > 1e6
        assert found.session.link.down_bits_per_s > 1e6
        by_name = {step.name: step for step in found.steps.all}
        assert by_name["admission"].text == "ann would be admitted"
        assert by_name["clock"].text.startswith("agrees with the coordinator's (0.0")
        assert "at both ends" in by_name["version"].text
        assert "0 of 2 rounds, 0 clients joined" in by_name["call"].text

    with_coordinator(tmp_path, body)


def test_the_runs_model_has_a_forecast_without_a_shard(tmp_path: Path) -> None:
    async def prepare(coordinator: Coordinator) -> None:
        await begin(coordinator, TOY)

    def body(address: str) -> None:
        found = report_of(coordinator=address)
        assert found.manifest() == TOY
        own = [row for row in found.rounds if row.is_run]
        assert [(row.sparsity, row.num_kept, row.work_s) for row in own] == [("0.5", 2, None)]
        assert own[0].download is not None

    with_coordinator(tmp_path, body, prepare=prepare)


def test_a_wrong_token_fails_the_call(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(TOKEN)
    wrong.write_text(TOKEN[::-1])

    def body(address: str) -> None:
        good = steps_of(coordinator=address, join_token_file=right)
        assert good["call"].text.endswith("join token accepted")
        message = fails(steps_of(coordinator=address, join_token_file=wrong), "call")
        assert "the join token is not that of this coordinator" in message
        assert (
            "→ the administrator of the machine: name the file with this coordinator's token"
            in message
        )
        message = fails(steps_of(coordinator=address), "call")
        assert "asks for a join token" in message

    with_coordinator(tmp_path / "run", body, token=TOKEN)


def test_a_client_id_that_differs_from_the_certificate_fails(tmp_path: Path) -> None:
    certs = make(tmp_path / "certs", "ann")

    def body(address: str) -> None:
        files = {
            "coordinator": address, "tls_ca": str(certs / "ca.pem"),
            "tls_cert": certs / "ann.pem", "tls_key": certs / "ann-key.pem",
        }  # fmt: skip
        good = steps_of(client_id="ann", **files)
        assert good["call"].text.endswith("certificate accepted")
        assert good["bandwidth"].verdict is CheckVerdict.OK, "every message carries the client id"
        unnamed = steps_of(**files)
        assert unnamed["client id"].text == "ann, from its certificate"
        assert unnamed["admission"].text == "ann would be admitted"
        found = report_of(data="no name.npz", **files).steps
        assert fails({step.name: step for step in found.all}, "client id")
        assert [step.text for step in found.all if step.name == "admission"] == [
            "because client id failed"
        ]
        found = report_of(client_id="bob", **files).steps
        message = fails({step.name: step for step in found.all}, "call")
        assert "calls itself 'bob', but its certificate is for 'ann'" in message
        assert found.exit_code is ExitCode.REFUSED

    with_coordinator(tmp_path / "run", body, certs=certs)


def test_a_removed_client_is_for_the_operator(tmp_path: Path) -> None:
    async def prepare(coordinator: Coordinator) -> None:
        await coordinator.run.post(events.RemoveAsked(C1, readmit=False))

    def body(address: str) -> None:
        found = steps_of(coordinator=address, client_id="c1")
        message = fails(found, "admission")
        assert "c1 was removed from this run" in message
        assert "→ the coordinator's operator: revoke the removal if the site should" in message
        assert found["bandwidth"].verdict is CheckVerdict.OK, "independent steps still run"

    with_coordinator(tmp_path, body, prepare=prepare)


def test_a_run_that_was_stopped_before_its_first_round_promises_no_model(tmp_path: Path) -> None:
    async def prepare(coordinator: Coordinator) -> None:
        await coordinator.run.post(events.Signal.STOP)

    def body(address: str) -> None:
        message = steps_of(coordinator=address, client_id="ann")["admission"].text
        assert message.startswith(
            "ann would be admitted (the run was stopped before its first round"
        )

    with_coordinator(tmp_path, body, prepare=prepare)


def test_a_full_run_is_for_the_operator(tmp_path: Path) -> None:
    async def prepare(coordinator: Coordinator) -> None:
        await begin(coordinator, TOY)

    def body(address: str) -> None:
        message = fails(steps_of(coordinator=address, client_id="new"), "admission")
        assert "this run has 2 clients" in message
        assert "→ the coordinator's operator: raise --max-clients" in message
        assert steps_of(coordinator=address, client_id="ssfl-check")["call"].text.count("2 clients")

    with_coordinator(tmp_path, body, prepare=prepare, limits=Limits(max_clients=2))


def test_a_taken_client_id_fails_unless_this_client_owns_it(tmp_path: Path) -> None:
    async def prepare(coordinator: Coordinator) -> None:
        await coordinator.run.post(events.Joined(C1, bytes(16).hex(), 10, "", "cpu"))

    def body(address: str) -> None:
        state = tmp_path / "state"
        message = fails(steps_of(coordinator=address, client_id="c1", state_dir=state), "admission")
        assert "the name c1 belongs to the client that joined with it first" in message
        assert "`ssfl remove c1 --readmit`" in message
        assert "give the --state-dir of the client with this name" in message
        assert not state.exists(), "a check writes nothing"
        (state / "c1").mkdir(parents=True)
        (state / "c1" / "token").write_bytes(bytes(16))
        found = steps_of(coordinator=address, client_id="c1", state_dir=state)
        assert found["admission"].verdict is CheckVerdict.OK

    with_coordinator(tmp_path / "run", body, prepare=prepare)


@pytest.mark.parametrize(
    ("ahead_s", "secure", "verdict", "words"),
    [
        (10, False, CheckVerdict.OK, "10 s behind the coordinator's"),
        (100, False, CheckVerdict.WARNING, "100 s behind the coordinator's"),
        (-400, False, CheckVerdict.WARNING, "400 s ahead of the coordinator's"),
        (400, True, CheckVerdict.FAILED, "this clock is 400 s behind the coordinator's"),
    ],
)
def test_clock_differences_warn_and_with_tls_fail(
    tmp_path: Path, ahead_s: float, secure: bool, verdict: CheckVerdict, words: str
) -> None:
    certs = make(tmp_path / "certs", "ann") if secure else None

    def body(address: str) -> None:
        files: dict[str, Any] = {}
        if certs:
            files = {"tls_ca": str(certs / "ca.pem"), "tls_cert": certs / "ann.pem"}
            files["tls_key"] = certs / "ann-key.pem"
        found = steps_of(coordinator=address, client_id="ann", **files)
        assert (found["clock"].verdict, found["clock"].text) == (verdict, words)
        if verdict is not CheckVerdict.OK:
            assert found["clock"].remedy
            assert "set this machine's clock (NTP)" in found["clock"].remedy.action

    with_coordinator(tmp_path / "run", body, certs=certs, wall=lambda: time.time() + ahead_s)


def test_an_older_coordinator_is_reported_as_older() -> None:
    with grpc_server() as address:
        found = report_of(coordinator=address).steps
    message = fails({step.name: step for step in found.all}, "call")
    assert "a coordinator older than 0.1.0" in message
    assert "→ the coordinator's operator: upgrade the coordinator" in message
    assert found.exit_code is ExitCode.REFUSED


def test_the_admin_port_is_recognized() -> None:
    with grpc_server(admin=admin_pb2_grpc.AdminServiceServicer()) as address:
        assert "older than 0.1.0" in fails(steps_of(coordinator=address), "call"), (
            "it implements no call"
        )

    class Admin(admin_pb2_grpc.AdminServiceServicer):
        def GetStatus(self, _request: Any, _context: Any) -> admin_pb2.GetStatusResponse:
            return admin_pb2.GetStatusResponse()

    with grpc_server(admin=Admin()) as address:
        message = fails(steps_of(coordinator=address), "call")
    assert "this is the coordinator's admin port" in message
    assert (
        "→ the administrator of the machine: give the port for clients with --coordinator"
        in message
    )


class Pretended(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Answers questions with `answer`, echoes, and hangs up on noise."""

    def __init__(self, answer: pb.CheckAnswer) -> None:
        self.answer = answer

    def Check(
        self, requests: Iterator[pb.CheckRequest], _context: Any
    ) -> Iterator[pb.CheckResponse]:
        for request in requests:
            match request.WhichOneof("part"):
                case "question":
                    yield pb.CheckResponse(answer=self.answer)
                case "echo":
                    yield pb.CheckResponse(echo=pb.CheckEcho(unix_time_s=time.time()))
                case _:
                    return


def pretended(**answer: Any) -> dict[str, Any]:
    settings = settings_pb2.RunSettings(**asdict(RunSettings()))
    message = pb.CheckAnswer(
        **{"protocol_version": 1, "software": "0.1.0", "settings": settings, **answer}
    )
    with grpc_server(Pretended(message)) as address:
        return steps_of(coordinator=address)


def test_another_version_of_the_coordinator_is_a_warning() -> None:
    found = pretended(software="9.9.9")
    assert found["version"].verdict is CheckVerdict.WARNING
    assert found["version"].remedy.action == "install ssfl 9.9.9, as the coordinator has"


def test_an_older_protocol_of_the_coordinator_is_a_failure() -> None:
    assert "has protocol 0, this site 1" in fails(pretended(protocol_version=0), "version")


def test_settings_of_a_later_version_fail() -> None:
    later = replace(RunSettings(), model="transformer-of-2031")
    settings = settings_pb2.RunSettings(**asdict(later))
    found = pretended(settings=settings)
    assert found["settings"].verdict is CheckVerdict.FAILED
    assert "this version cannot use the run's settings" in found["settings"].text


def test_an_unreadable_model_of_the_run_fails_only_its_step() -> None:
    found = pretended(manifest=b"{}")
    assert found["run's model"].verdict is CheckVerdict.FAILED
    assert "the run's model cannot be read here: " in found["run's model"].text
    assert found["settings"].verdict is CheckVerdict.OK


def test_a_link_that_breaks_under_load_is_for_network_administrators() -> None:
    found = pretended()
    assert found["bandwidth"].verdict is CheckVerdict.FAILED
    assert "a transfer failed: " in found["bandwidth"].text
    assert found["bandwidth"].remedy.owner == "network administrators"


def test_bandwidth_is_that_of_a_slow_link_not_of_its_buffers(tmp_path: Path) -> None:
    bytes_per_s = 400_000

    def body(address: str) -> None:
        with Proxy(int(address.rpartition(":")[2])) as wire:
            wire.limit(bytes_per_s)  # a busy machine may be slower, but not faster
            found = report_of(coordinator=f"127.0.0.1:{wire.port}")
        assert found.session and found.session.link
        for rate in (found.session.link.up_bits_per_s, found.session.link.down_bits_per_s):
            assert 0 < rate < 2 * 8 * bytes_per_s

    with_coordinator(tmp_path, body)


def test_a_coordinator_busy_with_other_checks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "MEASURING", 0)

    def body(address: str) -> None:
        found = steps_of(coordinator=address)
        assert found["bandwidth"].verdict is CheckVerdict.WARNING
        assert found["bandwidth"].text.startswith("not measured: other sites are being checked")
        monkeypatch.setattr(preflight, "OPEN_CHECKS", 0)
        assert "→ you: try again in 1 s" in fails(steps_of(coordinator=address), "call")

    with_coordinator(tmp_path, body)
