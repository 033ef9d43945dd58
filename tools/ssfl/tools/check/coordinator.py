"""Preflight questions to a coordinator: version, admission, clock, bandwidth."""

import re
from dataclasses import replace
from typing import Any

import grpc

from ssfl.client.config import Access
from ssfl.client.connection import open_channel, stub_for
from ssfl.client.errors import reason_of
from ssfl.datasets.wording import plural
from ssfl.program.exits import ExitCode
from ssfl.program.version import ssfl_version
from ssfl.tools.check.probe import PROTOCOL_VERSION, CoordinatorReply, Question, ask, measure
from ssfl.tools.check.steps import CheckResult, Owner, Remedy, StepFailed, Steps
from ssfl.tools.operate.admin_client import details_of
from ssfl.tools.plan.link import Link
from ssfl.v1 import admin_pb2, admin_pb2_grpc
from ssfl.v1 import coordinator_pb2 as pb

SKEW_WARNS_S, SKEW_FAILS_S = 30.0, 300.0
CHECK_SINCE = "0.1.0"  # the first version whose coordinators have the Check call
ADMIN_TIMEOUT_S = 5.0
FAST_BITS_PER_S = 1e10  # faster links are not measured exactly
_REMEDIES = {  # by the reason of a refusal; docs/wire-format.md lists all reasons
    "unauthenticated": Remedy(
        Owner.MACHINE,
        "name the file with this coordinator's token in --join-token-file; the operator has it",
    ),
    "wrong_name": Remedy(
        Owner.MACHINE,
        "give the certificate's name with --client-id, or use the certificate of this client",
    ),
    "removed": Remedy(
        Owner.OPERATOR,
        "revoke the removal if the site should take part (ssfl remove SITE --readmit)",
    ),
    "client_id_taken": Remedy(
        Owner.MACHINE, "give the --state-dir of the client with this name, or choose another name"
    ),
    "run_full": Remedy(
        Owner.OPERATOR,
        "raise --max-clients; a --reproducible run cannot add clients, so start a new one with "
        "more --clients (--fresh)",
    ),
    "version_unsupported": Remedy(
        Owner.OPERATOR, "upgrade the coordinator, or tell this site which version to install"
    ),
    "too_many_samples": Remedy(
        Owner.OPERATOR, "raise --max-samples, or clip the weight (--samples-over-max clip)"
    ),
}


