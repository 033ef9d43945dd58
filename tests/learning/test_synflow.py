import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from torch import Tensor, nn

from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import ModelError
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.models import build_model
from ssfl.learning.synflow import synflow_scores
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import top_k

Doubles = npt.NDArray[np.float64]


def started(model: nn.Module, seed: int = 0) -> tuple[nn.Module, Manifest]:
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed))
    return model, manifest


def chain(*widths: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(widths)))


def path_sums(matrices: Sequence[Doubles]) -> list[Doubles]:
    """Return for each weight the sum of the products of |weights| over all paths through it."""
    sums = []
    for layer, matrix in enumerate(matrices):
        before = np.ones(matrices[0].shape[1])  # what reaches each unit from inputs of one
        for earlier in matrices[:layer]:
            before = np.abs(earlier) @ before
        after = np.ones(matrices[-1].shape[0])  # what each unit gives to the sum of the outputs
        for later in reversed(matrices[layer + 1 :]):
            after = np.abs(later).T @ after
        sums.append(np.abs(matrix) * np.outer(after, before))
    return sums


def matrices_of(model: nn.Module) -> list[Doubles]:
    return [p.detach().double().numpy() for p in model.parameters()]


def as_returned(flows: Doubles) -> Doubles:
    return np.asarray(1 + np.log(flows) - np.log(flows.min()))


def test_two_layers_by_hand() -> None:
    """Inputs (1, 1), weights ((1, -2), (3, 0.5)), then (2, -4).

    Paths: 1*2, 2*2, 3*4, 0.5*4. Through the last weights flow 2+4 and 12+2.
    """
    model = chain(2, 2, 1)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.array([1, -2, 3, 0.5, 2, -4], dtype=np.float32))
    scores = synflow_scores(model, manifest, (2,), num_kept=6, iterations=1)
    wanted = as_returned(np.array([2, 4, 12, 2, 6, 14]))
    np.testing.assert_allclose(scores, wanted, rtol=1e-6)
    scores = synflow_scores(model, manifest, (2,), num_kept=3, iterations=1)
    assert np.flatnonzero(scores).tolist() == [2, 4, 5]
    np.testing.assert_allclose(scores[[2, 4, 5]], as_returned(np.array([12, 6, 14])), rtol=1e-6)


def test_a_chain_of_linear_layers_has_the_scores_of_the_path_sums() -> None:
    model, manifest = started(chain(5, 7, 6, 3))
    scores = synflow_scores(model, manifest, (5,), manifest.num_masked, iterations=1)
    flows = np.concatenate([layer.reshape(-1) for layer in path_sums(matrices_of(model))])
    np.testing.assert_allclose(scores, as_returned(flows), rtol=1e-6)


def test_rectifiers_and_dropout_do_not_change_the_scores() -> None:
    """With inputs of ones and positive weights, rectifiers cut nothing off."""
    plain, manifest = started(chain(5, 7, 3))
    rectified = nn.Sequential(plain[0], nn.ReLU(), nn.Dropout(0.5), plain[1])  # type: ignore[index]
    scores = synflow_scores(plain, manifest, (5,), 20, iterations=3)
    same = synflow_scores(rectified, manifest_of(rectified, {}), (5,), 20, iterations=3)
    assert scores.tobytes() == same.tobytes()


