"""Stacked clients compared with the same clients one by one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.evaluate import evaluate
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.masked_training import personal_settings, train_locally
from ssfl.learning.stacked.clients import GROUP, Client, StackedClients, Vector
from ssfl.method.evaluation import Evaluation, LocalResult
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.method.training_rules import Correction, Pull, TrainingRule

SETTINGS = RunSettings(local_epochs=1, batch_size=8, seed=4)
SIZES = [(16, 9), (21, 70), (3, 0), (40, 5), (25, 20), (1, 1)]  # training and test samples


def images(number: int, num_train: int, num_test: int) -> Shard:
    """Return 8x8 images of four classes, each with a bright quarter; some labels are wrong."""
    stream, count = Stream(7, "stacked test", number), num_train + num_test
    y = (stream.uniform(count) * 4).astype(np.int64)
    x = stream.uniform(count * 64).astype(np.float32).reshape(count, 1, 8, 8)
    for sample, label in enumerate(y):
        row, column = 4 * (label // 2), 4 * (label % 2)
        x[sample, 0, row : row + 4, column : column + 4] += 0.5
    y = np.where(stream.uniform(count) < 0.2, (y + 1) % 4, y)
    cut = num_train
    return Shard(x[:cut], y[:cut], x[cut:], y[cut:], num_classes=4)


def many(sizes: Sequence[tuple[int, int]] = SIZES) -> list[Client]:
    return [(f"site-{i}", images(i, *size)) for i, size in enumerate(sizes)]


def started(
    name: str = "cnn-small", width: int = 0, normalize: str = "none"
) -> tuple[nn.Module, Manifest]:
    settings = RunSettings(model=name, width=width, normalize=normalize)
    shard = images(0, 1, 0)
    model = image_task.build_model(settings, shard)
    described = {"input_shape": list(shard.input_shape), "num_classes": shard.num_classes}
    return model, manifest_of(model, described)


def random_masks(manifest: Manifest, count: int, share: float = 0.3) -> list[Mask]:
    return [
        Mask.from_bools(Stream(i, "mask").uniform(manifest.num_masked) < share)
        for i in range(count)
    ]


def bases_of(manifest: Manifest, masks: Sequence[Mask]) -> list[Vector]:
    """Return a different initial model for each mask."""
    return [mask.gather(initial_vector(manifest, seed=i)) for i, mask in enumerate(masks)]


def one_by_one(
    model: nn.Module,
    manifest: Manifest,
    settings: RunSettings,
    clients: Sequence[Client],
    masks: Sequence[Mask],
    bases: Sequence[Vector],
    round_number: int,
    rules: Sequence[Sequence[TrainingRule]] | None = None,
) -> list[LocalResult]:
    results = []
    every = zip(clients, masks, bases, rules or [()] * len(clients), strict=True)
    for (client_id, shard), mask, base, own in every:
        write_vector(model, manifest, mask.scatter(base))
        before = evaluate(model, image_task, shard)
        mean_loss = train_locally(
            model, manifest, mask, image_task, shard, settings, round_number, client_id, None, own
        )
        after = evaluate(model, image_task, shard)
        values = mask.gather(read_vector(model, manifest))
        results.append(LocalResult(values, mean_loss, before, after))
    return results


def assert_alike(one: Evaluation, other: Evaluation) -> None:
    assert (one.correct, one.total, one.metric_sums) == (
        other.correct,
        other.total,
        other.metric_sums,
    )
    assert one.loss_sum == pytest.approx(other.loss_sum, rel=1e-4, abs=1e-5)


def assert_all_alike(
    stacked: list[LocalResult], exact: list[LocalResult], base: list[Vector]
) -> None:
    assert len(stacked) == len(exact) == len(base)
    for result, other, start in zip(stacked, exact, base, strict=True):
        assert np.abs(other.values - start).max() > 1e-3  # training has an effect
        np.testing.assert_allclose(result.values, other.values, atol=1e-5)
        assert result.training_loss == pytest.approx(other.training_loss, rel=1e-5)
        assert_alike(result.base, other.base)
        assert_alike(result.personal, other.personal)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"clip_norm": 0.0, "learning_rate": 0.05},
        {"clip_norm": 0.3, "momentum": 0.5},  # below the first gradients' norms
        {"local_steps": 4},
        {"local_steps": 7, "local_schedule": "cosine", "momentum": 0.9},
        {"local_epochs": 3, "local_schedule": "cosine", "weight_decay": 0.0},
        {"batch_size": 64},
        {"lr_schedule": "cosine", "lr_warmup_rounds": 5},
        {"lr_schedule": "step:2:0.5"},
        {"augment": "crop-flip", "local_epochs": 2},
        {"augment": "crop-flip", "normalize": "0.4/0.25", "momentum": 0.5},
    ],
)
def test_clients_of_many_sizes_and_masks_train_as_one_by_one(
    changes: dict[str, float | int | str],
) -> None:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    model, manifest = started(normalize=settings.normalize)
    clients = many()
    masks = random_masks(manifest, len(clients))
    bases = bases_of(manifest, masks)
    stacked = StackedClients(model, manifest, settings).train(clients, masks, bases, 3)
    exact = one_by_one(model, manifest, settings, clients, masks, bases, 3)
    assert_all_alike(stacked, exact, bases)


def rules_for(kind: str, manifest: Manifest, mask: Mask, number: int) -> list[TrainingRule]:
    """Return the rules of a client; some clients have others than the rest, or none."""
    size = mask.num_kept + manifest.num_unmasked
    first, second = (
        Stream(number, "rule", part).uniform(size).astype(np.float32) - 0.5 for part in range(2)
    )
    strength = 0.1 * (number + 1)
    two: list[TrainingRule] = [Pull(first, 0.2), Correction(first)]
    kinds: dict[str, list[TrainingRule]] = {
        "pull": [Pull(first, strength)],
        "pull in gradient": [Pull(first, strength, in_gradient=True)],
        "correction": [Correction(0.1 * first)],
        "all": [
            Pull(first, strength), Correction(0.1 * second), Pull(second, 0.2, in_gradient=True),
            Pull(second, 0.3), Pull(first, 0.1, in_gradient=True),
        ],
        "different": two[: number % 3],
    }  # fmt: skip
    return kinds[kind]


@pytest.mark.parametrize(
    "kind", ["pull", "pull in gradient", "correction", "all", "different"]
)  # fmt: skip
@pytest.mark.parametrize("changes", [{}, {"clip_norm": 0.3, "momentum": 0.9}])
def test_the_rules_of_a_strategy_apply_as_one_by_one(
    kind: str, changes: dict[str, float | int | str]
) -> None:
    settings = replace(SETTINGS, local_epochs=2, **changes)  # type: ignore[arg-type]
    model, manifest = started()
    clients = many()
    masks = random_masks(manifest, len(clients))
    bases = bases_of(manifest, masks)
    rules = [rules_for(kind, manifest, mask, number) for number, mask in enumerate(masks)]
    stacked = StackedClients(model, manifest, settings)
    results = stacked.train(clients, masks, bases, 1, rules)
    assert_all_alike(
        results, one_by_one(model, manifest, settings, clients, masks, bases, 1, rules), bases
    )
    plain = stacked.train(clients, masks, bases, 1)
    for own, result, other in zip(rules, results, plain, strict=True):
        moved = np.abs(result.values - other.values).max()
        assert (moved > 1e-3) == bool(own), "a rule has an effect"


class Residual(nn.Module):
    """A network whose own code adds, pools and flattens."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.block = nn.Sequential(
            nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=2)
        )
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = functional.avg_pool2d(x + self.block(x), 4)
        out: Tensor = self.last(x.flatten(1))
        return out


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual"])
def test_other_networks_train_as_one_by_one(name: str) -> None:
    if name == "residual":
        model: nn.Module = Residual()
        manifest = manifest_of(model, {})
    else:
        model, manifest = started(name, width=8)
    clients = many()
    masks = [Mask.full(manifest.num_masked)] * len(clients)
    bases = bases_of(manifest, masks)
    stacked = StackedClients(model, manifest, SETTINGS).train(clients, masks, bases, 0)
    exact = one_by_one(model, manifest, SETTINGS, clients, masks, bases, 0)
    assert_all_alike(stacked, exact, bases)


