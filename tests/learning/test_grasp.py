import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.batches import batch_tensors, scoring_batches
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import DivergedError, ModelError
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.grasp import grasp_locally, grasp_scores
from ssfl.learning.load_task import load_task
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask_choice import top_k_signed
from ssfl.method.settings import RunSettings

TASK = load_task("image")
Batches = list[tuple[Tensor, Tensor]]


class Squares:
    """A regression task."""

    load_shard = staticmethod(image_task.load_shard)
    build_model = staticmethod(image_task.build_model)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(model(x), y)

    def metrics(self, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"error": (model(x) - y).abs().mean()}


def started(model: nn.Module) -> tuple[nn.Module, Manifest]:
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    return model, manifest


def tiny() -> tuple[nn.Module, Manifest]:
    return started(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def some_batches(*sizes: int) -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 3, generator=generator), torch.randint(2, (n,), generator=generator))
        for n in sizes
    ]


def scores_by_the_whole_hessian(
    model: nn.Module, batches: Batches, temperature: float
) -> npt.NDArray[np.float64]:
    """Compute the full Hessian of the loss as a function of the masked weights."""
    first, last = model[0], model[2]  # type: ignore[index]
    flat = torch.cat([first.weight.reshape(-1), last.weight.reshape(-1)]).detach().double()
    biases = [layer.bias.detach().double() for layer in (first, last)]

    def loss(weights: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for x, y in batches:
            hidden = torch.tanh(x.double() @ weights[:12].reshape(4, 3).T + biases[0])
            logits = hidden @ weights[12:].reshape(2, 4).T + biases[1]
            total = total + functional.cross_entropy(logits / temperature, y)
        return total / len(batches)

    gradient = torch.func.grad(loss)(flat)
    hessian = torch.autograd.functional.hessian(loss, flat)  # type: ignore[no-untyped-call]
    return np.asarray((flat * (hessian @ gradient)).numpy())


@pytest.mark.parametrize("sizes", [(6,), (5, 5), (4, 4, 4)])
@pytest.mark.parametrize("temperature", [1.0, 200.0])
def test_scores_are_those_of_the_whole_hessian(sizes: tuple[int, ...], temperature: float) -> None:
    model, manifest = tiny()
    batches = some_batches(*sizes)
    scores = grasp_scores(model, manifest, TASK, batches, temperature)
    wanted = scores_by_the_whole_hessian(model, batches, temperature)
    assert scores.dtype == np.float32 and scores.shape == (20,)
    assert (scores > 0).any() and (scores < 0).any()
    np.testing.assert_allclose(scores, wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max())


def test_one_weight_by_hand() -> None:
    """Loss (w x - y)^2 with w = 2, x = 3, y = 5: g = 2x(wx - y) = 6, H = 2x^2 = 18.

    So H g = 108 and the score is w H g = 216. With outputs divided by a temperature of 2 the
    loss is (w x / 2 - y)^2: g = x(wx/2 - y) = -6, H = x^2 / 2 = 4.5, and w H g = -54.
    """
    model = nn.Linear(1, 1, bias=False)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.array([2], dtype=np.float32))
    batch = (torch.tensor([[3.0]]), torch.tensor([[5.0]]))
    assert grasp_scores(model, manifest, Squares(), [batch], temperature=1.0).tolist() == [216]
    assert grasp_scores(model, manifest, Squares(), [batch], temperature=2.0).tolist() == [-54]


def test_a_softmax_of_two_classes() -> None:
    """Four weights and two samples, with outputs divided by 200."""
    model = nn.Linear(2, 2, bias=False)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.array([0.5, -1, 2, 0.25], dtype=np.float32))
    batch = (torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([0, 1]))
    found = grasp_scores(model, manifest, TASK, [batch])
    wanted = [8.854209e-08, 1.329969e-07, -3.541683e-07, 3.324922e-08]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_weights_kept_are_those_whose_removal_costs_gradient_flow() -> None:
    """Check sign and order without derivatives: shrink one weight at a time and measure |g|^2.

    To first order |g|^2 changes by -2 e w H g when w shrinks by a share e.
    """
    model, manifest = tiny()
    model.double()
    x, y = some_batches(8)[0]
    weights = [model[0].weight, model[2].weight]  # type: ignore[index]

    def flow() -> float:
        gradients = torch.autograd.grad(functional.cross_entropy(model(x.double()), y), weights)
        return float(sum((g**2).sum() for g in gradients))

    before, lost, share = flow(), [], 1e-4
    for weight in weights:
        for i in range(weight.numel()):
            with torch.no_grad():
                value = weight.view(-1)[i].item()
                weight.view(-1)[i] = value * (1 - share)
            lost.append((before - flow()) / (2 * share))
            with torch.no_grad():
                weight.view(-1)[i] = value
    scores = grasp_scores(model.float(), manifest, TASK, [(x, y)], temperature=1.0)
    np.testing.assert_allclose(scores, lost, rtol=2e-2, atol=1e-3 * np.abs(lost).max())
    best = np.sort(np.argsort(lost)[-5:])
    assert np.flatnonzero(top_k_signed(scores, 5).bools()).tolist() == best.tolist()


