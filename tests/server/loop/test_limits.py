"""How much of everything is taken: members, joins, values, connections."""

import resource

import pytest

from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ProgramError
from ssfl.server.errors import ModelUnusable, RunFull, TooManyJoins
from ssfl.server.loop import limits
from ssfl.server.loop.limits import (
    JOIN_EVERY_S,
    JOINS,
    NEW_CLIENTS,
    Joins,
    Limits,
    check_open_files,
    connections_that_fit,
)
from ssfl.server.run.state import Member, RunState
from ssfl.strategies.contract import ClientId

ANN, BOB = ClientId("ann"), ClientId("bob")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def state_of(*clients: ClientId) -> RunState:
    members = {one: Member(one, 1, "t", 10, "m", "cpu") for one in clients}
    return RunState(RunSettings(), members=members)


def test_a_full_run_refuses_new_clients_but_not_its_members() -> None:
    most = Limits(max_clients=2)
    most.check_room(BOB, state_of(ANN))
    most.check_room(BOB, state_of(ANN, BOB))
    most.check_room(BOB, state_of(ANN), {ANN})
    with pytest.raises(RunFull):  # they came at the same moment
        most.check_room(BOB, state_of(ANN), {ClientId("eve")})
    with pytest.raises(RunFull, match=r"2 clients, .* --max-clients"):
        most.check_room(ClientId("eve"), state_of(ANN, BOB))


def test_a_model_bomb_is_refused_by_its_description_alone() -> None:
    bomb = Manifest((TensorSpec("w", (1 << 15, 1 << 15), Role.MASKED, Init("zeros")),))
    with pytest.raises(ModelUnusable, match=r"1073741824 values; .* --max-model-values"):
        Limits().check_model(bomb)
    Limits(max_model_values=bomb.size).check_model(bomb)


@pytest.mark.parametrize(
    ("name", "size", "fits"),
    [("ResNet-50", 23_700_000, True), ("GPT-2", 125_000_000, True), ("bomb", 500_000_000, False)],
)
def test_by_default_real_models_fit_and_those_that_take_minutes_do_not(
    name: str, size: int, fits: bool
) -> None:
    manifest = Manifest((TensorSpec(name, (size,), Role.MASKED, Init("normal", 1.0)),))
    if fits:
        Limits().check_model(manifest)
    else:
        with pytest.raises(ModelUnusable, match="larger --max-model-values"):
            Limits().check_model(manifest)


def test_one_client_may_join_often_but_not_all_the_time() -> None:
    clock = Clock()
    joins, state = Joins(clock), state_of(ANN, BOB)
    for _ in range(JOINS):
        joins.check(ANN, state)
    with pytest.raises(TooManyJoins, match=rf"ann joins .* again in {JOIN_EVERY_S:.1f} s"):
        joins.check(ANN, state)
    joins.check(BOB, state)  # no other client is affected
    clock.now_s += JOIN_EVERY_S
    joins.check(ANN, state)
    with pytest.raises(TooManyJoins):
        joins.check(ANN, state)
    clock.now_s += 1000 * JOIN_EVERY_S
    for _ in range(JOINS):
        joins.check(ANN, state)
    with pytest.raises(TooManyJoins):
        joins.check(ANN, state)


def test_new_names_share_one_limit_and_leave_no_memory() -> None:
    joins, state = Joins(Clock()), state_of(ANN)
    for number in range(NEW_CLIENTS):
        joins.check(ClientId(f"c{number}"), state)
    with pytest.raises(TooManyJoins, match="new clients join"):
        joins.check(BOB, state)
    joins.check(ANN, state)  # who is in already is not held up
    assert set(joins._known) == {ANN}


def test_500_clients_may_join_at_the_same_moment() -> None:
    joins, state = Joins(Clock()), state_of()
    names = [ClientId(f"c{number}") for number in range(500)]
    for name in names:
        joins.check(name, state)
    for name in names:
        joins.check(name, state_of(*names))


def test_more_connections_than_open_files_are_not_promised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _which, limit: asked.append(limit))
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 4096))
    assert connections_that_fit(500) == 500 and not asked
    assert connections_that_fit(3000) == 3000
    assert asked == [(3000 + limits.OTHER_FILES, 4096)]
    assert not caplog.records
    assert connections_that_fit(100_000) == 4096 - limits.OTHER_FILES
    assert "ulimit -n" in caplog.text


def test_a_join_with_many_classes_counts_like_several() -> None:
    """They go into the journal; a client with ten thousand of them gets in all the same."""
    clock = Clock()
    joins, state = Joins(clock), state_of(ANN)
    joins.check(ANN, state, num_classes=20_000)
    with pytest.raises(TooManyJoins, match=r"again in 4\.0 s"):
        joins.check(ANN, state, num_classes=20_000)
    joins.check(ANN, state)
    clock.now_s += 6.0
    joins.check(ANN, state, num_classes=20_000)


def test_too_few_open_files_for_the_clients_are_refused_with_the_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed, asked = 2 + limits.OTHER_FILES, list[tuple[int, int]]()
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: asked.append(both))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, needed))
    check_open_files(2)
    assert asked == [(needed, needed)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(ProgramError, match=rf"2 clients need {needed} open files, .* allows 64"):
        check_open_files(2)
