"""The fake GPU must catch the mistakes that a real GPU catches."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from learning.fake_device import FakeDevice

FORGOTTEN_TO = "Expected all tensors to be on the same device"
FORGOTTEN_CPU = r"can't convert cuda:0 device type tensor to numpy\. Use Tensor\.cpu\(\)"


def test_a_moved_tensor_its_views_and_results_report_the_device() -> None:
    here = torch.ones(3, 2)
    with FakeDevice("cuda") as fake:
        there = here.to("cuda")
        assert (here.device.type, here.is_cpu, here.is_cuda) == ("cpu", True, False)
        moved = [there, there[0], there.view(6), there + 1, there.sum(), torch.zeros_like(there)]
        moved += [here.to(there), torch.zeros(2, device="cuda"), there.double(), here.cuda()]
        assert [(t.device, t.is_cuda, t.is_cpu) for t in moved] == [(fake.device, True, False)] * 10
        back = [there.cpu(), there.to("cpu"), there.to(here), torch.zeros_like(there, device="cpu")]
        assert [t.device.type for t in back] == ["cpu"] * 4
        assert there.to("cuda") is there


def test_writing_to_a_moved_tensor_leaves_the_original_alone() -> None:
    here = torch.ones(3)
    with FakeDevice("cuda"):
        there = here.to("cuda")
        there.mul_(2)
        assert there.device.type == "cuda"
        assert (here.tolist(), there.tolist()) == ([1, 1, 1], [2, 2, 2])
        here.copy_(there)
        assert (here.device.type, here.numpy().tolist()) == ("cpu", [2, 2, 2])


@pytest.mark.parametrize(
    "mix",
    [
        lambda there, here: there + here,
        lambda there, here: here.add_(there),
        lambda there, here: torch.cat([there, here]),
        lambda there, here: there @ here.T,
        lambda there, here: functional.cross_entropy(there, here.argmax(1)),
        lambda there, here: nn.Linear(2, 2)(there) + here[0],
        lambda there, here: here[there.argmax(1)],
        lambda there, here: here.sum().add_(there.sum()),
        lambda there, here: torch.stack([there[0], here[0]]),
    ],
)
def test_a_forgotten_to_is_caught(
    mix: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    here = torch.eye(2)
    mix(here, here.clone())  # works on one device
    with FakeDevice("cuda"), pytest.raises(RuntimeError, match=FORGOTTEN_TO):
        mix(here.to("cuda"), here)


def test_a_forgotten_to_is_caught_in_a_model_and_in_its_gradients() -> None:
    x = torch.ones(3, 2)
    with FakeDevice("cuda"):
        model = nn.Linear(2, 2).to("cuda")
        with pytest.raises(RuntimeError, match=FORGOTTEN_TO):
            model(x)
        model(x.to("cuda")).sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.is_cuda
        with pytest.raises(RuntimeError, match=FORGOTTEN_TO):
            model.weight.grad.mul_(torch.ones(2, 2))


def test_a_forgotten_cpu_is_caught() -> None:
    with FakeDevice("cuda"):
        there = torch.ones(3).to("cuda")
        with pytest.raises(TypeError, match=FORGOTTEN_CPU):
            there.numpy()
        with pytest.raises(TypeError, match=FORGOTTEN_CPU):
            np.asarray(there)
        assert there.cpu().numpy().tolist() == np.asarray(there.cpu()).tolist() == [1, 1, 1]


def test_scalars_and_indices_may_come_from_the_cpu_as_on_a_gpu() -> None:
    with FakeDevice("cuda"):
        there = torch.arange(3.0).to("cuda")
        results = [there + 1, there * torch.tensor(2.0), there[torch.tensor([0, 2])]]
        assert [tensor.device.type for tensor in results] == ["cuda"] * 3
        assert (there.sum().item(), float(there[1]), there.tolist()) == (3, 1, [0, 1, 2])


def test_gradients_travel_back_through_a_move() -> None:
    weight = torch.ones(2, requires_grad=True)
    with FakeDevice("cuda"):
        (weight.to("cuda") * torch.arange(2.0).to("cuda")).sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        assert (weight.grad.device.type, weight.grad.tolist()) == ("cpu", [0, 1])


def test_mps_refuses_float64() -> None:
    with FakeDevice("mps"):
        there = torch.ones(2).to("mps")
        assert there.is_mps
        for make in (lambda: torch.ones(2).double().to("mps"), there.double, there.numpy):
            with pytest.raises(TypeError, match=r"float64|mps:0 device type tensor to numpy"):
                make()


def test_another_device_is_refused_and_nothing_stays_behind() -> None:
    with FakeDevice("mps"), pytest.raises(RuntimeError, match="there is no cuda, only mps:0"):
        torch.ones(2).to("cuda")
    with FakeDevice("cuda") as fake:
        there = torch.ones(2).to("cuda")
        before = fake.operations
        there + 1
        torch.ones(2) + 1
        assert fake.operations == before + 1
    assert there.device.type == "cpu"
    assert there.numpy().tolist() == [1, 1]
