"""Running statistics of BatchNorm are buffers: sent, averaged exactly, never trained."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import image_task
from ssfl.learning.describe import manifest_of
from ssfl.learning.evaluate import evaluate
from ssfl.learning.flatten import read_vector, write_vector
from ssfl.learning.masked_training import train_locally
from ssfl.learning.models import build_model, smallest_side
from ssfl.learning.resnet import RESNETS, resnet
from ssfl.learning.saliency import saliency_scores, score_locally
from ssfl.method.exact_sum import VALUE_BOUND, ExactSum, fraction_bits
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest, Role
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

Vector = npt.NDArray[np.float32]
SETTINGS = RunSettings(model="resnet20", norm="batch", width=4, local_epochs=1, batch_size=16)
ONE_STEP = replace(SETTINGS, local_steps=1)
NAMES = ("running_mean", "running_var")


def started(shard: Shard) -> tuple[nn.Module, Manifest]:
    model = build_model("resnet20", shard.input_shape, shard.num_classes, norm="batch", width=4)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_vector(manifest, seed=0))
    return model, manifest


def statistics(vector: Vector, manifest: Manifest) -> Vector:
    """Return the buffers of a flat vector: they come last."""
    return vector[sum(tensor.size for tensor in manifest.tensors if tensor.role != Role.BUFFER) :]


def half(manifest: Manifest) -> Mask:
    return Mask.from_bools(Stream(0, "mask").uniform(manifest.num_masked) < 0.5)


def train(shard: Shard, settings: RunSettings, client: str = "ann") -> tuple[Vector, Manifest]:
    """Return a client's vector after a round, and its manifest."""
    model, manifest = started(shard)
    train_locally(model, manifest, half(manifest), image_task, shard, settings, 0, client)
    return read_vector(model, manifest), manifest


def test_a_running_mean_and_variance_for_every_norm_and_no_counter(shard: Shard) -> None:
    model, manifest = started(shard)
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 19
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    for norm in norms:
        rules = [
            (tensors[f"{norm}.{leaf}"].role, tensors[f"{norm}.{leaf}"].init.rule)
            for leaf in ("weight", "bias", *NAMES)
        ]
        assert rules == [
            (Role.DENSE, "ones"), (Role.DENSE, "zeros"),
            (Role.BUFFER, "zeros"), (Role.BUFFER, "ones"),
        ]  # fmt: skip
    buffers = {tensor.name for tensor in manifest.tensors if tensor.role is Role.BUFFER}
    assert buffers == {f"{norm}.{leaf}" for norm in norms for leaf in NAMES}
    assert not any("num_batches_tracked" in name for name in tensors)


def test_buffers_are_sent_and_never_masked(shard: Shard) -> None:
    _, manifest = started(shard)
    channels = 7 * 4 + 6 * 8 + 6 * 16  # of 19 norms
    assert manifest.num_masked == 4 * 9 + 6 * 4 * 4 * 9 + (4 + 5 * 8) * 8 * 9 + (
        (8 + 5 * 16) * 16 * 9 + 16 * shard.num_classes
    )
    assert manifest.num_unmasked == 4 * channels + shard.num_classes
    mask, initial = half(manifest), initial_vector(manifest, seed=0)
    sent = mask.gather(initial)
    assert sent.size == mask.num_kept + manifest.num_unmasked
    assert sent[-2 * channels :].tolist() == statistics(initial, manifest).tolist()


