"""A network with BatchNorm: running statistics are sent, counted and averaged."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from ssfl.datasets.shards.shard_file import read_shard
from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.device import prepare_torch
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.masked_training import train_locally
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest, Role
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from system.federation import SHARDS, finish
from system.programs import Programs

pytestmark = pytest.mark.system

Vector = npt.NDArray[np.float32]
CLIENTS = SHARDS[:2]  # 20 and 30 samples
ROUNDS = 2
SETTINGS = RunSettings(
    model="resnet20", norm="batch", width=4, local_epochs=1, batch_size=19, seed=7
)  # with batches of 19 the first client's last batch has one sample
FLAGS = (
    "--model=resnet20", "--norm=batch", "--width=4", "--local-epochs=1", "--batch-size=19",
    "--seed=7", f"--rounds={ROUNDS}", "--clients=2", "--reproducible", "--evaluate-every=0",
    "--reference-coding=off", "--exit-when-done",
)  # fmt: skip


def test_the_statistics_of_the_final_model_match_a_separate_computation(
    sites: Programs, shards: Path
) -> None:
    coordinator = sites.coordinator(*FLAGS)
    run = finish(coordinator, [sites.client(shard, coordinator) for shard in CLIENTS])
    folder = run.folder / "runs" / run.run_id / "coordinator"
    manifest = Manifest.from_json((folder / "manifest.json").read_bytes())
    kept = load_file(folder / "kept.safetensors")
    bits = np.unpackbits(kept["mask"], count=manifest.num_masked, bitorder="little")
    mask = Mask.from_bools(bits.astype(np.bool_))

    buffers = [tensor for tensor in manifest.tensors if tensor.role is Role.BUFFER]
    count = sum(tensor.size for tensor in buffers)
    assert count == 2 * (7 * 4 + 6 * 8 + 6 * 16), "mean and variance of 19 norms"
    values = mask.num_kept + manifest.num_unmasked
    assert kept["values"].shape == (values,)
    assert sent_up(run.history) == ROUNDS * len(CLIENTS) * 4 * values

    by_hand, own = federate(manifest, mask, shards)
    assert kept["values"].tobytes() == by_hand.tobytes()
    final = kept["values"][-count:]
    first, second = (own[client][-count:] for client in CLIENTS)
    apart = np.abs(first - second) > 1e-3
    assert apart.sum() > count / 2, "each client's data have their own"
    low, high = np.minimum(first, second), np.maximum(first, second)
    assert np.all((low < final) & (final < high), where=apart)
    model = load_file(folder / "model.safetensors")
    named = np.concatenate([model[tensor.name].reshape(-1) for tensor in buffers])
    assert named.tobytes() == final.tobytes()
    assert not any((model[t.name] == 1).any() for t in buffers if t.name.endswith("running_var"))


def sent_up(history: dict[str, Any]) -> int:
    """Return the payload bytes of all updates."""
    rows = [
        row for row in history["ledger"] if (row["phase"], row["direction"]) == ("values", "up")
    ]
    return sum(row["payload_bytes"] for row in rows)


def federate(manifest: Manifest, mask: Mask, shards: Path) -> tuple[Vector, dict[str, Vector]]:
    """Return the final values and each client's last update; means use exact fractions."""
    prepare_torch(1)
    data = {client: read_shard(shards / f"{client}.npz") for client in CLIENTS}
    model = image_task.build_model(SETTINGS, data[CLIENTS[0]])
    assert [tensor.name for tensor in manifest_of(model, {}).tensors] == [
        tensor.name for tensor in manifest.tensors
    ]
    base = mask.gather(initial_vector(manifest, SETTINGS.seed))
    sent: dict[str, Vector] = {}
    for round_number in range(ROUNDS):
        for client, shard in data.items():
            write_vector(model, manifest, mask.scatter(base))
            train_locally(model, manifest, mask, image_task, shard, SETTINGS, round_number, client)
            sent[client] = mask.gather(read_vector(model, manifest))
        base = weighted_mean([(sent[client], data[client].num_samples) for client in CLIENTS])
    return base, sent


def weighted_mean(uploads: list[tuple[Vector, int]]) -> Vector:
    """Return the weighted mean of values on a grid of 2^-36, in fractions, rounded once."""
    total = sum(weight for _, weight in uploads)
    means = [
        Fraction(sum(w * round(Fraction(float(v)) * 2**36) for v, w in column), total << 36)
        for column in zip(*([(v, w) for v in values] for values, w in uploads), strict=True)
    ]
    return np.array([nearest_float32(mean) for mean in means], dtype=np.float32)


def nearest_float32(exact: Fraction) -> np.float32:
    """Return the nearest float32; ties go to the even one."""
    near = np.float32(float(exact))
    around = [near, *(np.nextafter(near, np.float32(limit)) for limit in (-np.inf, np.inf))]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.int32)) & 1))
