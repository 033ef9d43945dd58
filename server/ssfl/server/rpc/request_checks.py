"""Validation of requests: form, version, membership, session."""

import hmac
import re
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.server.errors import (
    ClientIdTaken,
    InvalidRequest,
    JoinAgain,
    ManifestMismatch,
    Removed,
    RunFull,
    SessionEnded,
    StrategyMismatch,
    UnknownClient,
    VersionUnsupported,
)
from ssfl.server.rpc.session_numbers import SessionNumbers
from ssfl.server.run.state import Member, RunState, check_samples
from ssfl.strategies.contract import ClientId
from ssfl.strategies.registry import identity
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2, update_pb2

PROTOCOL_VERSION = 1
TOKEN_BYTES = 16
DIGEST_BYTES = 32
MAX_SAMPLES = 1 << 31
MAX_STEPS = 1 << 40  # minibatches of one task
MAX_TEXT = 200
MAX_CLASSES = 10_000
MAX_ENCODINGS = 64
MAX_NUMBER = 1e30  # bound for numbers that a client reports, so that sums stay finite
MUST_READ = {
    transfer_pb2.ENCODING_BITMASK_ZSTD,
    transfer_pb2.ENCODING_VALUES_ONLY,
    transfer_pb2.ENCODING_DENSE,
    transfer_pb2.ENCODING_BITMASK,
}
MAX_METRICS = 16
_METRIC = re.compile(r"[A-Za-z0-9._-]{1,40}")
_CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_join(
    request: pb.JoinRequest, state: RunState, *, alive: bool, name_proven: bool = False
) -> ClientId:
    """Return the client's id; raise a refusal if it may not join.

    `alive`: the current client of that name was heard from recently. `name_proven`: its
    connection's certificate carries the name.
    """
    if request.protocol_version > PROTOCOL_VERSION:
        raise VersionUnsupported(request.protocol_version, PROTOCOL_VERSION)
    if request.protocol_version < 1:
        raise InvalidRequest("protocol_version is missing")
    client = check_client_id(request.client_id)
    if client == "coordinator":
        raise InvalidRequest("the id coordinator is taken: choose another with --client-id")
    if len(request.token) != TOKEN_BYTES:
        raise InvalidRequest(f"a token has {TOKEN_BYTES} bytes, not {len(request.token)}")
    if len(request.manifest_digest) not in (0, DIGEST_BYTES):
        raise InvalidRequest(f"a manifest_digest of {len(request.manifest_digest)} bytes")
    check_num_samples(client, request.num_samples)
    check_samples(client, request.num_samples, state.settings)
    if len(request.fingerprint) > MAX_TEXT or len(request.software) > MAX_TEXT:
        raise InvalidRequest(f"fingerprint and software have at most {MAX_TEXT} characters")
    if missing := MUST_READ - set(request.encodings):
        names = ", ".join(sorted(transfer_pb2.Encoding.Name(one) for one in missing))
        raise InvalidRequest(f"a client must read {names}")
    if len(request.encodings) > MAX_ENCODINGS:
        raise InvalidRequest(f"a list of more than {MAX_ENCODINGS} encodings")
    for what, classes in (("class counts", request.class_counts), ("labels", request.labels)):
        if len(classes) > MAX_CLASSES:
            raise InvalidRequest(f"{what} of more than {MAX_CLASSES} classes")
    most = max(request.class_counts.values(), default=0)
    if most > MAX_SAMPLES:
        raise InvalidRequest(f"a class count of {most}; at most {MAX_SAMPLES} is possible")
    if any(label >= after for label, after in pairwise(request.labels)):
        raise InvalidRequest("labels must be ascending, each once")
    check_not_removed(client, state)
    member = state.members.get(client)
    # After a readmission no token owns the name.
    if member and member.token and not hmac.compare_digest(request.token.hex(), member.token):
        if not name_proven:
            raise taken(client)
        if alive and not member.left:
            raise ClientIdTaken(
                f"a client called {client} is already here: stop it first (a client that was "
                "killed frees its name after 30 s), or give this one another name with --client-id"
            )
    if client == "admin":
        raise InvalidRequest("the id admin is the operator's: choose another with --client-id")
    if member is None and _is_full(state) and not state.finished:
        raise RunFull(
            f"this reproducible run has {state.settings.clients} clients, and all have joined"
        )
    return client


def _is_full(state: RunState) -> bool:
    """Return True if a reproducible run has all its clients; permanent once it has begun."""
    if not state.settings.reproducible:
        return False
    here = [m for m in state.members.values() if not m.left and m.client not in state.removed]
    return bool(state.founders) or len(here) >= state.settings.clients


def check_client_id(name: str) -> ClientId:
    """Return a name as a client's id; raise InvalidRequest if it cannot be one."""
    if not _CLIENT_ID.fullmatch(name):
        raise InvalidRequest(
            f"client id {name[:MAX_TEXT]!r} must be 1 to 64 letters, digits, "
            "'.', '_' or '-': choose one with --client-id"
        )
    return ClientId(name)