def test_pruned_weights_carry_no_flow() -> None:
    """Compute four iterations: score by path sums, keep the largest, set the others to 0."""
    model, manifest = started(chain(6, 8, 8, 4))
    matrices, size, num_kept = matrices_of(model), manifest.num_masked, 16
    counts = [round(size * (num_kept / size) ** (t / 4)) for t in (1, 2, 3, 4)]
    assert counts == [83, 48, 28, 16]  # of 144: a ninth in the end, so 0.577 each time
    for count in counts:
        flows = np.concatenate([layer.reshape(-1) for layer in path_sums(matrices)])
        kept = np.zeros(size, dtype=np.bool_)
        kept[np.argsort(-flows, kind="stable")[:count]] = True
        ends = np.cumsum([matrix.size for matrix in matrices])[:-1]
        parts = zip(matrices, np.split(kept, ends), strict=True)
        matrices = [matrix * part.reshape(matrix.shape) for matrix, part in parts]
    scores = synflow_scores(model, manifest, (6,), num_kept, iterations=4)
    np.testing.assert_array_equal(scores > 0, kept)
    np.testing.assert_allclose(scores[kept], as_returned(flows[kept]), rtol=1e-6)
    at_once = synflow_scores(model, manifest, (6,), num_kept, iterations=1)
    assert ((at_once > 0) != kept).any()


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_top_k_of_the_scores_is_the_mask(share: float) -> None:
    model, manifest = started(build_model("cnn-small", (1, 14, 14), 10))
    num_kept = round(share * manifest.num_masked)
    scores = synflow_scores(model, manifest, (1, 14, 14), num_kept, iterations=10)
    assert scores.dtype == np.float32 and scores.shape == (manifest.num_masked,)
    np.testing.assert_array_equal(top_k(scores, num_kept).bools(), scores > 0)
    assert np.count_nonzero(scores) == num_kept


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_resnet_at_99_per_cent_keeps_something_in_every_layer(norm: str) -> None:
    model, manifest = started(build_model("resnet20", (3, 16, 16), 10, norm=norm))
    before = read_vector(model, manifest)
    num_kept = manifest.num_masked // 100
    scores = synflow_scores(model, manifest, (3, 16, 16), num_kept)
    assert np.isfinite(scores).all() and np.count_nonzero(scores) == num_kept
    kept = top_k(scores, num_kept).kept_by_tensor(manifest)
    assert min(count for count, _ in kept.values()) >= 1
    assert read_vector(model, manifest).tobytes() == before.tobytes()
    assert not any(module._forward_hooks for module in model.modules())
    assert all(module.training for module in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_norms_are_skipped() -> None:
    plain, manifest = started(chain(5, 8, 3))
    norms = (nn.BatchNorm1d(8), nn.GroupNorm(2, 8), nn.LayerNorm(8), nn.RMSNorm(8))
    for norm in norms:
        normed = nn.Sequential(plain[0], norm, plain[1])  # type: ignore[index]
        for parameter in norm.parameters():
            nn.init.constant_(parameter, 7.0)
        same = synflow_scores(normed, manifest_of(normed, {}), (5,), 10, iterations=2)
        assert same.tobytes() == synflow_scores(plain, manifest, (5,), 10, iterations=2).tobytes()


def test_a_deep_network_beyond_float32_is_ordered() -> None:
    """60 layers of 64: the sum over paths is about 1e55, beyond float32's 3e38."""
    model, manifest = started(chain(*[64] * 61))
    flows = np.concatenate([layer.reshape(-1) for layer in path_sums(matrices_of(model))])
    assert flows.max() > float(np.finfo(np.float32).max)
    scores = synflow_scores(model, manifest, (64,), manifest.num_masked, iterations=1)
    np.testing.assert_allclose(scores, as_returned(flows), rtol=1e-6)


def test_a_network_beyond_float64_is_refused() -> None:
    model = chain(*[2] * 13)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.full(manifest.size, 1e30, dtype=np.float32))
    with pytest.raises(ModelError, match="exceed the range of float64: the model is too deep"):
        synflow_scores(model, manifest, (2,), 4)


def test_weights_without_flow_are_pruned_first_and_rank_below_all_others() -> None:
    model = chain(2, 2, 1)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.array([0, 0, 1, 1, 1, 1], dtype=np.float32))
    assert np.flatnonzero(synflow_scores(model, manifest, (2,), 3)).tolist() == [2, 3, 5]
    scores = synflow_scores(model, manifest, (2,), 5, iterations=1)
    wanted = [0.5, 0.5, 1, 1, 0, 1 + math.log(2)]  # of three without flow the first two stay
    np.testing.assert_allclose(scores, wanted, rtol=1e-6)
    write_vector(model, manifest, np.zeros(6, dtype=np.float32))
    assert synflow_scores(model, manifest, (2,), 2).tolist() == [0.5, 0.5, 0, 0, 0, 0]


def test_a_pruned_weight_does_not_return_for_one_that_lost_its_flow() -> None:
    """Ten inputs, two units, nine outputs; all weights of unit A are 1, those of unit B are 2.

    The flow through A's weights is 9 from each input and 10 to each output. The first iteration
    keeps 28 of 38 weights and prunes A's ten input weights, so A's nine output weights lose their
    flow. The last keeps 21: B's 19 and the first two of these nine, none of the ten.
    """
    model = chain(10, 2, 9)
    manifest = manifest_of(model, {})
    weights = [1.0] * 10 + [2.0] * 10 + [1.0, 2.0] * 9
    write_vector(model, manifest, np.array(weights, dtype=np.float32))
    scores = synflow_scores(model, manifest, (10,), 21, iterations=2)
    wanted = {*range(10, 20), *range(21, 38, 2), 20, 22}
    assert set(np.flatnonzero(scores).tolist()) == wanted


def test_equal_flows_go_to_the_lowest_coordinates() -> None:
    model = chain(4, 4)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, np.ones(16, dtype=np.float32))
    assert np.flatnonzero(synflow_scores(model, manifest, (4,), 5)).tolist() == [0, 1, 2, 3, 4]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.words(x).mean(dim=1))
        return out


def test_a_model_that_does_not_accept_ones_is_refused_with_their_shape() -> None:
    model, manifest = started(Words())
    with pytest.raises(ModelError, match="ones of shape 7 through the model, which failed"):
        synflow_scores(model, manifest, (7,), 4)
    model, manifest = started(build_model("cnn", (1, 8, 8), 10))
    with pytest.raises(ModelError, match=r"ones of shape 3x8x8 through .*RuntimeError: .*channels"):
        synflow_scores(model, manifest, (3, 8, 8), 4)
    assert model.training and not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(("num_kept", "iterations"), [(0, 1), (17, 1), (4, 0)])
def test_an_impossible_number_of_weights_is_refused(num_kept: int, iterations: int) -> None:
    model, manifest = started(chain(4, 4))
    with pytest.raises(ValueError, match=f"{num_kept} of 16 weights in {iterations} iterations"):
        synflow_scores(model, manifest, (4,), num_kept, iterations)
