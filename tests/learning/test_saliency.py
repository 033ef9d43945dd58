import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards import Shard
from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.load_task import load_task
from ssfl.learning.saliency import saliency_scores, score_locally
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings

TASK = load_task("image")


def started(name: str, shard: Shard) -> tuple[nn.Module, Manifest]:
    model = image_task.build_model(RunSettings(model=name), shard)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    return model, manifest


def obvious_scores(model: nn.Module, x: Tensor, y: Tensor) -> bytes:
    """The formula as anybody would write it, on a model of its own."""
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


def test_a_client_scores_one_balanced_batch_that_its_name_decides(shard: Shard) -> None:
    model, manifest = started("mlp", shard)
    settings = RunSettings(batch_size=8)
    a, again, b = (
        score_locally(model, manifest, TASK, shard, settings, client) for client in "aab"
    )
    refreshed = score_locally(model, manifest, TASK, shard, settings, "a", mask_epoch=1)
    assert a.tobytes() == again.tobytes()
    assert a.tobytes() != b.tobytes() != refreshed.tobytes() != a.tobytes()


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


def test_a_network_of_frozen_weights_is_told(shard: Shard) -> None:
    model, manifest = started("mlp", shard)
    model.requires_grad_(False)
    with pytest.raises(ModelError, match="every conv and linear weight is frozen"):
        score_locally(model, manifest, TASK, shard, RunSettings(), "a")
