"""Sample counts: weights, refusals and warnings."""

import logging
from dataclasses import replace

import pytest

from ssfl.method.settings import RunSettings
from ssfl.server.errors import TooManySamples
from ssfl.server.history.run_log import SampleCounts, warn_of_majority
from ssfl.server.run.state import Member, RunState, check_samples, weight_of
from ssfl.strategies.contract import ClientId

ANN, BOB, EVE = ClientId("ann"), ClientId("bob"), ClientId("eve")
PLAIN = RunSettings()
REFUSING = RunSettings(max_samples=100)
CLIPPING = RunSettings(max_samples=100, samples_over_max="clip")


def member(client: ClientId, num_samples: int) -> Member:
    return Member(client, 1, "t", num_samples, "m", "cpu")


def state_of(settings: RunSettings = PLAIN, **samples: int) -> RunState:
    members = {ClientId(name): member(ClientId(name), n) for name, n in samples.items()}
    return RunState(settings, members=members, manifest_digest="m", founders=(ANN,))


@pytest.mark.parametrize(
    ("settings", "claimed", "weight"),
    [
        (RunSettings(), 2**31, 2**31),
        (CLIPPING, 99, 99),
        (CLIPPING, 100, 100),
        (CLIPPING, 2**31, 100),
    ],
)
def test_a_clipped_client_weighs_what_the_run_allows(
    settings: RunSettings, claimed: int, weight: int
) -> None:
    check_samples(EVE, claimed, settings)
    assert weight_of(member(EVE, claimed), settings) == weight


def test_a_claim_beyond_the_limit_is_refused_naming_the_flag() -> None:
    check_samples(EVE, 100, REFUSING)
    with pytest.raises(TooManySamples, match=r"eve claims 101 .* at most 100 .*--max-samples"):
        check_samples(EVE, 101, REFUSING)


def test_a_client_with_more_than_half_of_all_samples_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "ssfl.run")
    assert warn_of_majority(state_of(ann=10, bob=10, eve=20)) is None
    assert (
        warn_of_majority(state_of(ann=10, eve=2000)) is None
    )  # of two clients, one nearly always has more
    assert warn_of_majority(state_of(CLIPPING, ann=60, bob=60, eve=2000)) is None
    assert caplog.records == []
    assert warn_of_majority(state_of(ann=10, bob=10, eve=21)) == EVE
    assert vars(caplog.records[0])["client"] == EVE


def test_each_warning_is_logged_once_per_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ssfl.run")
    counts, state = SampleCounts(), state_of(ann=10, bob=10, eve=5)
    counts.joined(EVE, None, state)
    counts.joined(ANN, member(ANN, 10), state)
    assert caplog.records == []
    for claimed in (5000, 6000, 7000):
        counts.joined(EVE, member(EVE, 5), state_of(ann=10, bob=10, eve=claimed))
    changed, most = caplog.records
    assert (vars(changed)["was"], vars(changed)["num_samples"]) == (5, 5000)
    assert "more than half" in most.message


def test_no_majority_is_logged_before_the_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ssfl.run")
    state = replace(state_of(ann=10, bob=10, eve=5000), founders=())
    SampleCounts().joined(EVE, None, state)
    assert caplog.records == []
