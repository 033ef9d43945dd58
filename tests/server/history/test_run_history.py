from typing import Any

import pytest

from ssfl.server.history.run_history import History
from ssfl.server.run import facts
from ssfl.server.run.facts import Fact
from ssfl.server.run.quality import accuracies
from ssfl.strategies.contract import ClientId, Work

C1, C2, C3 = ClientId("c1"), ClientId("c2"), ClientId("c3")
COHORT = {C1: 10, C2: 30, C3: 60}


def evaluation(correct: int, total: int, loss_sum: float = 0.0) -> dict[str, Any]:
    return {"correct": correct, "total": total, "loss_sum": loss_sum}


def trained(step: int, client: ClientId, correct: int, personal: int, loss: float) -> Fact:
    report = {
        "training_loss": loss,
        "evaluation": evaluation(correct, 10, 5.0),
        "personal": evaluation(personal, 10, 2.0),
    }
    return facts.UploadAccepted(step, client, "d", 1.0, report)


def committed(step: int, **report: Any) -> Fact:
    return facts.StepCommitted(step, 1, "k", 5, "b", report)


def started(step: int, work: Work, rounds_done: int, attempt: int = 0) -> Fact:
    return facts.StepStarted(step, work, "", rounds_done, attempt, COHORT)


def history_of(*story: Fact) -> History:
    history = History()
    for fact in story:
        history.add(fact)
    return history


SCORING = (
    started(1, Work.SCORE, 0),
    facts.UploadAccepted(1, C2, "d", 1.0, {"work_s": 2.0}),
    facts.UploadAccepted(1, C1, "d", 1.0, {"work_s": 1.0}),
    facts.StepClosed(1, (C1, C2), (C3,)),
    committed(1, seconds=4.0, ledger=[{"phase": "scores"}]),
)
ROUND_0 = (
    started(2, Work.TRAIN, 0),
    trained(2, C1, correct=4, personal=6, loss=0.5),
    trained(2, C3, correct=8, personal=10, loss=1.5),
    facts.StepClosed(2, (C1, C3), (C2,)),
    committed(2, seconds=3.0, ledger=[{"phase": "values"}]),
)
EVALUATION = (
    started(3, Work.EVALUATE, 1),
    facts.UploadAccepted(3, C1, "", 0.0, {"evaluation": evaluation(9, 10, 1.0)}),
    facts.UploadAccepted(3, C2, "", 0.0, {"evaluation": evaluation(0, 30, 9.0)}),
    facts.StepClosed(3, (C1, C2), (C3,)),
    committed(3),
)


def test_votes_carry_their_share_of_the_data_and_absent_voters_are_listed() -> None:
    history = history_of(*SCORING)
    assert history.votes == [
        {"client": "c1", "num_samples": 10, "work_s": 1.0, "share": 0.25},
        {"client": "c2", "num_samples": 30, "work_s": 2.0, "share": 0.75},
    ]
    assert history.not_voted == ["c3"]


def test_excluded_scores_are_not_votes() -> None:
    history = history_of(*SCORING[:-1], committed(1, outliers=["c1"]))
    assert [(row["client"], row["share"]) for row in history.votes] == [("c2", 1.0)]
    assert history.not_voted == ["c1", "c3"]
    assert history.newest_mask["votes"] == {"c2": 1.0}


def test_a_round_has_losses_and_accuracies_of_its_base_and_of_personal_models() -> None:
    (entry,) = history_of(*SCORING, *ROUND_0).rounds
    assert (entry["round"], entry["attempt"], entry["rounds_done"]) == (0, 0, 0)
    assert entry["training_loss"] == 1.0
    assert (entry["pooled"], entry["mean"], entry["personal"]) == (12 / 20, (0.4 + 0.8) / 2, 0.8)
    assert entry["loss"] == 0.5
    assert entry["missing"] == ["c2"]
    assert [row["client"] for row in entry["clients"]] == ["c1", "c3"]
    assert (entry["seconds"], entry["ledger"]) == (3.0, [{"phase": "values"}])


def test_a_replacement_client_is_listed_with_its_samples() -> None:
    begun = facts.StepStarted(2, Work.TRAIN, "", 0, 0, {C1: 10})
    replaced = facts.ClientsAdded(2, {C3: 7})
    (entry,) = history_of(*SCORING, begun, replaced, *ROUND_0[1:]).rounds
    rows = [(row["client"], row["num_samples"]) for row in entry["clients"]]
    assert rows == [("c1", 10), ("c3", 7)]


def test_an_evaluation_pools_samples_and_averages_clients() -> None:
    (entry,) = history_of(*SCORING, *ROUND_0, *EVALUATION).evaluations
    assert entry["pooled"] == 9 / 40
    assert entry["mean"] == (0.9 + 0.0) / 2
    assert entry["loss"] == 10 / 40
    assert entry["missing"] == ["c3"]
    assert entry["rounds_done"] == 1


