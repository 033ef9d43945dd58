import json
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.server.run import facts
from ssfl.server.run.facts import Fact, from_json, to_json
from ssfl.strategies.contract import ClientId, Reducer, Work

C1, C2 = ClientId("c1"), ClientId("c2")
ONE_OF_EACH: list[Fact] = [
    facts.RunOpened("r1", {"rounds": 3, "sparsity": "0.9", "learning_rate": 0.1}, "0.1.0", "s"),
    facts.ClientJoined(
        C1, 3, "ab" * 16, 150, "cd" * 32, "torch 2.6, 1 thread", {"0": 75, "1": 75}, (1, 3), (0, 1)
    ),
    facts.ModelInitialized(C1, "m", "i", 1, "k", 500, "b", "warm-up"),
    facts.RunStarted((C1, C2)),
    facts.StepStarted(
        4, Work.SCORE, "saliency", 2, 1, {C1: 150, C2: 90},
        Reducer.WEIGHTED_SUM_BY_HOLDER, equal_weights=True, num_batches=50, reason="new labels: 8",
        goal=1, fraction_bits=30, task="move", counts_as_round=False,
    ),
    facts.ClientsAdded(4, {C2: 90}),
    facts.UploadAccepted(
        4, C1, "ef" * 32, 0.1, {"work_s": 1.5, "evaluation": {"total": 10}}, "ab" * 32,
        "cd" * 32, (0.5, 2.0),
    ),
    facts.StepClosed(4, (C1,), (C2,), (C2,)),
    facts.StepCommitted(
        4, 1, "k", 500, "b2", {"seconds": 2.5, "ledger": [{"phase": "values"}]}, "ef" * 32,
        "ab" * 32, "train",
    ),
    facts.StepVoided(4, "1 of at least 2 reported", (C2,)),
    facts.RefreshRequested(),
    facts.RunPaused(1.7e9),
    facts.RunResumed(),
    facts.StopRequested(),
    facts.RunFinished(stopped=True, reason="accuracy reached", report={"ledger_bytes": 9}),
    facts.ClientLeft(C2, finished=False),
    facts.ClientRemoved(C2),
    facts.ClientReadmitted(C2),
    facts.BytesCounted({"ledger": [{"phase": "values"}], "ledger_bytes": 120}),
]  # fmt: skip


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(fact) for fact in ONE_OF_EACH} == set(get_args(Fact))


def test_the_examples_set_every_field_to_a_non_default_value() -> None:
    """Otherwise a field missing from the journal would go unnoticed."""
    forgotten = [
        f"{type(fact).__name__}.{one.name}"
        for fact in ONE_OF_EACH
        for one in fields(fact)
        if getattr(fact, one.name) in (one.default, {})
    ]
    assert forgotten == []


@pytest.mark.parametrize("fact", ONE_OF_EACH, ids=lambda fact: type(fact).__name__)
def test_a_fact_survives_the_journal(fact: Fact) -> None:
    again = from_json(to_json(fact))
    assert again == fact
    assert type(again) is type(fact)


def test_sequences_and_work_have_their_types_after_a_round_trip() -> None:
    closed = from_json(to_json(facts.StepClosed(4, (C1,), ())))
    assert isinstance(closed, facts.StepClosed)
    assert closed.accepted == (C1,) and closed.missing == ()
    started = from_json(to_json(facts.StepStarted(1, Work.SCORE, "", 0, 0, {C1: 1})))
    assert isinstance(started, facts.StepStarted)
    assert started.work is Work.SCORE
    assert started.reducer is Reducer.WEIGHTED_SUM


def test_a_fact_is_readable_json() -> None:
    text = to_json(facts.StepVoided(4, "1 of at least 2 reported"))
    assert text == b'{"fact":"StepVoided","step":4,"reason":"1 of at least 2 reported","lost":[]}'


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_survives_the_journal_bit_for_bit(largest: float) -> None:
    again = from_json(to_json(facts.UploadAccepted(1, C1, "", largest)))
    assert isinstance(again, facts.UploadAccepted)
    assert again.largest.hex() == largest.hex()


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\xff", b"[]", b"5", b"{}", b'{"fact":"Unheard"}', b'{"fact":5}', b'{"fact":[]}',
        b'{"fact":"StepVoided","step":4}', b'{"fact":"StepVoided","step":4,"reason":"","x":1}',
        b'{"fact":"StepStarted","work":"dance"}', b'{"fact":"StepStarted","reducer":"best"}',
        b'{"fact":"RunStarted","clients":5}',
    ],
)  # fmt: skip
def test_a_record_that_is_not_a_fact_raises_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        from_json(text)


# As written by the previous version, which had no refresh.
OLD_RECORDS = [
    b'{"fact":"ClientJoined","client":"c1","session":1,"token":"t","num_samples":10,'
    b'"manifest_digest":"m","fingerprint":"cpu","class_counts":{},"encodings":[1,2]}',
    b'{"fact":"StepStarted","step":1,"work":"score","criterion":"saliency","round_number":0,'
    b'"attempt":0,"cohort":{"c1":10}}',
    b'{"fact":"StepCommitted","step":1,"mask_epoch":1,"mask_digest":"k","num_kept":5,'
    b'"base_digest":"b","report":{}}',
    b'{"fact":"RunFinished","stopped":false,"report":{}}',
]


def test_records_of_the_previous_version_are_read_with_defaults() -> None:
    joined, started, committed, finished = (from_json(record) for record in OLD_RECORDS)
    assert joined == facts.ClientJoined(C1, 1, "t", 10, "m", "cpu", {}, (1, 2), labels=())
    assert started == facts.StepStarted(
        1, Work.SCORE, "saliency", 0, 0, {C1: 10}, Reducer.WEIGHTED_SUM,
        equal_weights=False, num_batches=0, reason="",
    )  # fmt: skip
    assert committed == facts.StepCommitted(1, 1, "k", 5, "b", {}, scored_digest="")
    assert finished == facts.RunFinished(stopped=False, reason="", report={})


@given(st.binary(max_size=60))
def test_any_bytes_give_a_fact_or_a_value_error(text: bytes) -> None:
    try:
        fact = from_json(text)
    except ValueError:
        return
    assert json.loads(text)["fact"] == type(fact).__name__
