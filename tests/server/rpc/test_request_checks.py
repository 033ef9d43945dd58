from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ssfl.method.errors import ManifestError
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.settings import RunSettings
from ssfl.server.errors import (
    ClientIdTaken,
    InvalidRequest,
    JoinAgain,
    ManifestMismatch,
    RunFull,
    SessionEnded,
    UnknownClient,
    VersionUnsupported,
)
from ssfl.server.rpc.request_checks import (
    MAX_CLASSES,
    MAX_ENCODINGS,
    MAX_SAMPLES,
    MAX_STEPS,
    check_caller,
    check_join,
    check_manifest,
    check_progress,
    check_ready,
    check_report,
)
from ssfl.server.rpc.session_numbers import KEY_BYTES, SessionNumbers
from ssfl.server.run.state import Member, RunState
from ssfl.strategies.contract import ClientId
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2, update_pb2

C1 = ClientId("c1")
TOKEN, OTHER_TOKEN = bytes(16), bytes([1] * 16)
EMPTY = RunState(RunSettings(), run_id="r1")
MEMBER = Member(C1, 3, TOKEN.hex(), 10, "", "f", replaced=(2,))
WITH_C1 = replace(EMPTY, members={C1: MEMBER})
NUMBERS = SessionNumbers(bytes(KEY_BYTES))


def join(**changes: Any) -> pb.JoinRequest:
    fields: dict[str, Any] = {
        "protocol_version": 1,
        "client_id": "c1",
        "token": TOKEN,
        "num_samples": 10,
        "encodings": [1, 2, 3, 4],
    }
    return pb.JoinRequest(**{**fields, **changes})


def check(
    state: RunState = EMPTY, *, alive: bool = False, name_proven: bool = False, **changes: Any
) -> ClientId:
    return check_join(join(**changes), state, alive=alive, name_proven=name_proven)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"client_id": "shard_07.a-B"},
        {"client_id": "0"},
        {"client_id": "x" * 64},
        {"num_samples": 1},
        {"num_samples": MAX_SAMPLES},
        {"manifest_digest": bytes(32)},
        {"class_counts": dict.fromkeys(range(MAX_CLASSES), 1)},
        {"labels": range(MAX_CLASSES)},
        {"class_counts": {0: MAX_SAMPLES}},
        {"fingerprint": "f" * 200, "software": "s" * 200},
    ],
)
def test_a_valid_request_may_join(changes: dict[str, Any]) -> None:
    assert check(**changes) == changes.get("client_id", "c1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol_version": 0}, "protocol_version is missing"),
        ({"client_id": ""}, "client id '' must be 1 to 64 letters"),
        ({"client_id": "x" * 65}, "must be 1 to 64 letters"),
        ({"client_id": "../etc"}, "must be 1 to 64 letters"),
        ({"client_id": ".hidden"}, "must be 1 to 64 letters"),
        ({"client_id": "a/b"}, "must be 1 to 64 letters"),
        ({"client_id": "a\n"}, "must be 1 to 64 letters"),
        ({"client_id": "ü"}, "must be 1 to 64 letters"),
        ({"client_id": "a*"}, "must be 1 to 64 letters"),
        ({"token": b""}, "a token has 16 bytes, not 0"),
        ({"token": bytes(17)}, "a token has 16 bytes, not 17"),
        ({"num_samples": 0}, "c1 has 0 training samples; 1 to 2147483648 are possible"),
        ({"num_samples": MAX_SAMPLES + 1}, "c1 has 2147483649 training samples"),
        ({"manifest_digest": bytes(31)}, "a manifest_digest of 31 bytes"),
        ({"fingerprint": "f" * 201}, "at most 200 characters"),
        ({"software": "s" * 201}, "at most 200 characters"),
        ({"encodings": [1, 3, 4, 77]}, "a client must read ENCODING_DENSE"),
        ({"class_counts": dict.fromkeys(range(MAX_CLASSES + 1), 1)}, "more than 10000 classes"),
        ({"labels": range(MAX_CLASSES + 1)}, "labels of more than 10000 classes"),
        ({"labels": [0, 2, 1]}, "labels must be ascending, each once"),
        ({"labels": [0, 1, 1]}, "labels must be ascending, each once"),
        ({"class_counts": {7: MAX_SAMPLES + 1}}, "a class count of 2147483649; at most"),
        ({"class_counts": {7: (1 << 64) - 1}}, "a class count of 18446744073709551615; at most"),
    ],
)
def test_an_invalid_join_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(**changes)
    assert message in str(caught.value)


def test_a_newer_protocol_is_refused_before_anything_else() -> None:
    with pytest.raises(VersionUnsupported):
        check(protocol_version=2, client_id="")