def test_every_agreed_mask_is_listed_with_its_reason_layers_and_votes() -> None:
    layers, renewed = {"w": {"kept": 5, "size": 9}}, {"reason": "new labels: 8", "added": 2}
    again = (
        facts.StepStarted(
            7, Work.SCORE, "saliency", 3, 0, {C1: 10}, num_batches=25, reason="new labels: 8"
        ),
        facts.UploadAccepted(7, C1, "d", 1.0, {}),
        facts.StepClosed(7, (C1,), ()),
        facts.StepCommitted(7, 2, "k2", 5, "b7", {"layers": layers, "renewed": renewed}),
    )
    history = history_of(*SCORING, *ROUND_0, *again)
    first, second = history.to_dict()["masks"]
    assert (first["epoch"], first["reason"], first["renewed"]) == (1, "", None)
    assert first["votes"] == {"c1": 0.25, "c2": 0.75}
    assert second == {
        "step": 7, "epoch": 2, "rounds_done": 3, "reason": "new labels: 8",
        "criterion": "saliency", "num_batches": 25, "num_kept": 5, "digest": "k2",
        "layers": layers, "renewed": renewed, "votes": {"c1": 1.0},
    }  # fmt: skip
    assert history.newest_mask == second
    assert history_of().newest_mask == {}


def test_a_mask_agreed_without_clients_has_no_votes() -> None:
    alone = facts.StepStarted(1, Work.SCORE, "random", 0, 0, {})
    history = history_of(alone, facts.StepClosed(1, (), ()), committed(1))
    assert (history.votes, history.masks[0]["votes"]) == ([], {})


def test_an_evaluation_has_validation_results_if_clients_report_them() -> None:
    reports: list[dict[str, Any]] = [
        {"evaluation": evaluation(9, 10, 1.0), "validation": evaluation(1, 4, 2.0)},
        {"evaluation": evaluation(0, 30, 9.0)},
    ]
    history = history_of(
        started(3, Work.EVALUATE, 1),
        *(
            facts.UploadAccepted(3, client, "", 0.0, report)
            for client, report in zip((C1, C2), reports, strict=True)
        ),
        facts.StepClosed(3, (C1, C2), ()),
        committed(3),
    )
    (entry,) = history.evaluations
    assert entry["pooled"] == 9 / 40
    assert entry["validation"]["pooled"] == 1 / 4
    assert history_of(*ROUND_0, *EVALUATION).evaluations[0]["validation"] is None


def test_personal_models_are_listed_with_the_global_model_and_their_data_sizes() -> None:
    def own(client: ClientId, correct: int, personal: int) -> Fact:
        report = {"evaluation": evaluation(correct, 10, 5.0), "personal": evaluation(personal, 10)}
        return facts.UploadAccepted(9, client, "", 0.0, report)

    history = history_of(
        started(9, Work.PERSONALIZE, 1),
        own(C3, 5, 9),
        own(C1, 3, 7),
        facts.StepClosed(9, (C1, C3), (C2,)),
        committed(9),
    )
    end = history.to_dict()["personal"]
    assert (end["global"]["mean"], end["personal"]["mean"]) == (0.4, 0.8)
    assert [(row["client"], row["num_samples"]) for row in end["clients"]] == [
        ("c1", 10), ("c3", 60),
    ]  # fmt: skip
    first = end["clients"][0]
    assert (first["global"], first["personal"], first["test_samples"]) == (0.3, 0.7, 10)
    assert history_of(*SCORING).to_dict()["personal"] is None


def test_only_clients_that_trained_in_a_counted_round_have_a_model_that_a_strategy_keeps() -> None:
    def own(client: ClientId, correct: int, personal: int) -> Fact:
        report = {"evaluation": evaluation(correct, 10, 5.0), "personal": evaluation(personal, 10)}
        return facts.UploadAccepted(9, client, "", 0.0, report)

    void = (started(8, Work.TRAIN, 1), trained(8, C2, 0, 0, 9.0), facts.StepVoided(8, "few"))
    tests = (started(9, Work.PERSONALIZE, 1), own(C1, 3, 7), own(C2, 1, 1), own(C3, 5, 9))
    history = history_of(*ROUND_0, *void, *tests, committed(9))
    end = history.to_dict(from_rounds=True)["personal"]
    assert (end["own_models"], len(end["clients"])) == (2, 3)
    assert (end["global"]["mean"], end["personal"]["mean"]) == (0.4, 0.8)
    assert [row["has_own_model"] for row in end["clients"]] == [True, False, True]
    assert (end["clients"][1]["global"], end["clients"][1]["personal"]) == (0.1, None)
    trained_at_the_end = history.to_dict()["personal"]
    assert (trained_at_the_end["own_models"], trained_at_the_end["clients"][1]["personal"]) == (
        3, 0.1,
    )  # fmt: skip
    without = history_of(*tests, committed(9)).to_dict(from_rounds=True)["personal"]
    assert (without["own_models"], without["personal"]["mean"]) == (0, None)


def test_an_evaluation_without_reports_has_no_results() -> None:
    history = history_of(started(3, Work.EVALUATE, 1), facts.StepClosed(3, (), (C1,)), committed(3))
    assert history.evaluations[0]["pooled"] is None
    assert history.newest == {}


