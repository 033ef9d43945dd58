"""The layer that scales pixels is part of the network, and not of what a run trains and sends."""

import numpy as np
import pytest
import torch

from ssfl.learning.describe import manifest_of
from ssfl.learning.errors import ModelError
from ssfl.learning.export import to_csr, to_onnx
from ssfl.learning.flatten import initial_weights, read_vector, write_vector
from ssfl.learning.models import build_model
from ssfl.learning.normalize import Normalize
from ssfl.learning.synflow import synflow_scores
from ssfl.method.image_settings import STATISTICS
from ssfl.method.mask import Mask
from ssfl.method.settings import MODELS

SHAPE = (3, 32, 32)


def test_a_pixel_loses_the_mean_of_its_channel_and_is_divided_by_its_deviation() -> None:
    x = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]])  # two channels of 1x2 pixels
    assert Normalize("1:2/0.5:4")(x).tolist() == [[[[0.0, 2.0]], [[0.25, 0.5]]]]
    assert Normalize("1/2")(x).tolist() == [[[[0.0, 0.5]], [[1.0, 1.5]]]]


@pytest.mark.parametrize("name", MODELS)
def test_a_normalized_network_has_the_manifest_of_the_plain_one(name: str) -> None:
    with torch.device("meta"):
        plain = build_model(name, SHAPE, 10)
        scaled = build_model(name, SHAPE, 10, normalize="cifar10")
    assert manifest_of(scaled, {}) == manifest_of(plain, {})
    extra = {"normalize.mean", "normalize.std"}
    assert set(scaled.state_dict()) == set(plain.state_dict()) | extra
    assert [name for name, _ in scaled.named_parameters()] == [
        name for name, _ in plain.named_parameters()
    ]


def test_the_network_computes_the_plain_network_of_scaled_images() -> None:
    plain = build_model("resnet8", SHAPE, 10, width=4)
    scaled = build_model("resnet8", SHAPE, 10, width=4, normalize="cifar10")
    manifest = manifest_of(plain, {})
    vector = initial_weights(plain, manifest, 1)
    write_vector(plain, manifest, vector)
    write_vector(scaled, manifest, vector)
    x = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    mean, std = (
        torch.tensor([float(number) for number in part.split(":")]).view(3, 1, 1)
        for part in STATISTICS["cifar10"].split("/")
    )
    assert torch.equal(scaled(x), plain((x - mean) / std))
    assert not torch.allclose(scaled(x), plain(x), atol=1e-3)
    assert np.array_equal(read_vector(scaled, manifest), vector)


def test_auto_scales_images_of_the_paper_and_no_others() -> None:
    with torch.device("meta"):
        assert isinstance(build_model("cnn", SHAPE, 10, normalize="auto")[0], Normalize)  # type: ignore[index]
        assert (
            "normalize.mean" not in build_model("cnn", (1, 8, 8), 10, normalize="auto").state_dict()
        )


def test_statistics_of_other_channels_are_refused() -> None:
    with pytest.raises(ModelError, match="has numbers for 3 channels, the images have 1"):
        build_model("cnn", (1, 28, 28), 10, normalize="cifar10")


def test_synflow_passes_its_ones_by_the_layer() -> None:
    plain = build_model("cnn-small", SHAPE, 10, width=2)
    scaled = build_model("cnn-small", SHAPE, 10, width=2, normalize="0.9/0.01")
    manifest = manifest_of(plain, {})
    for model in (plain, scaled):
        write_vector(model, manifest, initial_weights(plain, manifest, 1))
    ours, theirs = (synflow_scores(m, manifest, SHAPE, 50, 3) for m in (scaled, plain))
    assert np.array_equal(ours, theirs)


def test_an_exported_network_takes_plain_pixels() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = build_model("cnn-small", SHAPE, 10, width=2, normalize="0.2:0.4:0.6/0.25:0.5:0.125")
    manifest = manifest_of(model, {"normalize": "0.2:0.4:0.6/0.25:0.5:0.125"})
    write_vector(model, manifest, vector := initial_weights(model, manifest, 1))
    x = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(to_onnx(model, x[:2], {}))
    (y,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(y, model(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    csr = to_csr(manifest, Mask.full(manifest.num_masked), vector)["tensors"]
    assert torch.equal(csr["normalize.std"], model.state_dict()["normalize.std"])
