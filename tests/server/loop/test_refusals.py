"""What was refused: counted in full, by bounded names, logged at most once a minute."""

import logging

import pytest

from ssfl.server.loop.refusals import EVERY_S, MAX_MEMBERS, MAX_STRANGERS, Refusals, speaker_of
from ssfl.v1 import admin_pb2
from ssfl.v1 import coordinator_pb2 as pb


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def row(client: str, reason: str, count: int) -> dict[str, object]:
    return {"client_id": client, "reason": reason, "count": count}


def test_refusals_are_counted_by_client_and_reason() -> None:
    refusals = Refusals(Clock(), lambda _name: True)
    for client, reason in (("b", "bad_values"), ("a", "no_progress"), ("b", "bad_values")):
        refusals.count(client, reason, "a sentence")
    assert refusals.rows() == [row("a", "no_progress", 1), row("b", "bad_values", 2)]


def test_a_flood_of_refusals_is_logged_once_a_minute_with_its_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    clock = Clock()
    refusals = Refusals(clock, lambda _name: True)
    for _ in range(1000):
        refusals.count("eve", "bad_values", "NaN in fc.weight", method="SendUpdate")
    (first,) = caplog.records
    assert "NaN in fc.weight" in first.message
    fields = vars(first)
    assert (fields["client"], fields["reason"], fields["method"]) == (
        "eve",
        "bad_values",
        "SendUpdate",
    )
    refusals.count("eve", "no_progress", "another reason is logged at once")
    refusals.count("bob", "bad_values", "and so is another client")
    assert len(caplog.records) == 3
    clock.now_s += EVERY_S
    refusals.count("eve", "bad_values", "NaN in fc.weight")
    assert vars(caplog.records[3])["times"] == 1000
    assert refusals.rows()[1] == row("eve", "bad_values", 1001)


def test_names_are_bounded_and_unknown_clients_do_not_displace_members() -> None:
    refusals = Refusals(Clock(), lambda name: name.startswith("member"))
    for number in range(1000):
        refusals.count(f"stranger-{number}", "unknown_client", "join first")
    for number in range(300):
        refusals.count(f"member-{number}", "bad_values", "NaN")
    rows = refusals.rows()
    names = {str(one["client_id"]) for one in rows}
    assert sum(name.startswith("stranger") for name in names) == MAX_STRANGERS
    assert sum(name.startswith("member") for name in names) == MAX_MEMBERS
    others = {one["reason"]: one["count"] for one in rows if one["client_id"] == "others"}
    assert others == {"unknown_client": 1000 - MAX_STRANGERS, "bad_values": 300 - MAX_MEMBERS}
    assert sum(int(str(one["count"])) for one in rows) == 1300


@pytest.mark.parametrize("name", ["", "../../x", "x" * 65, "a\nb", "ü"])
def test_a_refusal_with_an_invalid_name_is_counted_without_one(name: str) -> None:
    refusals = Refusals(Clock(), lambda _name: True)
    refusals.count(name, "invalid_request", "no")
    assert refusals.rows() == [row("unnamed", "invalid_request", 1)]


def test_the_client_of_a_request_is_its_caller_or_the_joining_client() -> None:
    assert speaker_of(pb.JoinRequest(client_id="ann")) == "ann"
    assert speaker_of(pb.ProgressRequest(caller=pb.Caller(client_id="bob"))) == "bob"
    assert speaker_of(pb.SendUpdateRequest(caller=pb.Caller(client_id="bob"))) == "bob"
    assert speaker_of(pb.SendUpdateRequest()) == ""
    assert speaker_of(admin_pb2.StopRunRequest()) == ""
    assert speaker_of(ValueError("no message at all")) == ""