def test_a_void_step_is_counted_and_its_uploads_are_dropped() -> None:
    void = (started(2, Work.TRAIN, 0), trained(2, C2, 0, 0, 9.0), facts.StepVoided(2, "few"))
    again = tuple(
        started(4, Work.TRAIN, 0, attempt=1) if fact is ROUND_0[0] else fact for fact in ROUND_0
    )
    history = history_of(*void, *again)
    assert history.num_void == 1
    (entry,) = history.rounds
    assert entry["attempt"] == 1
    assert [row["client"] for row in entry["clients"]] == ["c1", "c3"]


def test_the_ledger_is_the_newest_journalled_one() -> None:
    history = history_of(*SCORING, *ROUND_0, *EVALUATION)
    assert history.ledger == [{"phase": "values"}]
    assert history.evaluations[0]["ledger"] == [{"phase": "values"}]


def test_totals_and_ledger_length_come_from_the_same_fact() -> None:
    assert history_of(*SCORING).account == ([{"phase": "scores"}], 0)
    round_0 = (*ROUND_0[:-1], committed(2, ledger=[{"phase": "values"}], ledger_bytes=70))
    assert history_of(*SCORING, *round_0, *EVALUATION).account == ([{"phase": "values"}], 70)
    fetched = facts.BytesCounted({"ledger": [{"phase": "mask"}], "ledger_bytes": 90})
    history = history_of(*SCORING, *round_0, fetched)
    assert history.account == ([{"phase": "mask"}], 90)
    assert history.rounds[0]["ledger"] == [{"phase": "values"}]
    assert "ledger_bytes" not in history.to_dict()


def test_accuracy_is_of_the_newest_model_and_prefers_an_evaluation_by_all_clients() -> None:
    assert history_of().newest == {}
    assert history_of(*SCORING).newest == {}
    assert history_of(*ROUND_0).newest["pooled"] == 0.6
    assert history_of(*ROUND_0, *EVALUATION).newest["pooled"] == 9 / 40
    sampled = (
        started(5, Work.TRAIN, 1),
        trained(5, C1, correct=9, personal=9, loss=1.0),
        facts.StepClosed(5, (C1,), ()),
        committed(5),
    )
    assert history_of(*ROUND_0, *EVALUATION, *sampled).newest["pooled"] == 9 / 40


def round_of(seconds: float | None) -> tuple[Fact, ...]:
    return (*ROUND_0[:-1], committed(2, seconds=seconds))


def test_pace_is_the_median_of_recent_rounds() -> None:
    assert history_of(*SCORING).seconds_per_round is None
    assert history_of(*round_of(3.0), *round_of(1.0)).seconds_per_round == 2.0
    night = history_of(*round_of(1.0), *round_of(30_000.0), *round_of(None), *round_of(2.0))
    assert night.seconds_per_round == 2.0
    later = history_of(*(fact for n in range(60) for fact in round_of(1.0 if n < 40 else 5.0)))
    assert later.seconds_per_round == 5.0 and len(later.round_times) == 20


def test_pace_includes_the_share_of_tests_between_rounds() -> None:
    tested = (*EVALUATION[:-1], committed(3, seconds=8.0))
    assert history_of(*round_of(1.0), *round_of(1.0), *tested).seconds_per_round == 5.0


NOTHING: dict[str, object] = {"pooled": None, "mean": None, "loss": None, "metrics": {}}


def test_accuracies_by_hand() -> None:
    known = accuracies([evaluation(1, 2, 3.0), evaluation(9, 10, 6.0), evaluation(0, 0)])
    assert known == {"pooled": 10 / 12, "mean": (0.5 + 0.9) / 2, "loss": 9 / 12, "metrics": {}}
    assert accuracies([evaluation(0, 0)]) == NOTHING
    assert accuracies([]) == NOTHING


@pytest.mark.parametrize("length", range(len(SCORING + ROUND_0 + EVALUATION) + 1))
def test_any_prefix_of_the_facts_gives_a_history(length: int) -> None:
    history = history_of(*(SCORING + ROUND_0 + EVALUATION)[:length])
    assert set(history.to_dict()) == {
        *("votes", "not_voted", "densities", "masks", "rounds", "evaluations", "personal"),
        *("ledger", "num_void"),
    }


def test_metrics_are_pooled_over_clients_that_report_them() -> None:
    ann = {"correct": None, "total": 2, "loss_sum": 8.0, "metric_sums": {"error": 3.0}}
    ben = {"correct": None, "total": 6, "loss_sum": 0.0, "metric_sums": {"error": 1.0, "b": 6.0}}
    old = {"correct": 1, "total": 4, "loss_sum": 4.0}  # as journals held it before metrics
    assert accuracies([ann, ben]) == {
        "pooled": None, "mean": None, "loss": 1.0, "metrics": {"b": 1.0, "error": 0.5},
    }  # fmt: skip
    assert accuracies([ann, old]) == {
        "pooled": 0.25, "mean": 0.25, "loss": 2.0, "metrics": {"error": 1.5},
    }  # fmt: skip
