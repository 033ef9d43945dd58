from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.batches import balanced_batch, scoring_batches
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.load_task import load_task
from ssfl.learning.saliency import saliency_scores, score_locally
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

TASK = load_task("image")


def started(name: str, shard: Shard) -> tuple[nn.Module, Manifest]:
    model = image_task.build_model(RunSettings(model=name), shard)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    return model, manifest


def obvious_scores(model: nn.Module, x: Tensor, y: Tensor) -> bytes:
    """Compute the formula in the obvious way, on a separate model."""
    model.eval()
    functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    scores = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert module.weight.grad is not None
            scores.append((module.weight.grad * module.weight).abs().flatten())
    return torch.cat(scores).detach().numpy().tobytes()


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18"])
def test_scores_equal_the_obvious_computation_bit_for_bit(name: str, shard: Shard) -> None:
    model, manifest = started(name, shard)
    x, y = torch.from_numpy(shard.train_x[:16]), torch.from_numpy(shard.train_y[:16])
    scores = saliency_scores(model, manifest, TASK, x, y)
    assert scores.shape == (manifest.num_masked,) and scores.dtype == np.float32
    assert scores.tobytes() == obvious_scores(started(name, shard)[0], x, y)


def test_a_linear_model_by_hand() -> None:
    """Two inputs, two classes: weights (1, -2) and (0, 3), x = (2, 1), label 0.

    Logits (0, 3); softmax (1, e^3) / (1 + e^3), so dL/dlogits = (-q, q) with
    q = e^3 / (1 + e^3) = 0.952574; dL/dW = ((-2q, -q), (2q, q)); times W: (2q, 2q, 0, 3q).
    """
    model = nn.Linear(2, 2, bias=False)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.array([1, -2, 0, 3], dtype=np.float32))
    scores = saliency_scores(model, manifest, TASK, torch.tensor([[2.0, 1.0]]), torch.tensor([0]))
    q = 0.9525741
    np.testing.assert_allclose(scores, [2 * q, 2 * q, 0, 3 * q], rtol=1e-6)  # float32 steps


def test_the_model_is_left_as_it_was(shard: Shard) -> None:
    first, last = nn.Linear(64, 8), nn.Linear(8, 4)
    model = nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(8), last)
    model[2].eval()  # a part in its own mode, as frozen norms are
    manifest = manifest_of(model, {})
    before = read_vector(model, manifest)
    first.weight.grad = torch.ones(8, 64)
    score_locally(model, manifest, TASK, shard, RunSettings(), "shard_00")
    assert read_vector(model, manifest).tobytes() == before.tobytes()
    assert [module.training for module in model] == [True, True, False, True]
    assert torch.equal(first.weight.grad, torch.ones(8, 64)) and last.weight.grad is None


def test_scores_are_taken_in_eval_mode(shard: Shard) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(64, 4))
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4))
    manifest = manifest_of(plain, {})
    scores = []
    for model in (plain, dropping):
        write_vector(model, manifest, initial_vector(manifest, seed=0))
        scores.append(score_locally(model, manifest, TASK, shard, RunSettings(), "a").tobytes())
    assert dropping.training and scores[0] == scores[1]


def test_unused_weights_score_zero_and_frozen_ones_have_no_score() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.used, self.unused = (nn.Linear(2, 2, bias=False) for _ in range(3))
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(self.frozen(x))
            return out

    model = Model()
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.ones(12, dtype=np.float32))
    with torch.no_grad():
        model.used.weight[0] = 2
        scores = saliency_scores(model, manifest, TASK, torch.ones(1, 2), torch.tensor([0]))
    assert (scores[:4] > 0).all() and not scores[4:].any() and scores.size == 8


def test_a_client_scores_one_balanced_batch_chosen_by_its_name(shard: Shard) -> None:
    model, manifest = started("mlp", shard)
    settings = RunSettings(batch_size=8)
    a, again, b = (
        score_locally(model, manifest, TASK, shard, settings, client) for client in "aab"
    )
    refreshed = score_locally(model, manifest, TASK, shard, settings, "a", mask_epoch=1)
    assert a.tobytes() == again.tobytes()
    assert a.tobytes() != b.tobytes() != refreshed.tobytes() != a.tobytes()


# -- several minibatches


