"""Replaced weights, powered weights, and weight gradients from pruned inputs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.masked_training import train_locally
from ssfl.learning.reparametrize import PowerTask, kept_from, powered, replaced
from ssfl.method.initialize import initial_vector
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings


class Products:
    """The loss is the sum of outputs times targets, so that y is the gradient of the outputs."""

    @staticmethod
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        product: Tensor = (model(x) * y).sum()
        return product


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def linear(*rows: list[float]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return layer


def power_task(model: nn.Module, exponent: float, inputs: str) -> PowerTask:
    return PowerTask(Products(), manifest_of(model, {}), exponent, inputs)


def test_powered_weights_and_their_gradients_by_hand() -> None:
    w = torch.tensor([4.0, -4.0, 0.0, 1.0], requires_grad=True)
    assert powered(w, 1.5).tolist() == [8.0, -8.0, 0.0, 1.0]
    backward(powered(w, 1.5).sum())
    assert w.grad is not None
    assert w.grad.tolist() == [3.0, 3.0, 0.0, 1.5], "a |w|^(a - 1), and exactly zero at zero"
    assert powered(w, 1) is w


def test_a_replaced_weight_is_used_and_the_parameter_stays() -> None:
    layer = linear([1.0, 2.0])
    model = nn.Sequential(layer, nn.ReLU())
    names, own = [name for name, _ in model.named_parameters()], layer.weight
    other = torch.tensor([[10.0, 20.0]])
    with replaced(model, {own: other}):
        assert model(torch.ones(1, 2)).item() == 30
        assert [name for name, _ in model.named_parameters()] == names
        assert dict(model.named_parameters())["0.weight"] is own
    assert model(torch.ones(1, 2)).item() == 3
    assert layer.weight is own and "weight" not in vars(layer)


def test_a_shared_weight_is_replaced_in_both_layers() -> None:
    first, second = linear([1.0]), linear([5.0])
    second.weight = first.weight
    with replaced(nn.Sequential(first, second), {first.weight: torch.tensor([[3.0]])}):
        assert second(first(torch.ones(1, 1))).item() == 9


def test_the_network_is_restored_after_an_error() -> None:
    model = nn.Sequential(linear([1.0, 0.0]))

    class Broken:
        @staticmethod
        def loss(model: nn.Module, _x: Tensor, _y: Tensor) -> Tensor:
            assert "weight" in vars(model[0]) and "forward" in vars(model[0])  # type: ignore[index]
            raise RuntimeError("no loss")

    task = PowerTask(Broken(), manifest_of(model, {}), 1.25, "batch")
    with pytest.raises(RuntimeError, match="no loss"):
        task.loss(model, torch.ones(1, 2), torch.ones(1, 1))
    assert not {"weight", "forward"} & set(vars(model[0]))


def test_weight_gradients_come_from_the_largest_inputs_and_outputs_from_all() -> None:
    layer = linear([4.0, 0.0], [1.0, 0.0])  # half of the weights: half of the inputs
    x = torch.tensor([[1.0, -3.0], [2.0, 0.5]], requires_grad=True)
    y = torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    loss = power_task(layer, 1.5, "batch").loss(layer, x, y)
    # outputs: powered weights 8 and 1, times the first input
    assert loss.item() == 1 * (8 * 1 + 10 * 1) + 2 * (100 * 8 + 1000 * 1)
    backward(loss)
    assert x.grad is not None and layer.weight.grad is not None
    assert x.grad.tolist() == [[18.0, 0.0], [1800.0, 0.0]]
    # inputs kept: -3 and 2; by powered weights, sum of y times input: [[200, -3], [2000, -30]];
    # times 1.5 |w|^0.5: 3, 0 and 1.5, 0
    assert layer.weight.grad.tolist() == [[600.0, 0.0], [3000.0, 0.0]]


def test_a_layer_at_the_papers_exponent() -> None:
    """Weights 32 and -1 with gradients 200 and 2000, times 1.25 |w|^0.25: 2.5 and 1.25."""
    layer = linear([16.0, 0.0], [-1.0, 0.0])
    x, y = torch.tensor([[1.0, -3.0], [2.0, 0.5]]), torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    loss = power_task(layer, 1.25, "batch").loss(layer, x, y)
    assert loss.item() == (32 - 10) + (6400 - 2000)  # outputs (32, -1) and (64, -2)
    backward(loss)
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[500.0, 0.0], [2500.0, 0.0]]


def test_full_inputs_and_dense_layers_give_plain_gradients() -> None:
    for rows, inputs in (([4.0, 0.0], "full"), ([4.0, 1.0], "batch")):
        layer = linear(rows)
        backward(
            power_task(layer, 1.5, inputs).loss(
                layer, torch.tensor([[1.0, -3.0]]), torch.ones(1, 1)
            )
        )
        assert layer.weight.grad is not None
        assert layer.weight.grad.tolist() == [[3.0, -4.5 * rows[1]]]


@pytest.mark.parametrize(
    ("share", "of", "threshold"), [(1, 4, 3.0), (1, 2, 2.0), (3, 4, 2.0), (2, 3, 2.0), (0, 4, 3.0)]
)
def test_threshold_of_the_kept_inputs(share: int, of: int, threshold: float) -> None:
    """At least one is kept, a part counts as one more, and equal ones have the same threshold."""
    assert kept_from(torch.tensor([[1.0, -2.0], [2.0, 3.0]]), share, of).item() == threshold


def test_the_threshold_of_a_round_is_that_of_a_convolutions_first_batch() -> None:
    model = nn.Conv1d(1, 1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[[1.0, 0.0]]]))
    task = power_task(model, 1.25, "round")
    gradients = []
    for x in ([4.0, 3.0], [2.0, 1.0]):  # one of two inputs; then none is above 4
        model.zero_grad()
        backward(task.loss(model, torch.tensor([[x]]), torch.ones(1, 1, 1)))
        assert model.weight.grad is not None
        gradients.append(model.weight.grad.flatten().tolist())
    assert gradients == [[1.25 * 4, 0.0], [0.0, 0.0]]


LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(5, 4), (3, 5)),
    (nn.Linear(5, 4), (3, 2, 5)),
    (nn.Linear(5, 4, bias=False), (3, 2, 5)),
    (nn.Conv1d(2, 3, 3), (4, 2, 7)),
    (nn.Conv2d(2, 4, 3, stride=2, groups=2), (4, 2, 7, 7)),
    (nn.Conv2d(2, 4, 3, padding="same", dilation=2), (4, 2, 7, 7)),
    (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), (4, 2, 7, 7)),
    (nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    (nn.ConvTranspose2d(2, 3, 3, output_padding=1, stride=2), (2, 2, 4, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=[str(layer) for layer, _ in LAYERS])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_kind_of_layer_by_autograd(
    layer: Any, shape: tuple[int, ...], transposed: bool
) -> None:
    """The weight gradient is that of the pruned inputs, all others are those of a plain pass."""
    torch.manual_seed(0)
    with torch.no_grad():
        layer.weight.view(-1)[::3] = 0
    x = torch.randn(shape)
    if transposed:
        x = torch.randn(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
    x.requires_grad_()
    y = torch.randn(layer(x).shape)
    layer.zero_grad()
    backward(power_task(layer, 1.25, "batch").loss(layer, x, y))

    weight = layer.weight.detach().clone().requires_grad_()
    effective = weight.sign() * weight.abs() ** 1.25
    plain = x.detach().clone().requires_grad_()
    count = -(-x.numel() * int((weight != 0).sum()) // weight.numel())
    smallest = plain.detach().abs().flatten().sort(descending=True).values[count - 1]
    pruned = torch.where(plain.detach().abs() < smallest, 0.0, plain.detach())
    assert int((pruned != 0).sum()) == count < x.numel()
    whole = (functional_call(layer, {"weight": effective}, plain) * y).sum()
    others = [plain] if layer.bias is None else [plain, layer.bias]
    expected = torch.autograd.grad(whole, others, retain_graph=True)
    from_pruned = (functional_call(layer, {"weight": effective}, pruned) * y).sum()
    (of_weight,) = torch.autograd.grad(from_pruned, weight)
    torch.testing.assert_close(x.grad, expected[0])
    torch.testing.assert_close(layer.weight.grad, of_weight)
    assert not layer.weight.grad[weight == 0].any()
    if layer.bias is not None:
        torch.testing.assert_close(layer.bias.grad, expected[1])


def test_zeros_stay_exactly_zero_in_a_networks_training(shard: Shard) -> None:
    model = image_task.build_model(RunSettings(model="cnn"), shard)
    manifest = manifest_of(model, {})
    start = initial_vector(manifest, seed=0)
    zeros = torch.rand(manifest.num_masked, generator=torch.Generator().manual_seed(0)) < 0.5
    start[: manifest.num_masked][zeros.numpy()] = 0
    settings = RunSettings(local_epochs=2, momentum=0.9, weight_decay=0.01)
    ends = []
    for inputs in ("batch", "batch", "full"):
        write_vector(model, manifest, start)
        task = PowerTask(image_task, manifest, 1.25, inputs)
        full = Mask.full(manifest.num_masked)
        train_locally(model, manifest, full, task, shard, settings, 0, "a")
        ends.append(read_vector(model, manifest))
        assert not ends[-1][: manifest.num_masked][zeros.numpy()].any()
        assert (ends[-1] != start)[: manifest.num_masked][~zeros.numpy()].mean() > 0.5
    assert ends[0].tobytes() == ends[1].tobytes() != ends[2].tobytes()