def check_strategy(theirs: str, settings: RunSettings, *, knows_run: bool = False) -> None:
    """Raise StrategyMismatch if a client has another version of the run's strategy.

    A client that knows the run's settings and names no strategy is older than the field.
    """
    ours = identity(settings)
    if ours and not theirs and knows_run:
        raise StrategyMismatch(
            f"this run has {ours}, which this client's version does not know: install the "
            "coordinator's version"
        )
    if theirs and theirs != ours:
        raise StrategyMismatch(
            f"this run has the strategy {ours or settings.strategy}, and this client has "
            f"{theirs[:MAX_TEXT]!r}: give it the coordinator's file with --strategy, or install "
            "the same version"
        )


def check_num_samples(client: ClientId, num_samples: int) -> None:
    """Raise InvalidRequest for a sample count that no site can have."""
    if not 1 <= num_samples <= MAX_SAMPLES:
        raise InvalidRequest(
            f"{client} has {num_samples} training samples; 1 to {MAX_SAMPLES} are possible"
        )


def check_progress(steps_done: int, steps_all: int) -> None:
    """Raise InvalidRequest for numbers of minibatches that no task can have."""
    for name, steps in (("steps_done", steps_done), ("steps_all", steps_all)):
        if steps > MAX_STEPS:
            raise InvalidRequest(f"{name} is {steps}; at most {MAX_STEPS} is possible")


def check_not_removed(client: ClientId, state: RunState) -> None:
    """Raise Removed if an operator removed the site."""
    if client in state.removed:
        raise Removed(
            f"{client} was removed from this run by its operator: ask the operator for the reason"
        )


def taken(client: ClientId) -> ClientIdTaken:
    """Return the refusal of a name that another token owns."""
    return ClientIdTaken(
        f"the name {client} belongs to the client that joined with it first, and this one does not "
        "have that client's token: start it with the same --state-dir as before, or give it "
        "another name with --client-id. If the state directory is lost, ask the operator of the "
        f"coordinator to run `ssfl remove {client} --readmit`, then start it again"
    )


def check_manifest(request: pb.JoinRequest, state: RunState, manifest: Manifest | None) -> None:
    """Raise ManifestMismatch if the client built another model than the run's."""
    if manifest is None or not request.manifest_digest:
        return
    if request.manifest_digest.hex() == state.manifest_digest:
        return
    if not request.manifest:
        raise JoinAgain("the model differs from the run's: send its manifest to learn where")
    theirs = Manifest.from_json(request.manifest)
    difference = manifest.first_difference(theirs) or "the manifests' digests"
    author = state.described_by
    mend = "begin" if author.startswith("--init") else f"stop {author} and begin"
    raise ManifestMismatch(
        f"{request.client_id} built another model: {difference}. The run has that of {author}; "
        f"if it is the wrong one, {mend} again with --fresh"
    )


def check_caller(
    caller: pb.Caller, state: RunState, numbers: SessionNumbers, *, may_have_left: bool = False
) -> Member:
    """Return the calling member, or raise a refusal that says how to rejoin."""
    if caller.run_id != state.run_id:
        raise UnknownClient(
            f"this is run {state.run_id}, not {caller.run_id[:MAX_TEXT]!r}: join it"
        )
    member = state.members.get(ClientId(caller.client_id))
    if member is None:
        raise UnknownClient(f"{caller.client_id[:MAX_TEXT]!r} has not joined run {state.run_id}")
    check_not_removed(member.client, state)
    is_signed = partial(numbers.is_signed, caller.session, state.run_id, member.client)
    if not is_signed(member.session):
        if any(map(is_signed, member.replaced)):
            raise session_ended(member)
        raise JoinAgain(f"this is not a session of {member.client}: join again")
    if member.left and not may_have_left:
        raise JoinAgain(f"{member.client} has left run {state.run_id}: join again")
    return member


def session_ended(member: Member) -> SessionEnded:
    """Return the refusal of a session that a newer one has replaced."""
    return SessionEnded(f"another process has joined as {member.client} since: this one must stop")


def check_report(
    work_s: float, *numbers: float, evaluations: Sequence[update_pb2.Evaluation] = ()
) -> None:
    """Raise InvalidRequest unless the numbers that a client reports are plausible."""
    if not 0 <= work_s <= MAX_NUMBER:
        raise InvalidRequest(f"the work cannot have taken {work_s:g} s")
    for tested in evaluations:
        if tested.correct > tested.total:
            raise InvalidRequest(f"{tested.correct} of {tested.total} samples cannot be correct")
        if len(tested.metric_sums) > MAX_METRICS:
            raise InvalidRequest(
                f"{len(tested.metric_sums)} metrics; at most {MAX_METRICS} are allowed"
            )
        for name in tested.metric_sums:
            if not _METRIC.fullmatch(name):
                raise InvalidRequest(f"a metric cannot be called {name[:MAX_TEXT]!r}")
        if tested.total > MAX_SAMPLES:
            raise InvalidRequest(
                f"tested on {tested.total} samples; at most {MAX_SAMPLES} are allowed"
            )
        numbers += (tested.loss_sum, *tested.metric_sums.values())
    if not all(abs(number) <= MAX_NUMBER for number in numbers):  # False for NaN
        raise InvalidRequest(f"losses, metrics, errors and times must lie within ±{MAX_NUMBER:g}")


def check_ready(member: Member, state: RunState) -> None:
    """Raise JoinAgain unless the member built the run's model."""
    if not member.manifest_digest:
        raise JoinAgain("join again with the digest of the manifest you built")
    if state.manifest_digest and member.manifest_digest != state.manifest_digest:
        raise JoinAgain("the run's model is known now: join again to compare it with yours")
