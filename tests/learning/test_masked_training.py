from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.evaluate import evaluate
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.masked_training import train_locally
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

SETTINGS = RunSettings(local_epochs=2, batch_size=16, momentum=0.9, weight_decay=0.01, seed=4)


def started(shard: Shard, name: str = "cnn") -> tuple[nn.Module, Manifest]:
    model = image_task.build_model(RunSettings(model=name), shard)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    return model, manifest


def random_mask(manifest: Manifest, share: float = 0.1) -> Mask:
    return Mask.from_bools(Stream(0, "mask").uniform(manifest.num_masked) < share)


def train(
    model: nn.Module, manifest: Manifest, mask: Mask, shard: Shard, settings: RunSettings
) -> float:
    return train_locally(model, manifest, mask, image_task, shard, settings, 3, "shard_00")


def test_a_mask_of_ones_is_plain_sgd_bit_for_bit(shard: Shard) -> None:
    model, manifest = started(shard)
    train(model, manifest, Mask.full(manifest.num_masked), shard, SETTINGS)

    plain, _ = started(shard)
    plain.train()
    optimizer = torch.optim.SGD(
        plain.parameters(), lr=0.1 * 0.998**3, momentum=0.9, weight_decay=0.01
    )
    for epoch in range(2):
        order = Stream(4, "batches", 3, "shard_00", epoch).permutation(50)
        for batch in np.split(order, [16, 32, 48]):
            x, y = torch.from_numpy(shard.train_x[batch]), torch.from_numpy(shard.train_y[batch])
            optimizer.zero_grad()
            functional.cross_entropy(plain(x), y).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(plain.parameters(), 10.0)
            optimizer.step()
    assert read_vector(model, manifest).tobytes() == read_vector(plain, manifest).tobytes()


def test_pruned_weights_are_exactly_zero_after_every_step(shard: Shard) -> None:
    model, manifest = started(shard)  # starts with every weight set, on and off the mask
    mask = random_mask(manifest)
    pruned = ~mask.bools()
    seen = []

    def look(done: int, total: int) -> None:
        vector = read_vector(model, manifest)
        assert not vector[: manifest.num_masked][pruned].any()
        assert vector[: manifest.num_masked][~pruned].all()
        seen.append((done, total))

    train_locally(model, manifest, mask, image_task, shard, SETTINGS, 0, "a", on_step=look)
    assert seen == [(step, 8) for step in range(1, 9)]


def test_masked_training_equals_the_slow_obvious_way(shard: Shard) -> None:
    """Zero the pruned weights and their gradients in every step."""
    model, manifest = started(shard)
    mask = random_mask(manifest)
    settings = replace(SETTINGS, clip_norm=0.05, local_epochs=1)
    train(model, manifest, mask, shard, settings)

    slow, _ = started(shard)
    kept = [torch.from_numpy(mask.bools()[place]) for _, place in manifest.masked()]
    weights = [p for name, p in slow.named_parameters() if name.endswith("weight")]
    lr, velocity = 0.1 * 0.998**3, {p: torch.zeros_like(p) for p in slow.parameters()}
    with torch.no_grad():
        for p, k in zip(weights, kept, strict=True):
            p.masked_fill_(~k.reshape(p.shape), 0)
    for batch in np.split(Stream(4, "batches", 3, "shard_00", 0).permutation(50), [16, 32, 48]):
        slow.zero_grad()
        x, y = torch.from_numpy(shard.train_x[batch]), torch.from_numpy(shard.train_y[batch])
        functional.cross_entropy(slow(x), y).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            gradients = {p: p.grad for p in slow.parameters() if p.grad is not None}
            for p, k in zip(weights, kept, strict=True):
                gradients[p].masked_fill_(~k.reshape(p.shape), 0)
            norm = sum(float((g.double() ** 2).sum()) for g in gradients.values()) ** 0.5
            assert norm > 0.05  # so that clipping has an effect
            for p, g in gradients.items():
                velocity[p] = 0.9 * velocity[p] + g * (0.05 / norm) + 0.01 * p
                p.sub_(lr * velocity[p])
    fast, expected = (read_vector(m, manifest) for m in (model, slow))
    np.testing.assert_allclose(fast, expected, atol=1e-6)  # sums in another order


