"""Bytes by purpose and the curve of a run, from a history written by hand."""

from typing import Any

from ssfl.study.costs import costs_of, curve_of, transfers_of, value_at


def rows(**sent: int) -> list[dict[str, Any]]:
    """Return ledger rows; `values_up=5` is 5 bytes of phase values, up."""
    return [
        {
            "phase": name.rpartition("_")[0],
            "direction": name.rpartition("_")[2],
            "payload_bytes": sent_bytes,
        }
        for name, sent_bytes in sent.items()
    ]


def entry(number: int, clients: int, **sent: int) -> dict[str, Any]:
    return {"round": number, "clients": [{}] * clients, "ledger": rows(**sent)}


ONCE = {"scores_up": 100, "mask_down": 10}
FIRST = {**ONCE, "values_up": 1000, "values_down": 2000}
LAST = {**FIRST, "values_up": 3000, "round_masks_up": 7, "evaluation_down": 500}
HISTORY: dict[str, Any] = {
    "rounds": [entry(0, 2, **FIRST), entry(1, 3, **LAST)],
    "evaluations": [
        {"rounds_done": 1, "pooled": 0.5, "mean": 0.4, "loss": 2.0,
         "ledger": rows(**FIRST, evaluation_down=500)},
        {"rounds_done": 2, "pooled": 0.6, "mean": 0.5, "loss": 1.0,
         "ledger": rows(**{**LAST, "evaluation_down": 900})},
    ],
    # The final model is sent as values, after the last round.
    "ledger": rows(**{**LAST, "evaluation_down": 900, "values_down": 2600}),
    "settings": {"clients": 10},
    "personal": None,
    "mask": {"num_kept": 1, "num_masked": 10},
    "gossip": {"relay_up": 5, "peers": 2.5, "topology": "random", "synchronous": True},
}  # fmt: skip


def test_tests_and_the_final_delivery_are_not_training_bytes() -> None:
    found = costs_of(HISTORY)
    assert found["bytes_rounds_up"] == 3000 and found["bytes_rounds_down"] == 2000
    assert found["bytes_masks_up"] == 7 and found["bytes_masks_down"] == 0
    assert found["bytes_first_masks"] == 110
    assert found["bytes_training"] == 3000 + 2000 + 7 + 110
    assert found["bytes_tests"] == 900 + 600
    total = sum(row["payload_bytes"] for row in HISTORY["ledger"])
    assert found["bytes_training"] + found["bytes_tests"] == total


def test_a_phase_of_a_later_version_belongs_to_the_rounds() -> None:
    history = {**HISTORY, "rounds": [entry(0, 1, values_up=5, news_up=2)]}
    assert costs_of(history)["bytes_rounds_up"] == 7


def test_a_point_of_the_curve_has_the_training_bytes_and_updates_before_it() -> None:
    assert curve_of(HISTORY) == [[1, 3110, 2, 0.5, 0.4, 2.0], [2, 5117, 5, 0.6, 0.5, 1.0]]


def test_transfers_are_those_of_a_mean_client_in_each_round() -> None:
    assert transfers_of(HISTORY) == [[500, 1005, 10], [669, 0, 0]]


def test_the_curve_is_read_at_the_newest_point_before_a_place() -> None:
    curve = curve_of(HISTORY)
    assert value_at(curve, "bytes", 3109, "pooled") is None
    assert value_at(curve, "bytes", 5116, "pooled") == 0.5
    assert value_at(curve, "bytes", 5117, "mean") == 0.5
    assert value_at(curve, "client_updates", 4, "mean") == 0.4


def test_what_was_not_counted_is_none_and_gossip_keeps_its_numbers() -> None:
    found = costs_of(HISTORY)
    assert found["local_steps"] is found["density_up"] is found["before_bytes"] is None
    assert found["density_tested"] == 0.1 and found["has_personal_models"] is False
    assert found["gossip"] == {"relay_up": 5, "peers": 2.5}