class PreflightSession:
    """One client's Check calls to a coordinator; `reply` is None until it has answered."""

    def __init__(self, question: Question) -> None:
        self.reply: CoordinatorReply | None = None
        self.link: Link | None = None
        self._question = question
        self._channel: grpc.Channel | None = None
        self._stub: Any = None

    def check(self, steps: Steps, access: Access | None) -> None:
        """Ask the coordinator, and leave the channel open for further questions."""
        steps.run("call", lambda: self._ask(access), ["http/2"])
        steps.run("version", self._version, ["call"])
        steps.run("admission", self._admission, ["call", "client id"])
        steps.run("clock", lambda: self._clock(access), ["call"])
        steps.run("bandwidth", self._bandwidth, ["call"])

    @property
    def answer(self) -> pb.CheckAnswer:
        """The answer of a coordinator that was asked."""
        assert self.reply is not None
        return self.reply.answer

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _ask(self, access: Access | None) -> CheckResult:
        assert access is not None
        self._channel = open_channel(access.address, access.tls)
        self._stub = stub_for(self._channel, access.token)
        try:
            self.reply = ask(self._stub, self._question)
        except grpc.RpcError as error:
            raise self._refused(error) from error
        answer = self.answer
        proved = ["certificate"] if access.tls and access.tls.pair else []
        proved += ["join token"] if access.token else []
        known = f", {' and '.join(proved)} accepted" if proved else ""
        return CheckResult(
            f"run {answer.run_id}: {answer.phase}, {answer.rounds_done} of "
            f"{answer.settings.rounds} rounds, {answer.num_clients} clients joined{known}"
        )

    def _version(self) -> CheckResult:
        answer, ours = self.answer, ssfl_version()
        theirs = answer.protocol_version
        if theirs < PROTOCOL_VERSION:
            text = f"the coordinator has protocol {theirs}, this site {PROTOCOL_VERSION}"
            remedy = Remedy(Owner.OPERATOR, f"upgrade the coordinator to ssfl {ours}")
            raise StepFailed(text, remedy, ExitCode.REFUSED)
        text = f"protocol {theirs}, ssfl {answer.software}"
        if answer.software == ours:
            return CheckResult(f"{text} at both ends")
        return CheckResult(f"{text} there, {ours} here", same_version(answer))

    def _admission(self) -> CheckResult:
        answer, over = self.answer, ""
        _raise_refusal(answer)
        if answer.phase == "stopped" and not answer.rounds_done:
            over = " (the run was stopped before its first round and has no model)"
        elif answer.phase in ("finished", "stopped"):
            over = " (the run is over: it would get the final model)"
        return CheckResult(f"{self._question.client_id} would be admitted{over}")

    def samples(self, num_samples: int) -> CheckResult:
        """Ask again, now with the number of samples in the shard."""
        try:
            question = replace(self._question, num_samples=num_samples)
            answer = ask(self._stub, question, echoes=0).answer
        except grpc.RpcError as error:
            if reason_of(error) == "too_many_checks":
                remedy = Remedy(Owner.YOU, "try again")
                return CheckResult(f"not asked: {details_of(error)}", remedy)
            raise self._refused(error) from error
        _raise_refusal(answer)
        run, text = answer.settings, plural(num_samples, "training sample")
        if run.samples_over_max == "clip" and 0 < run.max_samples < num_samples:
            return CheckResult(f"admitted with {text}, weighted as {run.max_samples:,}")
        return CheckResult(f"admitted with {text}")

    def _clock(self, access: Access | None) -> CheckResult:
        assert access is not None and self.reply is not None
        ahead_s = self.reply.ahead_s
        if abs(ahead_s) < 1:
            return CheckResult(f"agrees with the coordinator's ({abs(ahead_s):.2f} s apart)")
        text = f"{abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead of'} the coordinator's"
        if abs(ahead_s) <= SKEW_WARNS_S:
            return CheckResult(text)
        remedy = Remedy(
            Owner.MACHINE,
            f"set this machine's clock (NTP); if it is right, ask {Owner.OPERATOR} to set the "
            "coordinator's. Certificates depend on it",
        )
        if abs(ahead_s) > SKEW_FAILS_S and access.tls:
            raise StepFailed(f"this clock is {text}", remedy, ExitCode.REFUSED)
        return CheckResult(text, remedy)

    def _bandwidth(self) -> CheckResult:
        assert self.reply is not None
        try:
            self.link = measure(self._stub, self._question, self.reply.rtt_s)
        except grpc.RpcError as error:
            if reason_of(error) == "too_many_checks":
                remedy = Remedy(Owner.YOU, "try again for a forecast of times")
                return CheckResult(f"not measured: {details_of(error)}", remedy)
            remedy = Remedy(
                Owner.NETWORK, "find out what cuts the connection after a few megabytes"
            )
            text = f"a transfer failed: {details_of(error)}"
            raise StepFailed(text, remedy, ExitCode.UNREACHABLE) from error
        up, down = map(_rate, (self.link.up_bits_per_s, self.link.down_bits_per_s))
        return CheckResult(f"{up} up, {down} down, round trip {1000 * self.link.rtt_s:.1f} ms")

    def _refused(self, error: grpc.RpcError) -> StepFailed:
        """Return the failure of a question that got no answer."""
        reason, text = reason_of(error), details_of(error)
        if reason:
            code = ExitCode.UNREACHABLE if reason == "too_many_checks" else ExitCode.REFUSED
            return StepFailed(text, _remedy_for(reason, text), code)
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            action = (
                "let gRPC pass (HTTP/2, long calls, trailers); a proxy or firewall accepts the "
                "connection but not the call"
            )
            remedy = Remedy(Owner.NETWORK, action)
            return StepFailed(f"the call failed: {text}", remedy, ExitCode.UNREACHABLE)
        if self._is_admin_port():
            text = "this is the coordinator's admin port, not the port for clients"
            action = (
                "give the port for clients with --coordinator; the coordinator prints both when it "
                "starts"
            )
            return StepFailed(text, Remedy(Owner.MACHINE, action), ExitCode.REFUSED)
        text = (
            f"the server does not know this call: it is a coordinator older than {CHECK_SINCE}, or "
            "another gRPC service"
        )
        remedy = Remedy(Owner.OPERATOR, f"upgrade the coordinator to ssfl {ssfl_version()}")
        return StepFailed(text, remedy, ExitCode.REFUSED)

    def _is_admin_port(self) -> bool:
        """Return True if the server has the admin service, even if it refuses the call."""
        admin: Any = admin_pb2_grpc.AdminServiceStub(self._channel)
        try:
            admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=ADMIN_TIMEOUT_S)
        except grpc.RpcError as error:
            return bool(error.code() is not grpc.StatusCode.UNIMPLEMENTED)
        return True


def same_version(answer: pb.CheckAnswer) -> Remedy:
    """Return the remedy for a version that differs from the coordinator's."""
    return Remedy(Owner.MACHINE, f"install ssfl {answer.software}, as the coordinator has")


def _raise_refusal(answer: pb.CheckAnswer) -> None:
    """Raise StepFailed if a Join would be refused."""
    if answer.refusal_reason:
        remedy = _remedy_for(answer.refusal_reason, answer.refusal)
        raise StepFailed(answer.refusal, remedy, ExitCode.REFUSED)


def _remedy_for(reason: str, text: str) -> Remedy:
    if reason == "too_many_checks":
        found = re.search(r"in (\d+) s", text)
        return Remedy(Owner.YOU, f"try again in {found[1] if found else 10} s")
    return _REMEDIES.get(reason, Remedy(Owner.OPERATOR, text))


def _rate(bits_per_s: float) -> str:
    if bits_per_s >= FAST_BITS_PER_S:
        return "over 10 Gbit/s"
    unit, factor = ("kbit/s", 1e3) if bits_per_s < 1e6 else ("Mbit/s", 1e6)
    if bits_per_s >= 1e9:
        unit, factor = "Gbit/s", 1e9
    number = bits_per_s / factor
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"
