"""Exported models compute the same as torch."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import ModelError
from ssfl.learning.export import OPSET, to_csr, to_onnx
from ssfl.learning.flatten import initial_weights, read_vector, write_vector
from ssfl.learning.models import build_model
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask, top_k
from ssfl.method.settings import MODELS
from ssfl.method.streams import Stream

SAME_BUT_DEPTH = ("resnet8", "resnet32", "resnet44", "resnet56", "resnet110")  # as ResNet-20
NETWORKS = [(name, "group") for name in MODELS if name not in SAME_BUT_DEPTH]
NETWORKS += [("resnet20", "batch")]
pytestmark = pytest.mark.usefixtures("onnx_functions")


def samples(count: int, *shape: int) -> Tensor:
    numbers = Stream(0, "samples", count).uniform(count * int(np.prod(shape)))
    return torch.from_numpy(numbers.astype(np.float32).reshape(count, *shape) - 0.5)


def started(model: nn.Module) -> tuple[nn.Module, Manifest]:
    """Give a network the initial weights of a run."""
    manifest = manifest_of(model, {})
    if manifest.rebuildable:
        write_vector(model, manifest, initial_weights(model, manifest, seed=3))
    return model, manifest


def run_onnx(data: bytes, x: Tensor) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    answers: list[np.ndarray] = session.run(None, {"x": x.numpy()})
    return answers


class Words(nn.Module):
    """Classifies sequences of word numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.dropout = nn.Dropout(0.5)
        self.classes = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classes(self.dropout(self.words(x).mean(dim=1)))
        return out


class Formula(nn.Module):
    """A linear layer and a formula to export."""

    def __init__(self, formula: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)
        self.formula = formula

    def forward(self, x: Tensor) -> object:
        return self.formula(self.linear, x)


@pytest.mark.parametrize(("name", "norm"), NETWORKS)
def test_a_built_in_network_computes_in_onnx_what_it_does_in_torch(name: str, norm: str) -> None:
    """Narrow ResNets are faster, but the float32 of a narrow ResNet-50 is off by 1e-5."""
    side = {"lenet5": 28, "resnet50": 32}.get(name, 16)
    width = 4 if "resnet" in name and name != "resnet50" else 0
    model, _ = started(build_model(name, (3, side, side), 10, norm=norm, width=width))
    data = to_onnx(model, samples(2, 3, side, side), {})
    onnx.checker.check_model(data, full_check=True)
    model.eval()
    for count in (1, 5):
        x = samples(count, 3, side, side)
        (y,) = run_onnx(data, x)
        with torch.no_grad():
            expected = model(x).numpy()
        assert y.shape == (count, 10)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def words() -> tuple[nn.Module, bytes]:
    """A network of sequences, and its file."""
    model, _ = started(Words())
    data = to_onnx(model, torch.zeros(2, 7, dtype=torch.int64), {})
    return model.eval(), data


def test_sequences_of_whole_numbers_stay_whole_numbers(words: tuple[nn.Module, bytes]) -> None:
    model, data = words
    for count in (1, 5):
        x = (torch.arange(count * 7) % 20).reshape(count, 7)
        (y,) = run_onnx(data, x)
        np.testing.assert_allclose(y, model(x).detach().numpy(), rtol=0, atol=1e-5)


def exported_mlp() -> bytes:
    model, _ = started(build_model("mlp", (1, 8, 8), 10))
    return to_onnx(model, samples(2, 1, 8, 8), {"model_digest": "abc"})


@pytest.fixture(scope="module")
def mlp() -> bytes:
    return exported_mlp()


def test_the_file_has_a_fixed_opset_names_a_batch_of_any_size_and_the_digests(mlp: bytes) -> None:
    proto = onnx.load_from_string(mlp)
    assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", OPSET)]
    (x,), (y,) = proto.graph.input, proto.graph.output
    assert (x.name, y.name) == ("x", "y")
    assert [dim.dim_param or dim.dim_value for dim in x.type.tensor_type.shape.dim] == [
        "batch", 1, 8, 8,
    ]  # fmt: skip
    assert {entry.key: entry.value for entry in proto.metadata_props} == {"model_digest": "abc"}


def test_the_file_contains_no_local_path(words: tuple[nn.Module, bytes]) -> None:
    _, data = words
    assert b".py" not in data
    assert b"site-packages" not in data


def test_the_same_model_gives_the_same_bytes(mlp: bytes) -> None:
    assert exported_mlp() == mlp