def test_the_same_names_give_the_same_bits_and_others_do_not(shard: Shard) -> None:
    def trained(round_number: int, client: str) -> bytes:
        model, manifest = started(shard)
        mask = random_mask(manifest)
        train_locally(
            model, manifest, mask, image_task, shard, SETTINGS, round_number, client, None
        )
        return read_vector(model, manifest).tobytes()

    assert trained(0, "a") == trained(0, "a")
    assert len({trained(0, "a"), trained(1, "a"), trained(0, "b")}) == 3


def test_dropout_is_reproducible(shard: Shard) -> None:
    def trained() -> bytes:
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4))
        manifest = manifest_of(model, {})
        write_vector(model, manifest, initial_vector(manifest, seed=0))
        train(model, manifest, Mask.full(manifest.num_masked), shard, SETTINGS)
        return read_vector(model, manifest).tobytes()

    assert trained() == trained()


def test_training_learns_and_reports(shard: Shard) -> None:
    model, manifest = started(shard)
    mask = random_mask(manifest, share=0.2)
    settings = RunSettings(local_epochs=12, batch_size=16)
    steps: list[tuple[int, int]] = []
    first = train_locally(
        model, manifest, mask, image_task, shard, settings, 0, "a",
        on_step=lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    second = train_locally(model, manifest, mask, image_task, shard, settings, 1, "a")
    assert steps == [(done, 12 * 4) for done in range(1, 12 * 4 + 1)]
    assert second < first
    tested = evaluate(model, image_task, shard)
    assert tested.correct is not None and tested.correct >= 18  # of 20 easy ones


def test_the_mean_loss_counts_every_sample_equally(shard: Shard) -> None:
    model, manifest = started(shard)
    write_vector(model, manifest, np.zeros(manifest.size, dtype=np.float32))
    still = RunSettings(learning_rate=1e-12, local_epochs=1)
    mean_loss = train(model, manifest, Mask.full(manifest.num_masked), shard, still)
    assert mean_loss == pytest.approx(np.log(4), rel=1e-6)  # all logits equal, four classes


def test_batch_statistics_are_updated_as_usual(shard: Shard) -> None:
    norm = nn.BatchNorm1d(8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), norm, nn.Linear(8, 4))
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    train(model, manifest, random_mask(manifest, 0.5), shard, SETTINGS)
    assert norm.num_batches_tracked is not None and int(norm.num_batches_tracked) == 8
    assert norm.running_mean is not None and norm.running_mean.all()


def test_frozen_and_unused_parameters_stay_as_they_are(shard: Shard) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.used, self.unused = nn.Linear(64, 8), nn.Linear(8, 4), nn.Linear(3, 3)
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(self.frozen(x.flatten(1)))
            return out

    model = Model()
    manifest = manifest_of(model, {})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model, manifest, Mask.full(manifest.num_masked), shard, SETTINGS)
    after = dict(model.named_parameters())
    unchanged = {name for name, p in before.items() if torch.equal(p, after[name])}
    assert unchanged == {"frozen.weight", "frozen.bias", "unused.weight", "unused.bias"}


def test_a_loss_that_is_not_finite_stops_with_the_round(shard: Shard) -> None:
    model, manifest = started(shard)
    wild = replace(SETTINGS, learning_rate=1e20, clip_norm=0.0)
    with pytest.raises(DivergedError, match=r"round 3: the loss is (nan|inf) in step \d") as caught:
        train(model, manifest, Mask.full(manifest.num_masked), shard, wild)
    assert caught.value.round_number == 3


def test_weights_that_are_not_finite_after_the_last_step_are_refused(shard: Shard) -> None:
    model, manifest = started(shard)
    one_wild_step = replace(SETTINGS, learning_rate=3e38, local_steps=1, weight_decay=10.0)
    with pytest.raises(DivergedError, match="a trained weight is not a finite number"):
        train(model, manifest, Mask.full(manifest.num_masked), shard, one_wild_step)


def test_no_gradients_are_left_behind_or_used_from_before(shard: Shard) -> None:
    trained = []
    for stale in (False, True):
        model, manifest = started(shard)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter) if stale else None
        train(model, manifest, random_mask(manifest), shard, SETTINGS)
        trained.append(read_vector(model, manifest).tobytes())
        assert all(parameter.grad is None for parameter in model.parameters())
    assert trained[0] == trained[1]


def test_a_mask_of_another_model_is_refused(shard: Shard) -> None:
    model, manifest = started(shard)
    with pytest.raises(ModelError, match="a mask of 5 weights for a model of"):
        train(model, manifest, Mask.full(5), shard, SETTINGS)