def test_more_clients_than_a_group_come_back_in_their_order() -> None:
    model, manifest = started("mlp", 8)
    clients = many([(4 + i * 5 % 13, 3) for i in range(2 * GROUP + 3)])
    masks = random_masks(manifest, len(clients), share=0.8)
    bases = bases_of(manifest, masks)
    stacked = StackedClients(model, manifest, SETTINGS).train(clients, masks, bases, 1)
    exact = one_by_one(model, manifest, SETTINGS, clients, masks, bases, 1)
    assert_all_alike(stacked, exact, bases)


def test_other_clients_in_a_group_do_not_change_a_result() -> None:
    model, manifest = started()
    clients = many()
    masks = random_masks(manifest, len(clients))
    bases = bases_of(manifest, masks)
    stacked = StackedClients(model, manifest, SETTINGS)
    together = stacked.train(clients, masks, bases, 0)
    alone = [
        stacked.train([client], [mask], [base], 0)[0]
        for client, mask, base in zip(clients, masks, bases, strict=True)
    ]
    assert_all_alike(together, alone, bases)


def test_the_same_seed_gives_the_same_bits_and_the_model_stays() -> None:
    model, manifest = started()
    before = read_vector(model, manifest)
    masks = random_masks(manifest, len(SIZES))
    bases = bases_of(manifest, masks)
    first, second = (
        StackedClients(model, manifest, SETTINGS).train(many(), masks, bases, 2) for _ in range(2)
    )
    for result, other in zip(first, second, strict=True):
        assert result.values.tobytes() == other.values.tobytes()
    np.testing.assert_array_equal(read_vector(model, manifest), before)