def opposite_samples() -> Shard:
    """Return samples with gradients of either sign: one input, two classes.

    Even samples are 1, odd ones -1, all of class 0, so minibatches of one differ only in sign.
    """
    x = np.tile(np.array([[1.0], [-1.0]], dtype=np.float32), (50, 1))
    y = np.zeros(100, dtype=np.int64)
    return Shard(x, y, x[:0], y[:0], num_classes=2)


def test_the_score_of_several_minibatches_is_the_mean_of_their_magnitudes() -> None:
    """By hand: w = (1, -1), x = +1 or -1, label 0.

    Logits (x, -x); dL/dlogits = (p - 1, 1 - p) with p = softmax of class 0: 0.880797 for x = 1
    and 0.119203 for x = -1. dL/dw times w: (p - 1) x for both, of size 0.119203 and 0.880797.
    Of four minibatches n are x = -1 and m are x = 1. The mean of magnitudes is
    (0.880797 n + 0.119203 m) / 4; with signs until after the mean it would be less.
    """
    shard, settings = opposite_samples(), RunSettings(batch_size=1)
    model = nn.Linear(1, 2, bias=False)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.array([1, -1], dtype=np.float32))
    drawn = [
        float(shard.train_x[indices, 0][0])
        for indices in scoring_batches(shard, settings, "a", 0, 4)
    ]
    num_minus = drawn.count(-1.0)
    assert 0 < num_minus < 4  # both signs are there
    scores = score_locally(model, manifest, TASK, shard, settings, "a", num_batches=4)
    mean = (num_minus * 0.8807971 + (4 - num_minus) * 0.1192029) / 4
    signed = abs(num_minus * 0.8807971 - (4 - num_minus) * 0.1192029) / 4
    np.testing.assert_allclose(scores, [mean, mean], rtol=1e-6)
    assert abs(mean - signed) > 0.01


def test_the_mean_of_minibatches_is_rounded_once(shard: Shard) -> None:
    """The mean is the float32 nearest to the exact rational mean of the minibatches."""
    model, manifest = started("mlp", shard)
    settings = RunSettings(batch_size=8)
    single = []
    for indices in scoring_batches(shard, settings, "a", 1, 3):
        x, y = torch.from_numpy(shard.train_x[indices]), torch.from_numpy(shard.train_y[indices])
        single.append(saliency_scores(model, manifest, TASK, x, y))
    scores = score_locally(model, manifest, TASK, shard, settings, "a", 1, 3)
    for place in range(0, manifest.num_masked, 97):
        exact = sum(Fraction(float(scored[place])) for scored in single) / 3
        assert scores[place] == np.float32(float(exact))


def test_one_minibatch_gives_its_own_bits_and_is_the_first_of_several(shard: Shard) -> None:
    model, manifest = started("cnn", shard)
    settings = RunSettings(batch_size=8)
    indices = balanced_batch(shard.train_y, 8, Stream(0, "scoring", 0, "a"))
    x, y = torch.from_numpy(shard.train_x[indices]), torch.from_numpy(shard.train_y[indices])
    wanted = obvious_scores(started("cnn", shard)[0], x, y)
    score = partial(score_locally, model, manifest, TASK, shard, settings, "a")
    one, default, two = score(num_batches=1), score(), score(num_batches=2)
    assert one.tobytes() == default.tobytes() == wanted
    assert two.tobytes() != wanted


def test_a_small_shard_is_scored_once_for_any_number_of_minibatches(shard: Shard) -> None:
    model, manifest = started("mlp", shard)
    settings = RunSettings(batch_size=shard.num_samples)
    one, many = (
        score_locally(model, manifest, TASK, shard, settings, "a", num_batches=n) for n in (1, 9)
    )
    assert one.tobytes() == many.tobytes()


def test_a_plain_minibatch_scores_other_samples_than_a_balanced_one(shard: Shard) -> None:
    model, manifest = started("mlp", shard)
    plain = RunSettings(batch_size=8, scoring_samples="plain")
    indices = Stream(0, "scoring", 0, "a").choose(shard.num_samples, 8)
    x, y = torch.from_numpy(shard.train_x[indices]), torch.from_numpy(shard.train_y[indices])
    scores = score_locally(model, manifest, TASK, shard, plain, "a")
    assert scores.tobytes() == saliency_scores(model, manifest, TASK, x, y).tobytes()
    balanced = score_locally(
        model, manifest, TASK, shard, replace(plain, scoring_samples="balanced"), "a"
    )
    assert scores.tobytes() != balanced.tobytes()


