"""The counted work of simulated runs: steps, multiplications, densities, seconds of mask work."""

from typing import Any

import pytest

from ssfl.simulator.work import FLOPS
from ssfl.study.data import DataSpec
from ssfl.study.one_run import run_one
from ssfl.study.run_spec import RunSpec

DATA = DataSpec(clients=4, samples_per_client=40)
QUICK: dict[str, Any] = {
    "model": "mlp", "width": 4, "rounds": 2, "local_epochs": 2, "batch_size": 8,
    "clients_per_round": 2, "sparsity": "0.5", "evaluate_every": 1,
}  # fmt: skip


def history(mode: str = "exact", *, tests_apart: bool = True, **settings: Any) -> dict[str, Any]:
    return run_one(RunSpec("a", DATA, {**QUICK, **settings}, 0, mode, tests_apart=tests_apart))


def sent(document: dict[str, Any], *phases: str) -> int:
    rows = document["ledger"]
    return sum(row["payload_bytes"] for row in rows if row["phase"] in phases)


def samples(document: dict[str, Any]) -> int:
    """Return how many samples the clients of all rounds were trained on, in one epoch."""
    rows = [row for entry in document["rounds"] for row in entry["clients"]]
    return sum(row["num_samples"] for row in rows)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_dense_training_costs_six_operations_for_a_weight_and_sample(mode: str) -> None:
    document = history(mode, strategy="fedavg")
    work = document["work"]
    weights = document["mask"]["num_masked"]
    assert work["client_updates"] == 4
    steps = [-(-row["num_samples"] // 8) for one in document["rounds"] for row in one["clients"]]
    assert work["local_steps"] == 2 * sum(steps)
    expected = FLOPS * weights * 2 * samples(document)
    assert work["flops_executed"] == work["flops_sparse"] == pytest.approx(expected)
    assert work["density"] == {"up": 1.0, "down": 1.0}
    assert work["mask_seconds"] == 0 or mode == "exact"


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_sparse_training_counts_the_weights_of_the_mask(mode: str) -> None:
    document = history(mode)
    work, mask = document["work"], document["mask"]
    share = mask["num_kept"] / mask["num_masked"]
    assert work["density"] == {"up": share, "down": share}
    assert work["flops_sparse"] == pytest.approx(share * work["flops_executed"])
    assert work["mask_seconds"] > 0, "all clients score"
    before = work["before_first_round"]
    assert before["bytes"] == sent(document, "initial", "scores") > 0
    assert before["client_updates"] == 0 and before["seconds"] > 0


def test_both_models_of_ditto_are_counted() -> None:
    alone = history(strategy="fedavg")["work"]
    both = history(strategy="ditto", strategy_options="ditto.personal_epochs=2", criterion="none")
    assert both["work"]["local_steps"] == 2 * alone["local_steps"]
    assert both["work"]["client_updates"] == alone["client_updates"]


def test_the_first_stage_of_flash_comes_before_the_first_round() -> None:
    document = history(strategy="flash-spdst", strategy_options="flash-spdst.init_epochs=3")
    before = document["work"]["before_first_round"]
    assert before["client_updates"] == 2 and before["local_steps"] > 0
    first = document["rounds"][0]
    assert (first["round"], len(first["clients"])) == (0, 2)
    assert before["bytes"] > 0, "the masks of the clients"


def test_masks_without_values_have_no_density() -> None:
    work = history(strategy="fedpm")["work"]
    assert work["density"] == {"up": None, "down": 1.0}


def test_the_document_describes_the_served_mask() -> None:
    document = history(strategy="fedpm")
    assert document["mask"]["num_kept"] < document["mask"]["num_masked"]


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("strategy", ["ditto", "sub-fedavg"])
def test_a_client_that_was_never_sampled_has_no_model_that_the_method_keeps(
    mode: str, strategy: str
) -> None:
    document = history(mode, strategy=strategy, rounds=1)
    end, (only,) = document["personal"], document["rounds"]
    sampled = {row["client"] for row in only["clients"]}
    assert (end["own_models"], len(end["clients"])) == (len(sampled), 4) == (2, 4)
    for row in end["clients"]:
        assert row["has_own_model"] == (row["client"] in sampled)
        assert (row["personal"] is None) == (row["client"] not in sampled)
    own = [row["personal"] for row in end["clients"] if row["client"] in sampled]
    assert end["personal"]["mean"] == pytest.approx(sum(own) / 2)


def test_a_client_that_trains_the_final_model_has_one_of_its_own() -> None:
    end = history(personalize_epochs=1, rounds=1)["personal"]
    assert end["own_models"] == len(end["clients"]) == 4
    assert all(row["personal"] is not None for row in end["clients"])


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("strategy", ["ssfl", "scaffold", "ditto"])
def test_without_round_tests_only_evaluations_test_the_same_models(
    mode: str, strategy: str
) -> None:
    epochs = int(strategy != "ditto")  # its clients keep models of their own
    given: dict[str, Any] = {
        "strategy": strategy, "personalize_epochs": epochs, "evaluate_every": 2,
    }  # fmt: skip
    usual = history(mode, **given)
    without = run_one(RunSpec("a", DATA, {**QUICK, **given}, 0, mode, round_tests=False))
    assert usual["model_digest"] == without["model_digest"]

    def tests(document: dict[str, Any], name: str) -> list[Any]:
        return [[row["evaluation"] for row in one["clients"]] for one in document[name]]

    assert tests(usual, "evaluations") == tests(without, "evaluations") != []
    assert usual["personal"] == without["personal"]
    assert all(row["pooled"] is None for row in without["rounds"])
    assert all(row["pooled"] is not None for row in usual["rounds"])
    assert [row["training_loss"] for row in usual["rounds"]] == [
        row["training_loss"] for row in without["rounds"]
    ]


def test_with_tests_apart_rounds_send_what_they_send_without_tests() -> None:
    untested = history(evaluate_every=0)
    together, apart = history(tests_apart=False), history()
    assert together["model_digest"] == apart["model_digest"] == untested["model_digest"]

    def of_rounds(document: dict[str, Any]) -> list[Any]:
        rows = document["rounds"][-1]["ledger"]
        return [row for row in rows if row["phase"] != "evaluation"]

    assert of_rounds(apart) == of_rounds(untested) != of_rounds(together)
    assert sent(apart, "evaluation") >= sent(together, "evaluation")