def test_a_wild_client_id_is_not_repeated_at_length() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(client_id="x" * 100_000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_a_name_belongs_to_its_token(*, alive: bool, left: bool) -> None:
    state = replace(EMPTY, members={C1: replace(MEMBER, left=left)})
    assert check(state, alive=alive) == C1
    with pytest.raises(ClientIdTaken, match="c1 belongs to the client that joined with it first"):
        check(state, alive=alive, token=OTHER_TOKEN)


def test_another_token_takes_a_readmitted_name() -> None:
    readmitted = replace(EMPTY, members={C1: replace(MEMBER, token="")})
    assert check(readmitted, alive=True, token=OTHER_TOKEN) == C1


def test_a_certificate_proves_a_name_unless_a_live_client_uses_it() -> None:
    proven = partial(check, name_proven=True, token=OTHER_TOKEN)
    with pytest.raises(ClientIdTaken, match="a client called c1 is already here: stop it first"):
        proven(WITH_C1, alive=True)
    assert proven(WITH_C1, alive=False) == C1
    left = replace(EMPTY, members={C1: replace(MEMBER, left=True)})
    assert proven(left, alive=True) == C1


def known(manifest: Manifest) -> RunState:
    return replace(EMPTY, manifest_digest=manifest.digest.hex(), described_by="c0")


def other(manifest: Manifest) -> Manifest:
    bias = TensorSpec("conv.bias", (3,), Role.DENSE, Init("zeros"))
    return Manifest((manifest.tensors[0], bias, *manifest.tensors[2:]), manifest.model)


def test_any_model_is_accepted_before_the_run_has_one(manifest: Manifest) -> None:
    check_manifest(join(manifest_digest=manifest.digest), EMPTY, None)


def test_a_client_that_has_not_built_its_model_yet_may_join(manifest: Manifest) -> None:
    check_manifest(join(), known(manifest), manifest)


def test_the_model_of_the_run_is_accepted(manifest: Manifest) -> None:
    check_manifest(join(manifest_digest=manifest.digest), known(manifest), manifest)


def test_a_client_with_another_model_sends_its_manifest_and_gets_the_differing_tensor(
    manifest: Manifest,
) -> None:
    theirs = other(manifest)
    request = join(manifest_digest=theirs.digest)
    with pytest.raises(JoinAgain, match="send its manifest to learn where"):
        check_manifest(request, known(manifest), manifest)
    request.manifest = theirs.json
    with pytest.raises(ManifestMismatch) as caught:
        check_manifest(request, known(manifest), manifest)
    assert str(caught.value) == (
        "c1 built another model: tensor 1: conv.bias (3, dense, starts zeros) "
        "instead of conv.bias (2, dense, starts zeros). The run has that of c0; "
        "if it is the wrong one, stop c0 and begin again with --fresh"
    )


def test_a_digest_that_differs_while_the_manifest_does_not_is_refused_too(
    manifest: Manifest,
) -> None:
    request = join(manifest_digest=bytes(32), manifest=manifest.json)
    with pytest.raises(ManifestMismatch, match="the manifests' digests"):
        check_manifest(request, known(manifest), manifest)


def test_an_invalid_manifest_is_refused(manifest: Manifest) -> None:
    request = join(manifest_digest=bytes(32), manifest=b"{}")
    with pytest.raises(ManifestError):
        check_manifest(request, known(manifest), manifest)


def test_a_caller_is_known_by_run_id_and_session() -> None:
    caller = pb.Caller(run_id="r1", client_id="c1", session=NUMBERS.number("r1", C1, 3))
    assert check_caller(caller, WITH_C1, NUMBERS) is MEMBER


def test_a_client_that_left_joins_again_before_any_other_call() -> None:
    left = replace(EMPTY, members={C1: replace(MEMBER, left=True)})
    caller = pb.Caller(run_id="r1", client_id="c1", session=NUMBERS.number("r1", C1, 3))
    with pytest.raises(JoinAgain, match="c1 has left run r1: join again"):
        check_caller(caller, left, NUMBERS)
    check_caller(caller, left, NUMBERS, may_have_left=True)


@pytest.mark.parametrize(
    ("caller", "refusal", "message"),
    [
        (("r0", "c1", 3), UnknownClient, "this is run r1, not 'r0': join it"),
        (("", "", 0), UnknownClient, "this is run r1, not ''"),
        (("r1", "c2", 3), UnknownClient, "'c2' has not joined run r1"),
        (("r1", "c1", 0), JoinAgain, "this is not a session of c1: join again"),
        (("r1", "c1", 3), JoinAgain, "this is not a session of c1: join again"),
        (("r1", "c1", 2**64 - 1), JoinAgain, "this is not a session of c1: join again"),
        (("r1", "c1", NUMBERS.number("r1", C1, 1)), JoinAgain, "not a session of c1"),
        (("r1", "c1", NUMBERS.number("r1", C1, 4)), JoinAgain, "not a session of c1"),
        (("r1", "c1", NUMBERS.number("r0", C1, 3)), JoinAgain, "not a session of c1"),
        (("r1", "c1", NUMBERS.number("r1", ClientId("c"), 13)), JoinAgain, "not a session of c1"),
        (("r1", "c1", NUMBERS.number("r1", C1, 2)), SessionEnded, "another process has joined as"),
    ],
)
def test_an_unknown_caller_gets_a_refusal_that_says_how_to_rejoin(
    caller: tuple[str, str, int], refusal: type[Exception], message: str
) -> None:
    run_id, client_id, session = caller
    request = pb.Caller(run_id=run_id, client_id=client_id, session=session)
    with pytest.raises(refusal, match=message):
        check_caller(request, WITH_C1, NUMBERS)


def test_a_member_works_only_with_the_runs_model() -> None:
    run = replace(EMPTY, manifest_digest="m")
    check_ready(replace(MEMBER, manifest_digest="m"), run)
    check_ready(replace(MEMBER, manifest_digest="m"), EMPTY)
    with pytest.raises(JoinAgain, match="join again with the digest of the manifest"):
        check_ready(MEMBER, run)
    with pytest.raises(JoinAgain, match="the run's model is known now"):
        check_ready(replace(MEMBER, manifest_digest="n"), run)


def test_reports_must_be_possible() -> None:
    good = update_pb2.Evaluation(correct=3, total=3, loss_sum=0.5)
    check_report(1.0, 0.0, evaluations=[good, update_pb2.Evaluation()])
    with pytest.raises(InvalidRequest, match="4 of 3 samples cannot be correct"):
        check_report(0.0, evaluations=[good, update_pb2.Evaluation(correct=4, total=3)])
    with pytest.raises(InvalidRequest, match="tested on 4294967296 samples"):
        check_report(0.0, evaluations=[update_pb2.Evaluation(total=1 << 32)])
    for name in ("", "my error", "x" * 41, "größe"):
        with pytest.raises(InvalidRequest, match="a metric cannot be called"):
            check_report(0.0, evaluations=[update_pb2.Evaluation(metric_sums={name: 1.0})])
    with pytest.raises(InvalidRequest, match="17 metrics; at most 16 are allowed"):
        many = {str(number): 1.0 for number in range(17)}
        check_report(0.0, evaluations=[update_pb2.Evaluation(metric_sums=many)])
    for wrong in (float("nan"), float("inf"), -float("inf"), 1e300, -1e31):
        with pytest.raises(InvalidRequest, match="within"):
            check_report(1.0, wrong)
        with pytest.raises(InvalidRequest, match="cannot have taken"):
            check_report(wrong)
        with pytest.raises(InvalidRequest, match="within"):
            check_report(0.0, evaluations=[update_pb2.Evaluation(loss_sum=wrong)])
        with pytest.raises(InvalidRequest, match="within"):
            check_report(0.0, evaluations=[update_pb2.Evaluation(metric_sums={"a": wrong})])


def test_progress_beyond_any_task_is_refused() -> None:
    check_progress(MAX_STEPS, MAX_STEPS)
    for name, steps in (("steps_done", (MAX_STEPS + 1, 0)), ("steps_all", (0, (1 << 64) - 1))):
        with pytest.raises(InvalidRequest, match=f"{name} is {max(steps)}; at most"):
            check_progress(*steps)


def test_a_reproducible_run_takes_its_clients_and_no_more() -> None:
    settings = RunSettings(clients=1, min_clients=1, reproducible=True)
    full = replace(WITH_C1, settings=settings)
    assert check(full) == C1, "its own client may come again"
    with pytest.raises(RunFull, match="reproducible run has 1 clients"):
        check(full, client_id="c2")
    assert check(replace(full, finished=True), client_id="c2") == "c2", "to fetch the model"


def test_the_coordinators_own_name_is_not_for_clients() -> None:
    with pytest.raises(InvalidRequest, match="--client-id"):
        check(client_id="coordinator")


def test_a_join_with_unknown_encodings_is_accepted() -> None:
    most = [1, 2, 3, 4, *range(1000, 1000 + MAX_ENCODINGS - 4)]
    assert check(encodings=most) == C1
    with pytest.raises(InvalidRequest, match="a list of more than 64 encodings"):
        check(encodings=[*most, 5])


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_a_join_without_a_required_encoding_is_refused(missing: int) -> None:
    listed = [one for one in range(1, 11) if one != missing]
    with pytest.raises(InvalidRequest, match="a client must read ENCODING_") as caught:
        check(encodings=listed)
    assert str(caught.value).endswith(transfer_pb2.Encoding.Name(missing))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_coding_lost_must_be_possible(wrong: float) -> None:
    check_report(1.0, 0.5, 0.01)
    with pytest.raises(InvalidRequest):
        check_report(1.0, 0.5, wrong)
