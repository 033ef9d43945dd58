"""A federation from Join to the final model, with real processes."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from system.federation import ROUNDS, RUN, SHARDS, FinishedRun, finish, run_federation
from system.programs import Programs

pytestmark = pytest.mark.system

MASKED = 64 * 200 + 200 * 200 + 200 * 10  # weights of the mlp on 8x8 digits
UNMASKED = 200 + 200 + 10  # its biases
KEPT = MASKED // 10  # at sparsity 0.9


def outputs(run: FinishedRun) -> dict[str, Path]:
    folder = run.folder / "runs" / run.run_id
    return {name: folder / name for name in ("coordinator", *SHARDS)}


def test_every_site_and_the_coordinator_hold_the_same_model(undisturbed: FinishedRun) -> None:
    for file in ("model.safetensors", "kept.safetensors", "mask.bin", "manifest.json"):
        contents = {
            place: (folder / file).read_bytes() for place, folder in outputs(undisturbed).items()
        }
        assert len(contents) == 4
        assert len(set(contents.values())) == 1, f"{file} differs"


def test_the_digest_in_the_history_is_that_of_the_kept_values(undisturbed: FinishedRun) -> None:
    kept = load_file(outputs(undisturbed)["shard_01"] / "kept.safetensors")
    assert kept["values"].dtype == np.float32
    assert hashlib.sha256(kept["values"].tobytes()).hexdigest() == undisturbed.digest


def test_the_mask_has_exactly_k_ones_and_the_model_is_zero_elsewhere(
    undisturbed: FinishedRun,
) -> None:
    folder = outputs(undisturbed)["coordinator"]
    kept = load_file(folder / "kept.safetensors")
    bits = np.unpackbits(kept["mask"], count=MASKED, bitorder="little")
    assert int(bits.sum()) == KEPT
    assert undisturbed.history["mask"]["num_kept"] == KEPT
    assert kept["values"].shape == (KEPT + UNMASKED,)
    model = load_file(folder / "model.safetensors")
    weights = np.concatenate([model[f"{layer}.weight"].reshape(-1) for layer in (1, 3, 5)])
    assert np.array_equal(weights[bits == 1], kept["values"][:KEPT])
    assert not weights[bits == 0].any()


def test_the_run_writes_a_report(undisturbed: FinishedRun) -> None:
    folder = outputs(undisturbed)["coordinator"]
    assert (folder / "report.html").read_text("utf-8").startswith("<!doctype html>")
    found = json.loads((folder / "report.json").read_text("utf-8"))
    assert found["verdict"]["word"] == "finished"
    assert found["model_digest"] == undisturbed.digest
    assert len(found["curve"]) == ROUNDS
    assert all(point["phases"] for point in found["curve"])
    assert sum(layer["kept"] for layer in found["layers"]) == KEPT
    updates = found["bytes"]["formulas"][0]
    assert updates["bytes"] == updates["kept_bytes"]  # loopback: plain float32
    assert found["bytes"]["up"]["ratio"] == (KEPT + UNMASKED) / (MASKED + UNMASKED)
    names = {row["client"]: row for row in found["clients"]}
    assert sorted(names) == sorted(SHARDS)
    assert all(row["reported"] == ROUNDS and row["up_bytes"] for row in names.values())


def test_an_update_is_four_bytes_a_value_and_at_most_512_more(undisturbed: FinishedRun) -> None:
    updates = ROUNDS * len(SHARDS)
    payload, message = sent_up(undisturbed, "values")
    assert payload == updates * 4 * (KEPT + UNMASKED)
    assert message - payload <= 512 * updates


def test_a_score_is_about_three_bits(undisturbed: FinishedRun) -> None:
    payload, message = sent_up(undisturbed, "scores")
    assert len(SHARDS) * MASKED * 2 / 8 < payload < len(SHARDS) * MASKED * 3.5 / 8
    assert message - payload <= 512 * len(SHARDS)


def sent_up(run: FinishedRun, phase: str) -> tuple[int, int]:
    """Return the payload and message bytes that clients sent for a phase."""
    rows = [r for r in run.history["ledger"] if (r["phase"], r["direction"]) == (phase, "up")]
    return sum(r["payload_bytes"] for r in rows), sum(r["message_bytes"] for r in rows)


def test_the_history_names_the_clients_that_voted_and_trained(undisturbed: FinishedRun) -> None:
    history = undisturbed.history
    assert [vote["client"] for vote in history["votes"]] == list(SHARDS)
    assert sum(vote["share"] for vote in history["votes"]) == pytest.approx(1)
    assert [entry["round"] for entry in history["rounds"]] == list(range(ROUNDS))
    for entry in history["rounds"]:
        assert [row["client"] for row in entry["clients"]] == list(SHARDS)
    (last,) = history["evaluations"]
    assert last["rounds_done"] == ROUNDS
    assert 0 <= last["pooled"] <= 1


def test_the_coordinator_process_never_loads_torch(sites: Programs) -> None:
    sites.forked = False
    coordinator = sites.coordinator(*RUN)
    loaded = Path(f"/proc/{coordinator.process.pid}/maps").read_text()
    assert "numpy" in loaded
    assert "torch" not in loaded


def test_clients_in_another_order_give_the_same_digest(
    sites: Programs, undisturbed: FinishedRun
) -> None:
    """Also with one worker and one upload slot, which changes the order of all waits."""
    coordinator = sites.coordinator(*RUN, "--workers=1", "--upload-slots=1")
    clients = []
    for shard in reversed(SHARDS):
        clients.append(sites.client(shard, coordinator))
        coordinator.waits_for(shard)
    (described,) = coordinator.facts("ModelInitialized")
    assert described["client"] == SHARDS[-1]
    assert finish(coordinator, clients).digest == undisturbed.digest


def test_more_workers_give_the_same_digest(sites: Programs, undisturbed: FinishedRun) -> None:
    assert run_federation(sites, "--workers=4", "--upload-slots=8").digest == undisturbed.digest
