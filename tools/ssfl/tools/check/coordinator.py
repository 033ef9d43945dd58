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
from ssfl.program.printable import printable
from ssfl.program.version import ssfl_version
from ssfl.tools.check.probe import (
    PROTOCOL_VERSION,
    CoordinatorReply,
    Question,
    answer_to,
    ask,
    measure,
)
from ssfl.tools.check.steps import CheckResult, Owner, Remedy, StepFailed, Steps
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
        "give the file with this coordinator's token with --join-token-file; the operator has it",
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


def check_coordinator(
    steps: Steps, access: Access | None, question: Question
) -> "PreflightSession":
    """Ask the coordinator, and return the session, open for further questions.

    Its `reply` is None if the coordinator could not be asked.
    """
    steps.part = "coordinator"
    session = PreflightSession(access, question)
    steps.run("call", session.ask, ["http/2"])
    steps.run("version", session.version, ["call"])
    steps.run("admission", session.admission, ["call", "client id"])
    steps.run("clock", session.clock, ["call"])
    steps.run("bandwidth", session.bandwidth, ["call"])
    return session


class PreflightSession:
    """One client's Check calls to a coordinator."""

    def __init__(self, access: Access | None, question: Question) -> None:
        self.reply: CoordinatorReply | None = None
        self.link: Link | None = None
        self._access, self._question = access, question
        self._channel: grpc.Channel | None = None
        self._stub: Any = None

    @property
    def answer(self) -> pb.CheckAnswer | None:
        return self.reply.answer if self.reply else None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def ask(self) -> CheckResult[None]:
        assert self._access is not None
        self._channel = open_channel(self._access.address, self._access.tls)
        self._stub = stub_for(self._channel, self._access.token)
        try:
            self.reply = ask(self._stub, self._question)
        except grpc.RpcError as error:
            raise self._refused(error) from error
        answer = self.reply.answer
        done, rounds = answer.rounds_done, answer.settings.rounds
        proved = ["certificate"] if self._access.tls and self._access.tls.pair else []
        proved += ["join token"] if self._access.token else []
        known = f", {' and '.join(proved)} accepted" if proved else ""
        return CheckResult(
            None,
            f"run {answer.run_id}: {answer.phase}, {done} of {rounds} rounds, "
            f"{answer.num_clients} clients joined{known}",
        )

    def version(self) -> CheckResult[None]:
        answer, ours = self._required_reply.answer, ssfl_version()
        if answer.protocol_version < PROTOCOL_VERSION:
            raise StepFailed(
                f"the coordinator has protocol {answer.protocol_version}, this site "
                f"{PROTOCOL_VERSION}",
                Remedy(Owner.OPERATOR, f"upgrade the coordinator to ssfl {ours}"),
                ExitCode.REFUSED,
            )
        text = f"protocol {answer.protocol_version}, ssfl {answer.software}"
        if answer.software == ours:
            return CheckResult(None, f"{text} at both ends")
        return CheckResult(
            None,
            f"{text} there, {ours} here",
            Remedy(Owner.MACHINE, f"install ssfl {answer.software}, as the coordinator has"),
        )

    def admission(self) -> CheckResult[None]:
        answer = self._required_reply.answer
        _raise_refusal(answer)
        over = " (the run is over: it would get the final model)" if _is_over(answer) else ""
        if answer.phase == "stopped" and not answer.rounds_done:
            over = " (the run was stopped before its first round and has no model)"
        return CheckResult(None, f"{self._question.client_id} would be admitted{over}")

    def samples(self, num_samples: int) -> CheckResult[None]:
        """Ask again, now with the number of samples in the shard."""
        try:
            answer = answer_to(self._stub, replace(self._question, num_samples=num_samples))
        except grpc.RpcError as error:
            if reason_of(error) == "too_many_checks":
                return CheckResult(
                    None, f"not asked: {_details(error)}", Remedy(Owner.YOU, "try again")
                )
            raise self._refused(error) from error
        _raise_refusal(answer)
        run, text = answer.settings, plural(num_samples, "training sample")
        if run.samples_over_max == "clip" and 0 < run.max_samples < num_samples:
            return CheckResult(None, f"admitted with {text}, weighted as {run.max_samples:,}")
        return CheckResult(None, f"admitted with {text}")

    def clock(self) -> CheckResult[None]:
        assert self._access is not None
        ahead_s = self._required_reply.ahead_s
        if abs(ahead_s) < 1:
            return CheckResult(None, f"agrees with the coordinator's ({abs(ahead_s):.2f} s apart)")
        text = f"{abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead of'} the coordinator's"
        if abs(ahead_s) <= SKEW_WARNS_S:
            return CheckResult(None, text)
        remedy = Remedy(
            Owner.MACHINE,
            f"set this machine's clock (NTP); if it is right, ask {Owner.OPERATOR} to set the "
            "coordinator's. Certificates depend on it",
        )
        if abs(ahead_s) > SKEW_FAILS_S and self._access.tls:
            raise StepFailed(f"this clock is {text}", remedy, ExitCode.REFUSED)
        return CheckResult(None, text, remedy)

    def bandwidth(self) -> CheckResult[None]:
        try:
            self.link = measure(self._stub, self._question, self._required_reply.rtt_s)
        except grpc.RpcError as error:
            if reason_of(error) == "too_many_checks":
                again = "try again for a forecast of times"
                return CheckResult(
                    None, f"not measured: {_details(error)}", Remedy(Owner.YOU, again)
                )
            raise StepFailed(
                f"a transfer failed: {_details(error)}",
                Remedy(Owner.NETWORK, "find out what cuts the connection after some megabytes"),
                ExitCode.UNREACHABLE,
            ) from error
        up, down = map(_rate, (self.link.up_bits_per_s, self.link.down_bits_per_s))
        return CheckResult(
            None, f"{up} up, {down} down, round trip {1000 * self.link.rtt_s:.1f} ms"
        )

    @property
    def _required_reply(self) -> CoordinatorReply:
        assert self.reply is not None
        return self.reply

    def _refused(self, error: grpc.RpcError) -> StepFailed:
        """Return the failure of a question that got no answer."""
        reason, text = reason_of(error), _details(error)
        if reason:
            code = ExitCode.UNREACHABLE if reason == "too_many_checks" else ExitCode.REFUSED
            return StepFailed(text, remedy_for(reason, text), code)
        if error.code() is grpc.StatusCode.UNIMPLEMENTED and self._is_admin_port():
            return StepFailed(
                "this is the coordinator's admin port, not the port for clients",
                Remedy(
                    Owner.MACHINE,
                    "give the port for clients with --coordinator; the coordinator prints both "
                    "when it starts",
                ),
                ExitCode.REFUSED,
            )
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return StepFailed(
                f"the server does not know this call: it is a coordinator older than "
                f"{CHECK_SINCE}, or another gRPC service",
                Remedy(Owner.OPERATOR, f"upgrade the coordinator to ssfl {ssfl_version()}"),
                ExitCode.REFUSED,
            )
        return StepFailed(
            f"the call failed: {text}",
            Remedy(
                Owner.NETWORK,
                "let gRPC pass (HTTP/2, long calls, trailers); a proxy or firewall accepts the "
                "connection but not the call",
            ),
            ExitCode.UNREACHABLE,
        )

    def _is_admin_port(self) -> bool:
        """Return True if the server has the admin service, even if it refuses the call."""
        admin: Any = admin_pb2_grpc.AdminServiceStub(self._channel)
        try:
            admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=ADMIN_TIMEOUT_S)
        except grpc.RpcError as error:
            return bool(error.code() is not grpc.StatusCode.UNIMPLEMENTED)
        return True


def _raise_refusal(answer: pb.CheckAnswer) -> None:
    """Raise StepFailed if a Join would be refused."""
    if answer.refusal_reason:
        remedy = remedy_for(answer.refusal_reason, answer.refusal)
        raise StepFailed(answer.refusal, remedy, ExitCode.REFUSED)


def remedy_for(reason: str, text: str) -> Remedy:
    """Return the remedy for a refusal."""
    if reason == "too_many_checks":
        found = re.search(r"in (\d+) s", text)
        return Remedy(Owner.YOU, f"try again in {found[1] if found else 10} s")
    return _REMEDIES.get(reason, Remedy(Owner.OPERATOR, text))


def _is_over(answer: pb.CheckAnswer) -> bool:
    return answer.phase in ("finished", "stopped")


def _details(error: grpc.RpcError) -> str:
    return printable(error.details() or error.code().name.lower())


def _rate(bits_per_s: float) -> str:
    if bits_per_s >= FAST_BITS_PER_S:
        return "over 10 Gbit/s"
    unit, factor = next(
        ((u, f) for u, f in (("Gbit/s", 1e9), ("Mbit/s", 1e6)) if bits_per_s >= f), ("kbit/s", 1e3)
    )
    number = bits_per_s / factor
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"
