"""Drawn masks of frozen weights, their gradients, and Adam."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import DivergedError
from ssfl.learning.evaluate import evaluate
from ssfl.learning.flatten import write_vector
from ssfl.learning.supermask import Adam, SupermaskTask, draw, train_probabilities
from ssfl.method.initialize import initial_vector
from ssfl.method.settings import RunSettings

SETTINGS = RunSettings(local_epochs=10, batch_size=16, seed=4)


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


class Products:
    """The loss is the sum of outputs times targets, so that y is the gradient of the outputs."""

    @staticmethod
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        product: Tensor = (model(x) * y).sum()
        return product


@pytest.mark.parametrize("scaled", [False, True])
def test_a_draw_is_zeros_and_ones_and_its_gradient_passes(scaled: bool) -> None:
    torch.manual_seed(0)
    p = torch.tensor([0.0, 1.0, 0.25, 0.5], requires_grad=True)
    drawn = draw(p, scaled)
    assert drawn[:2].tolist() == [0, 1] and set(drawn.tolist()) <= {0, 1}
    backward((drawn * torch.tensor([2.0, 3.0, 4.0, 5.0])).sum())
    assert p.grad is not None
    assert p.grad.tolist() == ([0.0, 3.0, 1.0, 2.5] if scaled else [2.0, 3.0, 4.0, 5.0])


def test_a_draw_has_its_probability() -> None:
    torch.manual_seed(0)
    assert draw(torch.full((100_000,), 0.2)).mean().item() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_gradient_of_a_score_by_hand(scaled: bool) -> None:
    """Input x upstream gradient x frozen weight x sigmoid'; scaled: x sigmoid."""
    layer = nn.Linear(3, 1)
    manifest = manifest_of(layer, {})
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, 40.0, -40.0]]))  # p: 1/2, 1, 0
        layer.bias.fill_(0.5)
    weights = np.array([2.0, 3.0, 5.0], dtype=np.float32)
    task = SupermaskTask(Products(), layer, manifest, weights, times_probability=scaled)
    x = torch.tensor([[7.0, 11.0, 13.0]])
    losses = set()
    for seed in range(8):
        torch.manual_seed(seed)
        layer.zero_grad()
        loss = task.loss(layer, x, torch.tensor([[10.0]]))
        losses.add(loss.item())
        backward(loss)
        assert layer.weight.grad is not None
        first = 7 * 10 * 2 * 0.25 * (0.5 if scaled else 1)
        assert layer.weight.grad.flatten().tolist() == pytest.approx([first, 0, 0], abs=1e-6)
        assert layer.bias.grad is None, "all but the masked weights are frozen"
    # the second is always kept, the third never, the first in some draws; the bias is 0.5
    assert losses == {10 * (3 * 11 + 0.5), 10 * (2 * 7 + 3 * 11 + 0.5)}
    assert "weight" not in vars(layer) and layer.weight.tolist() == [[0.0, 40.0, -40.0]]


def test_adam_is_torchs_and_its_moments_can_be_kept() -> None:
    def gradients(step: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(step)
        return [torch.randn(2, 3, generator=generator), torch.randn(4, generator=generator)]

    def parameters() -> list[nn.Parameter]:
        return [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.zeros(4))]

    theirs, ours = parameters(), parameters()
    optimizer = torch.optim.Adam(theirs, lr=0.1, foreach=False)
    mine = Adam(ours)
    for step in range(6):
        if step == 3:  # as in another process
            moments = mine.moments()
            mine = Adam(ours)
            mine.restore(moments)
            assert moments.shape == (1 + 2 * 10,) and mine.steps == 3
        for one, other, gradient in zip(theirs, ours, gradients(step), strict=True):
            one.grad, other.grad = gradient, gradient.clone()
        optimizer.step()
        mine.step(0.1)
        for one, other in zip(theirs, ours, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-7)
    mine.zero_grad()
    assert all(parameter.grad is None for parameter in ours)
    before = [parameter.clone() for parameter in ours]
    mine.step(0.1)
    assert all(torch.equal(a, b) for a, b in zip(ours, before, strict=True)), "no gradients"


def setup(shard: Shard) -> tuple[nn.Module, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    model = image_task.build_model(RunSettings(model="cnn-small"), shard)
    manifest = manifest_of(model, {})
    values = initial_vector(manifest, seed=0)
    weights = np.copysign(np.float32(0.25), values[: manifest.num_masked])
    values[: manifest.num_masked] = 0.5
    return model, values, weights


def test_probabilities_are_trained_and_all_else_is_frozen(shard: Shard) -> None:
    model, values, weights = setup(shard)
    manifest = manifest_of(model, {})
    seen: list[tuple[int, int]] = []

    def trained(
        moments: npt.NDArray[np.float32] | None = None, scaled: bool = False
    ) -> tuple[npt.NDArray[np.float64], float, npt.NDArray[np.float32]]:
        return train_probabilities(
            model, manifest, image_task, shard, SETTINGS, 0, "a",
            lambda done, total: seen.append((done, total)), values, weights, moments,
            times_probability=scaled,
        )  # fmt: skip

    p, loss, moments = trained()
    assert seen == [(step, 40) for step in range(1, 41)]
    assert p.shape == (manifest.num_masked,) and 0 < p.min() < 0.4 and 0.6 < p.max() < 1
    assert moments[0] == 40
    named = dict(model.named_parameters())
    for tensor in manifest.tensors:
        if tensor.name in named and tensor.role.value == "dense":
            place = manifest.slices[tensor.name]
            assert named[tensor.name].detach().numpy().tobytes() == values[place].tobytes()
            assert named[tensor.name].requires_grad and named[tensor.name].grad is None
    again = trained()
    assert again[0].tobytes() == p.tobytes() and again[1] == loss
    assert trained(moments)[0].tobytes() != p.tobytes() != trained(scaled=True)[0].tobytes()

    def expected_loss(probability: npt.NDArray[np.floating]) -> float:
        """Return the mean loss of networks that are drawn."""
        rng, sums = np.random.default_rng(0), 0.0
        for _ in range(20):
            kept = rng.random(probability.size) < probability
            whole = values.copy()
            whole[: manifest.num_masked] = np.where(kept, weights, 0)
            write_vector(model, manifest, whole)
            sums += evaluate(model, image_task, shard, "train").loss_sum
        return sums / 20

    assert expected_loss(p) < expected_loss(values[: manifest.num_masked]) / 2


def test_scores_that_are_not_finite_are_divergence(shard: Shard) -> None:
    model, values, weights = setup(shard)
    weights[:] = np.inf
    with pytest.raises(DivergedError, match="the loss is nan"):
        train_probabilities(
            model, manifest_of(model, {}), image_task, shard, SETTINGS, 0, "a",
            lambda _done, _all: None, values, weights,
        )  # fmt: skip