def test_one_global_model_is_tested_everywhere_as_one_by_one() -> None:
    model, manifest = started()
    [mask] = random_masks(manifest, 1)
    [values] = bases_of(manifest, [mask])
    shards = [images(i, 1, size) for i, size in enumerate([20, 0, 300, 1, 256])]
    tested = StackedClients(model, manifest, SETTINGS).evaluate(shards, mask, values)
    write_vector(model, manifest, mask.scatter(values))
    for result, shard in zip(tested, shards, strict=True):
        exact = evaluate(model, image_task, shard)
        assert (result.correct, result.total) == (exact.correct, exact.total)
        assert result.loss_sum == pytest.approx(exact.loss_sum, rel=1e-5)
    assert (tested[1].correct, tested[1].loss_sum) == (None, 0.0)


def test_only_validation_splits_that_exist_are_tested() -> None:
    model, manifest = started()
    [mask] = random_masks(manifest, 1)
    [values] = bases_of(manifest, [mask])
    whole = images(0, 1, 30)
    with_some = replace(whole, val_x=whole.test_x[:12], val_y=whole.test_y[:12])
    stacked = StackedClients(model, manifest, SETTINGS)
    nothing, some = stacked.validate([whole, with_some], mask, values)
    expected = replace(whole, test_x=whole.test_x[:12], test_y=whole.test_y[:12])
    assert nothing is None
    assert some == stacked.evaluate([expected], mask, values)[0]
    assert stacked.validate([whole], mask, values) == [None]


@pytest.mark.parametrize("rate", ["continue", "restart"])
def test_personal_models_are_trained_as_one_by_one(rate: str) -> None:
    settings = replace(
        SETTINGS, personalize_epochs=2, personalize_lr=rate, local_steps=1, lr_decay=0.7
    )
    model, manifest = started()
    clients = many()
    [mask] = random_masks(manifest, 1)
    [values] = bases_of(manifest, [mask])
    count = len(clients)
    stacked = StackedClients(model, manifest, settings).personalize(clients, mask, values, 5)
    exact = one_by_one(
        model, manifest, personal_settings(settings), clients, [mask] * count, [values] * count, 5
    )
    assert_all_alike(stacked, exact, [values] * count)


def test_float64_samples_become_float32() -> None:
    model, manifest = started()
    masks = random_masks(manifest, 1)
    bases = bases_of(manifest, masks)
    shard = images(0, 20, 10)
    wide = replace(
        shard, train_x=shard.train_x.astype(np.float64), test_x=shard.test_x.astype(np.float64)
    )
    stacked = StackedClients(model, manifest, SETTINGS)
    single, double = (stacked.train([("a", s)], masks, bases, 0)[0] for s in (shard, wide))
    assert single.values.tobytes() == double.values.tobytes()


def test_a_loss_that_is_not_finite_names_client_round_and_step() -> None:
    model, manifest = started()
    masks = [Mask.full(manifest.num_masked)] * 2
    bases = bases_of(manifest, masks)
    bases[0] = np.full_like(bases[0], np.nan)
    clients = many([(8, 4), (24, 4)])  # the one at fault has fewer steps
    with pytest.raises(
        DivergedError, match=r"round 3: client site-0: the loss is nan in step 1;"
    ) as caught:
        StackedClients(model, manifest, SETTINGS).train(clients, masks, bases, 3)
    assert caught.value.round_number == 3


def test_weights_that_are_not_finite_after_the_last_step_are_refused() -> None:
    model, manifest = started()
    wild = replace(SETTINGS, learning_rate=3e38, local_steps=1, weight_decay=10.0)
    masks = [Mask.full(manifest.num_masked)]
    with pytest.raises(DivergedError, match="client site-0: a trained weight is not a finite"):
        StackedClients(model, manifest, wild).train(many()[:1], masks, bases_of(manifest, masks), 0)


def test_a_mask_of_another_model_is_refused() -> None:
    model, manifest = started()
    with pytest.raises(ModelError, match="a mask of 5 weights for a model of"):
        StackedClients(model, manifest, SETTINGS).evaluate(
            [images(0, 1, 4)], Mask.full(5), np.zeros(manifest.size, dtype=np.float32)
        )