def test_a_step_moves_the_statistics_a_tenth_of_the_way_to_those_of_its_batch(
    shard: Shard,
) -> None:
    vector, manifest = train(shard, ONE_STEP)
    named = manifest.unflatten(vector)
    first = manifest.unflatten(initial_vector(manifest, seed=0))
    kept = half(manifest).bools()[: first["conv1.weight"].size].reshape(4, 1, 3, 3)
    batch = shard.train_x[Stream(0, "batches", 0, "ann", 0).permutation(50)[:16]]
    weight = torch.from_numpy(first["conv1.weight"] * kept)
    out = functional.conv2d(torch.from_numpy(batch), weight, padding=1)  # (16, 4, 8, 8)
    mean, variance = out.mean(dim=(0, 2, 3)), out.var(dim=(0, 2, 3))
    np.testing.assert_allclose(named["norm1.running_mean"], 0.1 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(named["norm1.running_var"], 0.9 + 0.1 * variance, rtol=1e-4)


def test_neither_scoring_nor_testing_changes_the_statistics(shard: Shard) -> None:
    model, manifest = started(shard)
    trained, _ = train(shard, SETTINGS)
    write_vector(model, manifest, trained)
    model.train()
    score_locally(model, manifest, image_task, shard, SETTINGS, "ann")
    evaluate(model, image_task, shard)
    assert read_vector(model, manifest).tobytes() == trained.tobytes()
    assert all(module.training for module in model.modules())


def test_scores_use_the_statistics_of_the_batch(shard: Shard) -> None:
    model, manifest = started(shard)
    x, y = torch.from_numpy(shard.train_x[:16]), torch.from_numpy(shard.train_y[:16])
    scores = saliency_scores(model, manifest, image_task, x, y)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = None
    parameters = dict(model.named_parameters())
    masked = [parameters[tensor.name] for tensor, _ in manifest.masked()]
    gradients = torch.autograd.grad(image_task.loss(model, x, y), masked)
    expected = [(g * w).abs().flatten() for g, w in zip(gradients, masked, strict=True)]
    assert scores.tobytes() == torch.cat(expected).detach().numpy().tobytes()


def test_the_same_round_gives_the_same_statistics_and_another_client_others(shard: Shard) -> None:
    (ann, manifest), (again, _), (bob, _) = (
        train(shard, SETTINGS, client) for client in ("ann", "ann", "bob")
    )
    assert ann.tobytes() == again.tobytes()
    initial = statistics(initial_vector(manifest, seed=0), manifest)
    assert np.all(statistics(ann, manifest) != initial)
    assert np.all(statistics(ann, manifest) != statistics(bob, manifest))


def test_statistics_are_averaged_by_samples_exactly(shard: Shard) -> None:
    parts = {"ann": slice(0, 7), "bob": slice(7, 20), "cyd": slice(20, 50)}
    uploads = []
    for client, part in parts.items():
        own = Shard(shard.train_x[part], shard.train_y[part], shard.test_x, shard.test_y, 4)
        vector, manifest = train(own, SETTINGS, client)
        uploads.append((half(manifest).gather(vector), own.num_samples))
    bits = fraction_bits(VALUE_BOUND, 50)
    total = ExactSum(uploads[0][0].size, bits)
    for values, weight in uploads:
        total.fold(values, weight)
    count = statistics(vector, manifest).size
    assert count == 2 * (7 * 4 + 6 * 8 + 6 * 16)
    for place, mean in enumerate(total.mean()[-count:], start=-count):
        on_grid = sum(
            weight * round(Fraction(float(values[place])) * 2**bits) for values, weight in uploads
        )
        assert nearest(mean, Fraction(on_grid, 50 * 2**bits)), place


def nearest(rounded: np.float32, exact: Fraction) -> bool:
    """Return True if no other float32 is nearer to the exact mean."""
    distance = abs(Fraction(float(rounded)) - exact)
    around = [np.nextafter(rounded, np.float32(limit)) for limit in (-np.inf, np.inf)]
    return all(distance <= abs(Fraction(float(other)) - exact) for other in around)


def test_a_last_batch_of_one_sample_is_trained_like_any_other(shard: Shard) -> None:
    """50 samples are seven batches of 7 and one of 1, whose 2x2 pixels are enough for BatchNorm."""
    side = smallest_side("resnet20", "batch")
    tiny = Shard(
        shard.train_x[:, :, :side, :side], shard.train_y,
        shard.test_x[:, :, :side, :side], shard.test_y, 4,
    )  # fmt: skip
    seven = replace(SETTINGS, batch_size=7)
    whole, manifest = train(tiny, seven)
    but_one, _ = train(tiny, replace(seven, local_steps=7))
    assert np.isfinite(whole).all()
    assert np.all(statistics(whole, manifest) != statistics(but_one, manifest))


def test_smaller_images_than_batch_norm_takes_would_fail_on_one_sample() -> None:
    """This is why the smallest image of BatchNorm is a pixel larger than that of GroupNorm."""
    design = RESNETS["resnet20"]
    model = resnet(design, 1, 4, "batch", 4).train()
    side = smallest_side("resnet20", "group")
    assert model(torch.zeros(2, 1, side, side)).shape == (2, 4)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        model(torch.zeros(1, 1, side, side))