def test_an_export_prints_nothing_and_restores_every_mode(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = Words()
    model.dropout.eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        to_onnx(model, torch.zeros(2, 7, dtype=torch.int64), {})
    assert (capfd.readouterr(), caught) == (("", ""), [])
    assert model.training
    assert not model.dropout.training


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        (lambda linear, x: torch.special.bessel_j0(linear(x)), r"no ONNX operator for \w+.bessel"),
        (lambda linear, x: linear(x) if x.sum() > 0 else linear(-x), r"test_export.py, line \d+"),
        (lambda linear, x: linear(x.reshape(2, 8)), "fixes the batch size to 2"),
        (lambda linear, x: linear(x.reshape(-1, 7)), r"model\(x\).* RuntimeError: "),
    ],
)
def test_a_network_that_cannot_be_exported_is_explained_in_one_sentence(
    formula: Callable[[nn.Module, Tensor], object], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError, match=reason) as raised:
        to_onnx(Formula(formula), samples(2, 8), {})
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_several_outputs_are_exported() -> None:
    model = Formula(lambda linear, x: (linear(x), x + 1))
    x = samples(5, 8)
    first, second = run_onnx(to_onnx(model, samples(2, 8), {}), x)
    assert first.shape == (5, 3)
    np.testing.assert_allclose(second, x.numpy() + 1, rtol=0, atol=1e-6)


def sparse(name: str, *shape: int) -> tuple[nn.Module, Manifest, Mask]:
    """Return a network with nine tenths of its weights pruned."""
    model, manifest = started(build_model(name, shape, 10))
    vector = read_vector(model, manifest)
    mask = top_k(np.abs(vector[: manifest.num_masked]), manifest.num_masked // 10)
    write_vector(model, manifest, mask.scatter(mask.gather(vector)))
    return model, manifest, mask


def saved_and_loaded(model: nn.Module, manifest: Manifest, mask: Mask) -> dict[str, dict[str, Any]]:
    file = io.BytesIO()
    torch.save(to_csr(manifest, mask, read_vector(model, manifest)), file)
    file.seek(0)
    loaded: dict[str, dict[str, Any]] = torch.load(file, weights_only=True)
    return loaded


def test_csr_holds_exactly_the_kept_weights_and_everything_else_as_it_is() -> None:
    model, manifest, mask = sparse("cnn", 1, 8, 8)
    saved = saved_and_loaded(model, manifest, mask)
    state = model.state_dict()
    assert saved["tensors"].keys() == state.keys()
    assert saved["shapes"] == {tensor.name: tensor.shape for tensor, _ in manifest.masked()}
    kept = 0
    for name, tensor in saved["tensors"].items():
        if name in saved["shapes"]:
            assert tensor.layout is torch.sparse_csr
            assert tensor.crow_indices().dtype == torch.int32
            kept += tensor.values().numel()
            dense = tensor.to_dense().reshape(saved["shapes"][name])
            assert torch.equal(dense, state[name])
        else:
            assert torch.equal(tensor, state[name])
    assert kept == mask.num_kept


def test_a_kept_weight_of_zero_stays_an_entry_and_a_row_may_be_empty() -> None:
    model = nn.Linear(4, 3)
    manifest = manifest_of(model, {})
    mask = Mask.from_bools(np.array([1, 1, 0, 0] + [0] * 4 + [0, 0, 0, 1], dtype=np.bool_))
    vector = mask.scatter(np.array([0, 2, 3, 7, 8, 9], dtype=np.float32))
    weight = to_csr(manifest, mask, vector)["tensors"]["weight"]
    assert weight.values().tolist() == [0, 2, 3]
    assert weight.crow_indices().tolist() == [0, 2, 2, 3]
    assert weight.col_indices().tolist() == [0, 1, 3]


def test_a_sparse_linear_layer_computes_what_the_dense_one_does() -> None:
    model, manifest, mask = sparse("mlp", 1, 8, 8)
    tensors = saved_and_loaded(model, manifest, mask)["tensors"]
    x = samples(5, 64)
    y = x
    for layer in (1, 3, 5):
        weight, bias = tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]
        before = y
        y = (weight @ before.T).T + bias
        torch.testing.assert_close(functional.linear(before, weight) + bias, y, rtol=0, atol=1e-6)
        if layer < 5:
            y = functional.relu(y)
    expected = model(x.reshape(5, 1, 8, 8))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)