def test_gradients_are_averaged_before_the_hessian_product() -> None:
    """The product of means is not the mean of products: single batches score differently."""
    model, manifest = tiny()
    batches = some_batches(4, 4)
    together = grasp_scores(model, manifest, TASK, batches, 1.0)
    alone = [grasp_scores(model, manifest, TASK, [batch], 1.0) for batch in batches]
    assert np.abs(together - (alone[0] + alone[1]) / 2).max() > 0.01 * np.abs(together).max()


@pytest.mark.parametrize("name", ["cnn", "resnet20"])
def test_networks_have_finite_scores_of_both_signs_in_every_layer(name: str, shard: Shard) -> None:
    model, manifest = started(image_task.build_model(RunSettings(model=name, width=4), shard))
    before = read_vector(model, manifest).tobytes()
    scores = grasp_locally(model, manifest, TASK, shard, RunSettings(), "a", num_batches=2)
    for tensor, place in manifest.masked():
        assert (scores[place] > 0).any() and (scores[place] < 0).any(), tensor.name
    assert read_vector(model, manifest).tobytes() == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training and not model._forward_hooks


def test_a_clients_minibatches_are_those_of_its_saliency(shard: Shard) -> None:
    model, manifest = started(image_task.build_model(RunSettings(model="mlp"), shard))
    settings = RunSettings(batch_size=8)
    chosen = list(scoring_batches(shard, settings, "a", mask_epoch=2, num_batches=3))
    batches = [batch_tensors(shard.train_x, shard.train_y, indices, model) for indices in chosen]
    scores = grasp_locally(model, manifest, TASK, shard, settings, "a", 2, 3)
    assert scores.tobytes() == grasp_scores(model, manifest, TASK, batches, 200.0).tobytes()


def test_targets_that_are_not_classes_have_no_temperature() -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2) / 40
    shard = Shard(x, x[:, :1] * 2, x[:0], x[:0, :1], num_classes=0)
    model, manifest = started(nn.Linear(2, 1))
    batch = batch_tensors(shard.train_x, shard.train_y, np.arange(20), model)
    scores = grasp_locally(model, manifest, Squares(), shard, RunSettings(batch_size=20), "a")
    assert (scores != 0).all()
    assert scores.tobytes() == grasp_scores(model, manifest, Squares(), [batch], 1.0).tobytes()


def test_weights_score_zero_if_the_loss_is_linear_in_them() -> None:
    class Sum(Squares):
        def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            total: Tensor = model(x).sum() + y.sum()
            return total

    model, manifest = started(nn.Linear(2, 1))
    scores = grasp_scores(model, manifest, Sum(), [(torch.ones(1, 2), torch.ones(1))])
    assert scores.tolist() == [0, 0]


def test_the_model_is_left_without_hooks_when_the_loss_fails() -> None:
    model, manifest = tiny()
    with pytest.raises(RuntimeError):
        grasp_scores(model, manifest, Squares(), [(torch.ones(1, 9), torch.ones(1))])
    assert not model._forward_hooks and model.training


def test_outputs_that_are_not_tensors_are_refused() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    model, manifest = started(Pair())
    with pytest.raises(ModelError, match="output by 200: it must be a tensor, not tuple"):
        grasp_scores(model, manifest, TASK, some_batches(2))


def test_attention_has_scores() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(3, 4) for _ in range(3))
            self.out = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            parts = (layer(x)[None, None] for layer in (self.query, self.key, self.value))
            mixed = functional.scaled_dot_product_attention(*parts)
            out: Tensor = self.out(mixed[0, 0])
            return out

    model, manifest = started(Attention())
    scores = grasp_scores(model, manifest, TASK, some_batches(5))
    assert all((scores[place] != 0).any() for _, place in manifest.masked())


def test_a_layer_without_second_derivatives_is_refused() -> None:
    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cdist(self.layer(x), torch.ones(2, 2))

    model, manifest = started(Distances())
    with pytest.raises(ModelError, match="needs second derivatives, which a layer of this model"):
        grasp_scores(model, manifest, TASK, some_batches(2))


def test_no_minibatch_and_scores_that_are_not_finite_are_refused() -> None:
    model, manifest = tiny()
    with pytest.raises(ValueError, match="at least one minibatch"):
        grasp_scores(model, manifest, TASK, [])
    x, y = some_batches(2)[0]
    with pytest.raises(DivergedError, match="GraSP scores are not finite"):
        grasp_scores(model, manifest, TASK, [(x * torch.nan, y)])
