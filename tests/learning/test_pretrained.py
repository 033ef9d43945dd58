from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import ModelError
from ssfl.learning.pretrained import copy_weights, read_weights


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def copy_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def test_tensors_of_the_same_name_and_shape_are_copied_and_the_others_reported() -> None:
    mine, manifest = model(), manifest_of(model(), {})
    weights = {name: torch.full(t.shape, 7.0) for name, t in model().state_dict().items()}
    weights["2.weight"] = torch.zeros(10, 3)
    del weights["2.bias"]
    weights["head.weight"] = torch.zeros(1)
    before = copy_of(mine)
    taken = copy_weights(mine, manifest, weights)
    assert set(taken.used) == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
    }  # fmt: skip
    assert taken.missing == ("2.weight", "2.bias")
    assert taken.unused == {
        "2.weight": "10x3 in the file and 2x3 in the model",
        "head.weight": "not in the model",
    }  # 1.num_batches_tracked is not a weight and is not reported
    after = mine.state_dict()
    assert bool((after["0.weight"] == 7).all()) and bool((after["1.running_var"] == 7).all())
    assert torch.equal(after["2.weight"], before["2.weight"])


def test_weights_of_half_precision_become_float32(tmp_path: Path) -> None:
    saved = {name: t.bfloat16() for name, t in model().state_dict().items() if t.ndim}
    save_file(saved, tmp_path / "w.safetensors")
    mine = model()
    copy_weights(mine, manifest_of(mine, {}), read_weights(tmp_path / "w.safetensors"))
    taken = mine.state_dict()["0.weight"]
    assert taken.dtype == torch.float32
    assert torch.equal(taken, saved["0.weight"].float())


def test_weights_that_are_not_finite_are_refused_and_nothing_is_copied() -> None:
    mine = model()
    before = copy_of(mine)
    broken = {"0.bias": torch.ones(3), "2.bias": torch.tensor([1.0, torch.nan])}
    with pytest.raises(ModelError, match=r"2\.bias holds NaN or infinity in the file"):
        copy_weights(mine, manifest_of(mine, {}), broken)
    assert torch.equal(mine.state_dict()["0.bias"], before["0.bias"])


def test_a_number_too_large_for_float32_is_refused_and_nothing_is_copied() -> None:
    mine = model()
    before = copy_of(mine)
    large = {"0.bias": torch.ones(3), "2.bias": torch.tensor([1.0, -1e300], dtype=torch.float64)}
    with pytest.raises(ModelError, match=r"2\.bias holds 1e\+300 in the file, a float64 that"):
        copy_weights(mine, manifest_of(mine, {}), large)
    assert torch.equal(mine.state_dict()["0.bias"], before["0.bias"])


def test_files_that_are_not_safetensors_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        read_weights(tmp_path / "absent.safetensors")
    (tmp_path / "empty.safetensors").touch()
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        read_weights(tmp_path / "empty.safetensors")
    torch.save(model().state_dict(), tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"convert it once: python -c") as caught:
        read_weights(tmp_path / "w.pt")
    code = str(caught.value).partition('python -c "')[2].removesuffix('"')
    exec(code)  # the advice must work
    assert set(read_weights(tmp_path / "w.safetensors")) == set(model().state_dict())
