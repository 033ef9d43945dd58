"""What a coordinator says of a client that has not joined: version, admission, clock, bandwidth."""

import re
from dataclasses import replace
from typing import Any

import grpc

from ssfl.client.access import Access
from ssfl.client.connection import open_channel, stub_for
from ssfl.client.errors import reason_of
from ssfl.datasets.wording import counted
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
from ssfl.tools.check.steps import Owner, Remedy, StepFailed, StepResult, Steps
from ssfl.tools.plan.link import Link
from ssfl.v1 import admin_pb2, admin_pb2_grpc
from ssfl.v1 import coordinator_pb2 as pb

SKEW_WARNS_S, SKEW_FAILS_S = 30.0, 300.0
CHECK_SINCE = "0.1.0"  # the first version whose coordinators know the call
ADMIN_TIMEOUT_S = 5.0  # to find out whether it is the admin port
FAST_BITS_PER_S = 1e10  # above this a measurement says little
_REMEDIES = {  # what a refusal asks for; docs/wire-format.md has all reasons
    "unauthenticated": Remedy(
        Owner.MACHINE,
        "give the file of this coordinator's token with --join-token-file; its operator has it",
    ),
    "wrong_name": Remedy(
        Owner.MACHINE,
        "give the certificate's name with --client-id, or take the certificate that is made out "
        "to this client",
    ),
    "removed": Remedy(
        Owner.OPERATOR,
        "take the removal back, if the site is to take part (ssfl remove SITE --readmit)",
    ),
    "client_id_taken": Remedy(
        Owner.MACHINE, "give the --state-dir of the client that has this name, or another name"
    ),
    "run_full": Remedy(
        Owner.OPERATOR,
        "make room for this site: a larger --max-clients or, as a --reproducible run has its "
        "clients for good, a new run with a larger --clients (--fresh)",
    ),
    "version_unsupported": Remedy(
        Owner.OPERATOR, "upgrade the coordinator, or tell this site which version to install"
    ),
    "too_many_samples": Remedy(
        Owner.OPERATOR, "raise --max-samples, or let claims be cut (--samples-over-max clip)"
    ),
}


