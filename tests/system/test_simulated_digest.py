"""A simulated run has the digest and the history of the real one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssfl import api
from ssfl.api import RunHistory
from ssfl.api.simulation import run_settings
from ssfl.datasets.shards.shard_file import write_shard
from ssfl.learning.load_task import IMAGE, load_task
from ssfl.simulator.federation import SimulatedFederation
from system.federation import ROUNDS, RUN, FinishedRun, finish, run_federation
from system.programs import Programs

pytestmark = pytest.mark.system

# The settings of RUN as keywords.
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS, "local_steps": 2, "model": "mlp", "sparsity": "0.9", "seed": 7,
    "evaluate_every": 0, "scoring_batches": 1,
}  # fmt: skip


def check_same(
    real: FinishedRun, simulated: api.Simulated, counted: RunHistory | None = None
) -> None:
    """Compare model, history and payload bytes; `counted` has the bytes, if not `simulated`.

    Times and the messages that carry the tensors differ.
    """
    assert simulated.digest == real.digest
    mine, theirs = simulated.history, RunHistory.of(real.history)
    assert mine.digest == theirs.digest
    for name in ("rounds", "training_loss", "personal", "coding_error", "accuracy",
                 "mean_accuracy", "loss"):  # fmt: skip
        assert np.array_equal(getattr(mine, name), getattr(theirs, name), equal_nan=True), name
    assert not np.isnan(mine.accuracy).any()
    assert mine.initial_accuracy == theirs.initial_accuracy
    for name, column in theirs.clients.items():
        assert np.array_equal(mine.clients[name], column), name
    assert mine.layers.kept.tolist() == theirs.layers.kept.tolist()
    ours = (counted or mine).payloads
    for name in ("up", "down", "up_per_round", "down_per_round"):
        assert np.array_equal(getattr(ours, name), getattr(theirs.payloads, name)), name
    assert ours.one_off == theirs.payloads.one_off
    assert ours.total_up == theirs.payloads.total_up
    assert ours.total_down == theirs.payloads.total_down
    assert mine.settings == theirs.settings


def test_a_simulated_sparse_run_has_the_digest_of_the_real_one(
    shards: Path, undisturbed: FinishedRun
) -> None:
    simulated = api.simulate(api.read_shards(shards), **SETTINGS)
    check_same(undisturbed, simulated, counted_over_loopback(shards))
    folder = undisturbed.folder / "runs" / undisturbed.run_id
    kept = api.load_model(folder / "coordinator").state_dict()
    for name, tensor in simulated.model.state_dict().items():
        assert np.array_equal(tensor.numpy(), kept[name].numpy())


def counted_over_loopback(shards: Path) -> RunHistory:
    """Return the history of the same run, its values encoded as over loopback."""
    clients = api.read_shards(shards)
    federation = SimulatedFederation(
        load_task(IMAGE), clients, run_settings(SETTINGS, len(clients)), reference_coding=False
    )
    while federation.next_work is not None:
        federation.run_step()
    return RunHistory.of(federation.document())


def test_find_mask_returns_the_mask_of_the_real_run(shards: Path, undisturbed: FinishedRun) -> None:
    found = api.find_mask(api.read_shards(shards), **SETTINGS)
    assert found.mask.digest.hex() == undisturbed.history["mask"]["digest"]
    assert found.layers.kept.tolist() == RunHistory.of(undisturbed.history).layers.kept.tolist()


@pytest.mark.parametrize(
    ("flags", "more"),
    [
        ([], {}),
        (["--strategy=fedavg", "--momentum=0.5"], {"strategy": "fedavg", "momentum": 0.5}),
        (["--value-type=int8", "--scores=exact", "--evaluate-every=1", "--max-update-norm=0.3",
          "--max-samples=25", "--samples-over-max=clip"],
         {"value_type": "int8", "scores": "exact", "evaluate_every": 1, "max_update_norm": 0.3,
          "max_samples": 25, "samples_over_max": "clip"}),
        (["--refresh-every=1", "--scoring-batches=0", "--initialization=torch-default"],
         {"refresh_every": 1, "scoring_batches": 0, "initialization": "torch-default"}),
        (["--warmup-rounds=1", "--refresh-rounds=2", "--deactivated=reset", "--value-type=grid",
          "--score-weights=equal", "--update-weights=equal", "--local-schedule=cosine"],
         {"warmup_rounds": 1, "refresh_rounds": "2", "deactivated": "reset", "value_type": "grid",
          "score_weights": "equal", "update_weights": "equal", "local_schedule": "cosine"}),
        (["--criterion=client-random", "--sparsity=0.5", "--max-update-norm=0.05"],
         {"criterion": "client-random", "sparsity": 0.5, "max_update_norm": 0.05}),
        (["--criterion=client-random", "--sparsity=0.5", "--averaging=zeros",
          "--personalize-epochs=1"],
         {"criterion": "client-random", "sparsity": 0.5, "averaging": "zeros",
          "personalize_epochs": 1}),
        (["--criterion=grasp", "--sparsity-schedule=0:0.95,2:0.8", "--clip-norm=1"],
         {"criterion": "grasp", "sparsity_schedule": "0:0.95,2:0.8", "clip_norm": 1}),
        (["--criterion=synflow", "--layer-guard=0.02", "--personalize-epochs=1",
          "--augment=crop-flip", "--normalize=0.3/0.4", "--initialization=paper"],
         {"criterion": "synflow", "layer_guard": 0.02, "personalize_epochs": 1,
          "augment": "crop-flip", "normalize": "0.3/0.4", "initialization": "paper"}),
        (["--criterion=random", "--profile=released", "--rounds=3", "--client-fraction=0.7"],
         {"criterion": "random", "profile": "released", "client_fraction": 0.7}),
    ],
    ids=["reference coding", "fedavg", "int8 and exact scores", "a refresh every round",
         "warm-up and a refresh", "a mask for every client",
         "a mask for every client, fine-tuned", "grasp and a schedule", "synflow, crops and flips",
         "the released profile"],
)  # fmt: skip
def test_simulations_of_other_settings_have_the_digests_of_real_runs(
    sites: Programs, shards: Path, flags: list[str], more: dict[str, Any]
) -> None:
    real = run_federation(sites, "--reference-coding=on", *flags)
    rows = [row for entry in real.history["rounds"] for row in entry["clients"]]
    assert any("clipped" in row for row in rows) == ("max_update_norm" in more)
    check_same(real, api.simulate(api.read_shards(shards), **SETTINGS | more))
    check_framing(real, masks=len(real.history["masks"]))


# Options under which a run of three rounds does all that a strategy does.
STRATEGIES: dict[str, dict[str, Any]] = {
    "ditto": {"ditto.personal_epochs": 2},
    "fedprox": {},
    "fedopt": {"fedopt.optimizer": "adam"},
    "robust": {"robust.kind": "median"},
    "scaffold": {},
    "topk-weights": {},
    "topk-updates": {"topk-updates.share": 0.1},
    "feddst": {"feddst.every": 2, "feddst.alpha": 0.3, "feddst.until_round": 3},
    "flash-spdst": {},
    "flash-jmwst": {},
    "sub-fedavg": {},
    "sparsyfed": {},
    "fedpm": {"fedpm.reset_every": 2, "fedpm.keep_moments": True},
}


# Other branches of the server's halves. Krum and a trimmed mean need all three clients.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("topk-weights", {"topk-weights.averaging": "holders"}),
    ("topk-weights", {"topk-weights.averaging": "keep-old"}),
    ("fedopt", {"fedopt.optimizer": "yogi"}),
    ("fedopt", {"fedopt.optimizer": "adagrad"}),
    ("fedopt", {"fedopt.optimizer": "momentum"}),
    ("robust", {"robust.kind": "trimmed-mean", "robust.trim": 0.34}),
    ("robust", {"robust.kind": "krum", "robust.byzantine": 0, "robust.chosen": 2}),
]


@pytest.mark.parametrize(("strategy", "options"), VARIANTS, ids=str)
def test_a_variant_has_the_same_digest_in_simulator_and_service(
    sites: Programs, shards: Path, strategy: str, options: dict[str, Any]
) -> None:
    """Two rounds of one local step: the second begins with what the first left at the server."""
    flags = [f"--{name}={value}" for name, value in options.items()]
    more = {
        "strategy": strategy, "rounds": 2, "local_steps": 1, "min_clients": 3,
        "strategy_options": ",".join(f"{name}={value}" for name, value in options.items()),
    }  # fmt: skip
    real = run_federation(
        sites, "--reference-coding=on", f"--strategy={strategy}", "--rounds=2", "--local-steps=1",
        "--min-clients=3", *flags,
    )  # fmt: skip
    check_same(real, api.simulate(api.read_shards(shards), **SETTINGS | more))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_has_the_same_digest_in_simulator_and_service(
    sites: Programs, shards: Path, strategy: str
) -> None:
    options = STRATEGIES[strategy]
    flags = [f"--{name}={value}" for name, value in options.items()]
    more = {
        "strategy": strategy, "local_steps": 0, "local_epochs": 2,
        "strategy_options": ",".join(f"{name}={value}" for name, value in options.items()),
    }  # fmt: skip
    real = run_federation(
        sites, "--reference-coding=on", f"--strategy={strategy}", "--local-steps=0",
        "--local-epochs=2", *flags,
    )  # fmt: skip
    check_same(real, api.simulate(api.read_shards(shards), **SETTINGS | more))
    check_framing(real)


def check_framing(real: FinishedRun, masks: int = 1) -> None:
    """Check that messages exceed their tensors by at most 1 % and 200 bytes for each message.

    A transfer has at least two messages: its header and a chunk. `masks` travel in a transfer of
    their own.
    """
    rounds = real.history["rounds"]
    updates = sum(len(entry["clients"]) for entry in rounds)
    down = updates + masks * real.history["settings"]["clients"]
    for direction, transfers in (("up", updates), ("down", down)):
        rows = [
            row for row in real.history["ledger"]
            if row["phase"] in ("mask", "values", "round_masks") and row["direction"] == direction
        ]  # fmt: skip
        tensors, messages = (
            sum(row[name] for row in rows) for name in ("payload_bytes", "message_bytes")
        )
        assert tensors < messages <= 1.01 * tensors + 200 * 2 * transfers, direction


@pytest.mark.parametrize(
    ("strategy", "value_type", "options"),
    [
        ("feddst", "int8", STRATEGIES["feddst"]),
        ("topk-weights", "grid", {}),
        ("topk-updates", "int8", {"topk-updates.share": 0.1}),
        ("topk-updates", "grid", {"topk-updates.share": 1.0}),
    ],
    ids=str,
)
def test_an_own_mask_with_lossy_values_has_the_same_digest_in_simulator_and_service(
    sites: Programs, shards: Path, strategy: str, value_type: str, options: dict[str, Any]
) -> None:
    flags = [f"--{name}={value}" for name, value in options.items()]
    more = {
        "strategy": strategy, "value_type": value_type, "local_steps": 0, "local_epochs": 2,
        "strategy_options": ",".join(f"{name}={value}" for name, value in options.items()),
    }  # fmt: skip
    real = run_federation(
        sites, "--reference-coding=on", f"--strategy={strategy}", f"--value-type={value_type}",
        "--local-steps=0", "--local-epochs=2", *flags,
    )  # fmt: skip
    check_same(real, api.simulate(api.read_shards(shards), **SETTINGS | more))


@pytest.mark.parametrize(
    ("flags", "more", "downloads"),
    [
        (["--value-type=grid", "--grid-bits=8"], {"value_type": "grid", "grid_bits": 8},
         {"grid", "reference"}),
        (["--value-type=int8", "--downloads=values"], {"value_type": "int8", "downloads": "values"},
         {"int8"}),
    ],
    ids=["changes on a grid", "values in int8"],
)  # fmt: skip
def test_a_lossy_simulation_of_two_sampled_clients_has_the_digest_of_the_real_run(
    programs: Programs, flags: list[str], more: dict[str, Any], downloads: set[str]
) -> None:
    """A client that sat out a round adds the residual of an earlier update.

    It has no base of the round before. If values are coded, it still gets nothing else.
    """
    shards = api.digits(clients=4, partition="dirichlet-unbalanced", seed=3)
    (programs.folder / "shards").mkdir()
    names = [f"shard_{number:02d}" for number in range(4)]
    for name, shard in zip(names, shards, strict=True):
        write_shard(programs.folder / "shards" / f"{name}.npz", shard)
    shared = [flag for flag in RUN if not flag.startswith("--clients=")]
    coordinator = programs.coordinator(
        *shared, "--clients=4", "--clients-per-round=2", "--reference-coding=on", *flags
    )
    real = finish(coordinator, [programs.client(name, coordinator) for name in names])
    assert sorted(RunHistory.of(real.history).clients["rounds"].tolist())[-1] > 1
    ledger = [row for row in real.history["ledger"] if row["payload_bytes"]]
    assert downloads == {
        row["encoding"] for row in ledger if (row["phase"], row["direction"]) == ("values", "down")
    }
    check_same(real, api.simulate(shards, **SETTINGS | {"clients_per_round": 2} | more))


def test_service_and_simulator_count_the_same_personal_models(programs: Programs) -> None:
    """Two of four clients train in the only round; both sides count them, from its uploads."""
    shards = api.digits(clients=4, seed=3)
    (programs.folder / "shards").mkdir()
    names = [f"shard_{number:02d}" for number in range(4)]
    for name, shard in zip(names, shards, strict=True):
        write_shard(programs.folder / "shards" / f"{name}.npz", shard)
    more: dict[str, Any] = {"strategy": "ditto", "clients_per_round": 2, "rounds": 1}
    shared = [flag for flag in RUN if not flag.startswith(("--clients=", "--rounds="))]
    coordinator = programs.coordinator(
        *shared, "--clients=4", "--clients-per-round=2", "--rounds=1", "--strategy=ditto"
    )
    real = finish(coordinator, [programs.client(name, coordinator) for name in names])
    federation = SimulatedFederation(
        load_task(IMAGE), dict(zip(names, shards, strict=True)), run_settings(SETTINGS | more, 4),
        reference_coding=False,
    )  # fmt: skip
    while federation.next_work is not None:
        federation.run_step()
    document = federation.document()
    assert document["model_digest"] == real.digest
    assert document["personal"] == real.history["personal"]
    remembering = [name for name, one in federation._clients.items() if "personal" in one.memory]
    having = [row["client"] for row in document["personal"]["clients"] if row["has_own_model"]]
    assert having == remembering
    assert document["personal"]["own_models"] == len(having) == 2
