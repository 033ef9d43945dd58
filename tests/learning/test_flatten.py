import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import ModelError
from ssfl.learning.flatten import initial_weights, masked_parameters, read_vector, write_vector
from ssfl.method.errors import ManifestError
from ssfl.method.initialize import initial_vector
from ssfl.method.streams import Stream

CHANNELS_LAST = torch.channels_last


class Small(nn.Module):
    """Two linear layers around a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(2, 3), nn.BatchNorm1d(3)
        self.second = nn.Linear(3, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.norm(self.first(x)))
        return out


def statistics(model: Small) -> tuple[int, list[float]]:
    """Return how many batches the norm has seen, and its running variance."""
    counter, variance = model.norm.num_batches_tracked, model.norm.running_var
    assert counter is not None and variance is not None
    return int(counter), variance.tolist()


def test_the_order_is_masked_then_dense_then_buffers() -> None:
    model = Small()
    with torch.no_grad():
        for value, tensor in enumerate([*model.parameters(), *model.buffers()]):
            tensor.fill_(value)
    vector = read_vector(model, manifest_of(model, {}))
    # 0: first weight, 4: second weight; 1 bias, 2 scale, 3 shift; 5 and 6 running statistics.
    assert vector.tolist() == [0] * 6 + [4] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [5] * 3 + [6] * 3


def test_any_bits_survive_the_way_into_a_model_and_back() -> None:
    model = Small()
    manifest = manifest_of(model, {})
    bits = (Stream(0, "bits").words(manifest.size) >> np.uint64(32)).astype(np.uint32)
    bits[:4] = [0x7FC01234, 0x80000000, 0x00000001, 0xFF800000]  # NaN, -0.0, subnormal, -inf
    vector = bits.view(np.float32)
    write_vector(model, manifest, vector)
    assert read_vector(model, manifest).tobytes() == vector.tobytes()


def test_batch_statistics_travel_but_counters_do_not() -> None:
    model = Small()
    manifest = manifest_of(model, {})
    model(torch.rand(8, 2, generator=torch.Generator().manual_seed(0)))
    vector = read_vector(model, manifest)
    assert vector.size == 9 + 9 + 6
    other = Small()
    write_vector(other, manifest, vector)
    assert statistics(model)[0] == 1 and statistics(other)[0] == 0
    assert statistics(model)[1] == statistics(other)[1]


def test_the_vector_is_a_copy_and_may_be_read_only() -> None:
    model = Small()
    manifest = manifest_of(model, {})
    vector = read_vector(model, manifest)
    before = vector.copy()
    with torch.no_grad():
        model.first.weight.add_(1)
    np.testing.assert_array_equal(vector, before)
    vector.flags.writeable = False
    write_vector(model, manifest, vector)
    with torch.no_grad():
        model.first.weight.add_(1)
    np.testing.assert_array_equal(vector, before)


def test_strided_tensors_are_read_row_by_row() -> None:
    model = nn.Conv2d(2, 2, 2, bias=False)
    model.weight = nn.Parameter(model.weight.detach().contiguous(memory_format=CHANNELS_LAST))
    assert not model.weight.is_contiguous()
    manifest = manifest_of(model, {})
    vector = np.arange(16, dtype=np.float32)
    write_vector(model, manifest, vector)
    assert read_vector(model, manifest).tolist() == vector.tolist()
    assert model.weight[1, 0, 1, 1] == 11


def test_masked_parameters_come_with_their_places() -> None:
    model = Small()
    places = list(masked_parameters(model, manifest_of(model, {})))
    assert [place for _, place in places] == [slice(0, 6), slice(6, 9)]
    assert places[0][0] is model.first.weight and places[1][0] is model.second.weight


def test_a_model_of_another_manifest_is_refused() -> None:
    manifest = manifest_of(Small(), {})
    with pytest.raises(ModelError, match=r"no tensor first\.weight"):
        read_vector(nn.Linear(2, 3), manifest)
    wider = Small()
    wider.first = nn.Linear(5, 3)
    with pytest.raises(ModelError, match=r"first\.weight has shape \(3, 5\)"):
        read_vector(wider, manifest)
    with pytest.raises(ManifestError, match="shape"):
        write_vector(Small(), manifest, np.zeros(3, dtype=np.float32))


def test_only_tensors_without_a_rule_start_with_the_models_values() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.PReLU())
    manifest = manifest_of(model, {})
    assert not manifest.rebuildable
    started = manifest.unflatten(initial_weights(model, manifest, seed=3))
    rebuilt = manifest.unflatten(initial_vector(manifest, seed=3))
    assert np.array_equal(started["0.weight"], rebuilt["0.weight"])
    assert started["0.weight"].any() and not started["0.bias"].any()
    assert started["1.weight"].tolist() == [0.25]