def check_coordinator(
    steps: Steps, access: Access | None, question: Question
) -> "PreflightSession":
    """Ask the coordinator; what it told is None where it could not be asked.

    More can be asked until the talk is closed.
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
    """One client's conversation with a coordinator."""

    def __init__(self, access: Access | None, question: Question) -> None:
        self.told: CoordinatorReply | None = None
        self.link: Link | None = None
        self._access, self._question = access, question
        self._channel: grpc.Channel | None = None
        self._stub: Any = None

    @property
    def answer(self) -> pb.CheckAnswer | None:
        return self.told.answer if self.told else None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def ask(self) -> StepResult[None]:
        assert self._access is not None
        self._channel = open_channel(self._access.address, self._access.tls)
        self._stub = stub_for(self._channel, self._access.token)
        try:
            self.told = ask(self._stub, self._question)
        except grpc.RpcError as error:
            raise self._refused(error) from error
        answer = self.told.answer
        done, rounds = answer.rounds_done, answer.settings.rounds
        proved = ["certificate"] if self._access.tls and self._access.tls.pair else []
        proved += ["join token"] if self._access.token else []
        known = f", {' and '.join(proved)} accepted" if proved else ""
        return StepResult(
            None,
            f"run {answer.run_id}: {answer.phase}, {done} of {rounds} rounds, "
            f"{answer.num_clients} clients joined{known}",
        )

    def version(self) -> StepResult[None]:
        answer, ours = self._told.answer, ssfl_version()
        if answer.protocol_version < PROTOCOL_VERSION:
            raise StepFailed(
                f"the coordinator speaks protocol {answer.protocol_version}, this site "
                f"{PROTOCOL_VERSION}",
                Remedy(Owner.OPERATOR, f"upgrade the coordinator to ssfl {ours}"),
                ExitCode.REFUSED,
            )
        text = f"protocol {answer.protocol_version}, ssfl {answer.software}"
        if answer.software == ours:
            return StepResult(None, f"{text} at both ends")
        return StepResult(
            None,
            f"{text} there, {ours} here",
            Remedy(Owner.MACHINE, f"install ssfl {answer.software}, as the coordinator has"),
        )

    def admission(self) -> StepResult[None]:
        answer = self._told.answer
        _raise_refusal(answer)
        over = " (the run is over: it would get the final model)" if _is_over(answer) else ""
        if answer.phase == "stopped" and not answer.rounds_done:
            over = " (the run was stopped before its first round: nothing is learnt any more)"
        return StepResult(None, f"{self._question.client_id} would be let in{over}")

    def samples(self, num_samples: int) -> StepResult[None]:
        """Ask once more, now that the shard is read: would it be let in with so many samples?"""
        try:
            answer = answer_to(self._stub, replace(self._question, num_samples=num_samples))
        except grpc.RpcError as error:
            if reason_of(error) == "too_many_checks":
                return StepResult(
                    None, f"not asked: {_details(error)}", Remedy(Owner.YOU, "try again")
                )
            raise self._refused(error) from error
        _raise_refusal(answer)
        run, text = answer.settings, counted(num_samples, "training sample")
        if run.samples_over_max == "clip" and 0 < run.max_samples < num_samples:
            return StepResult(
                None, f"let in with {text}, to weigh as if it had {run.max_samples:,}"
            )
        return StepResult(None, f"let in with {text}")

    def clock(self) -> StepResult[None]:
        assert self._access is not None
        ahead_s = self._told.ahead_s
        if abs(ahead_s) < 1:
            return StepResult(None, f"agrees with the coordinator's ({abs(ahead_s):.2f} s apart)")
        text = f"{abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead of'} the coordinator's"
        if abs(ahead_s) <= SKEW_WARNS_S:
            return StepResult(None, text)
        remedy = Remedy(
            Owner.MACHINE,
            "set this machine's clock (NTP); if it is right, the coordinator's is not: tell "
            f"{Owner.OPERATOR}. Certificates depend on it",
        )
        if abs(ahead_s) > SKEW_FAILS_S and self._access.tls:
            raise StepFailed(f"this clock is {text}", remedy, ExitCode.REFUSED)
        return StepResult(None, text, remedy)

    def bandwidth(self) -> StepResult[None]:
        try:
            self.link = measure(self._stub, self._question, self._told.rtt_s)
        except grpc.RpcError as error:
            if reason_of(error) == "too_many_checks":
                again = "try again for a forecast of times"
                return StepResult(
                    None, f"not measured: {_details(error)}", Remedy(Owner.YOU, again)
                )
            raise StepFailed(
                f"a transfer did not come through: {_details(error)}",
                Remedy(
                    Owner.NETWORK,
                    "find out what cuts or stops the connection when some megabytes pass",
                ),
                ExitCode.UNREACHABLE,
            ) from error
        up, down = map(_rate, (self.link.up_bits_per_s, self.link.down_bits_per_s))
        return StepResult(None, f"{up} up, {down} down, round trip {1000 * self.link.rtt_s:.1f} ms")

    @property
    def _told(self) -> CoordinatorReply:
        assert self.told is not None
        return self.told

    def _refused(self, error: grpc.RpcError) -> StepFailed:
        """Return what is wrong if the question itself is not answered."""
        reason, text = reason_of(error), _details(error)
        if reason:
            code = ExitCode.UNREACHABLE if reason == "too_many_checks" else ExitCode.REFUSED
            return StepFailed(text, remedy_for(reason, text), code)
        if error.code() is grpc.StatusCode.UNIMPLEMENTED and self._is_admin_port():
            return StepFailed(
                "this is the coordinator's admin port, for its operator, not the one for clients",
                Remedy(
                    Owner.MACHINE,
                    "give the port for clients with --coordinator; the coordinator prints both at "
                    "its start",
                ),
                ExitCode.REFUSED,
            )
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return StepFailed(
                f"what answers does not know this call: a coordinator older than {CHECK_SINCE}, "
                "or another gRPC service",
                Remedy(Owner.OPERATOR, f"upgrade the coordinator to ssfl {ssfl_version()}"),
                ExitCode.REFUSED,
            )
        return StepFailed(
            f"the call did not come through: {text}",
            Remedy(
                Owner.NETWORK,
                "let gRPC (HTTP/2, long calls, trailers) pass: what stands in between takes the "
                "connection, but not the call",
            ),
            ExitCode.UNREACHABLE,
        )

    def _is_admin_port(self) -> bool:
        """Tell whether the far end knows what operators ask; whether it answers is all the same."""
        admin: Any = admin_pb2_grpc.AdminServiceStub(self._channel)
        try:
            admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=ADMIN_TIMEOUT_S)
        except grpc.RpcError as error:
            return bool(error.code() is not grpc.StatusCode.UNIMPLEMENTED)
        return True


def _raise_refusal(answer: pb.CheckAnswer) -> None:
    """Raise Wrong if a Join would be refused."""
    if answer.refusal_reason:
        remedy = remedy_for(answer.refusal_reason, answer.refusal)
        raise StepFailed(answer.refusal, remedy, ExitCode.REFUSED)


def remedy_for(reason: str, text: str) -> Remedy:
    """Return who is to do what about a refusal."""
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