def test_a_rare_class_counts_as_much_as_a_frequent_one_in_a_balanced_minibatch() -> None:
    """98 samples of class 0 use only the first input, 2 of class 1 only the second.

    A balanced minibatch of four has two of each class: with equal weights both inputs score the
    same. A plain minibatch of this stream has none of class 1, whose input scores zero.
    """
    y = np.repeat(np.arange(2), [98, 2])
    x = np.eye(2, dtype=np.float32)[y]
    shard = Shard(x, y, x[:0], y[:0], num_classes=2)
    model = nn.Linear(2, 2, bias=False)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.ones(4, dtype=np.float32))
    balanced, plain = (
        score_locally(
            model, manifest, TASK, shard, RunSettings(batch_size=4, scoring_samples=samples), "a"
        ).tolist()
        for samples in ("balanced", "plain")
    )
    assert balanced == [0.25, 0.25, 0.25, 0.25]  # half the samples, gradient 1/2, weight 1
    assert plain == [0.5, 0, 0.5, 0]


# -- weights that rest


def test_pruned_weights_are_scored_by_their_resting_values() -> None:
    """The model ((1, -2), (0, 0)) with x = (2, 1), by hand as above.

    Logits (0, 0), q = 1/2, dL/dW = ((-1, -1/2), (1, 1/2)). With weights ((1, -2), (5, 3)) in the
    product: (1, 1, 5, 1.5). With the model's own weights the last two would be 0.
    """
    model = nn.Linear(2, 2, bias=False)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.array([1, -2, 0, 0], dtype=np.float32))
    x, y = torch.tensor([[2.0, 1.0]]), torch.tensor([0])
    resting = np.array([1, -2, 5, 3], dtype=np.float32)
    resting.flags.writeable = False
    assert saliency_scores(model, manifest, TASK, x, y).tolist() == [1, 1, 0, 0]
    assert saliency_scores(model, manifest, TASK, x, y, resting).tolist() == [1, 1, 5, 1.5]
    assert read_vector(model, manifest).tolist() == [1, -2, 0, 0]
    write_vector(model, manifest, resting)  # in the forward pass they change every gradient
    assert saliency_scores(model, manifest, TASK, x, y).tolist() != [1, 1, 5, 1.5]


def test_resting_weights_apply_to_all_minibatches_of_a_client(shard: Shard) -> None:
    model, manifest = started("mlp", shard)
    own = read_vector(model, manifest)[: manifest.num_masked]
    settings = RunSettings(batch_size=8)
    score = partial(score_locally, model, manifest, TASK, shard, settings, "a", num_batches=2)
    assert score().tobytes() == score(weights=own).tobytes()
    np.testing.assert_array_equal(score(weights=own * 2), score() * 2)
    with pytest.raises(ModelError, match="3 weights for a model of"):
        score(weights=own[:3])


def test_targets_that_are_not_classes_can_be_scored() -> None:
    class Regression:
        load_shard = staticmethod(image_task.load_shard)
        build_model = staticmethod(image_task.build_model)

        def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return functional.mse_loss(model(x), y)

        def metrics(self, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"error": (model(x) - y).abs().mean()}

    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    shard = Shard(x, x[:, :1] * 2, x[:0], x[:0, :1], num_classes=0)
    model = nn.Linear(2, 1)
    manifest = manifest_of(model, {})
    scores = score_locally(model, manifest, Regression(), shard, RunSettings(), "a")
    assert (scores > 0).all()


def test_scores_that_are_not_finite_are_refused(shard: Shard) -> None:
    model, manifest = started("mlp", shard)
    write_vector(model, manifest, np.full(manifest.size, 1e30, dtype=np.float32))
    with pytest.raises(DivergedError, match="scores are not finite"):
        score_locally(model, manifest, TASK, shard, RunSettings(), "a")


def test_a_network_of_frozen_weights_is_refused(shard: Shard) -> None:
    model, manifest = started("mlp", shard)
    model.requires_grad_(False)
    with pytest.raises(ModelError, match="every conv and linear weight is frozen"):
        score_locally(model, manifest, TASK, shard, RunSettings(), "a")
