"""Random crops and flips: arithmetic, draws, and where they apply."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning import augment, image_task
from ssfl.learning.augment import crop_and_flip, scoring_crops, training_crops
from ssfl.learning.describe import manifest_of
from ssfl.learning.evaluate import evaluate
from ssfl.learning.flatten import initial_weights, read_vector, write_vector
from ssfl.learning.grasp import grasp_locally
from ssfl.learning.masked_training import personal_settings, train_locally
from ssfl.learning.saliency import score_locally
from ssfl.method.mask import Mask
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

IMAGE = np.arange(1, 13, dtype=np.float32).reshape(1, 2, 2, 3)  # two channels of 2x3 pixels


def cropped(row: int, column: int, flipped: int) -> list[list[float]]:
    """Return the first channel of the image, cropped and flipped."""
    out = crop_and_flip(IMAGE, np.array([[row, column, flipped]]))
    assert out.shape == IMAGE.shape and out.dtype == np.float32
    assert np.array_equal(out[0, 1] - 6 * (out[0, 1] > 0), out[0, 0]), "both channels move alike"
    pixels: list[list[float]] = out[0, 0].tolist()
    return pixels


def test_the_crop_in_the_middle_is_the_image() -> None:
    assert cropped(4, 4, 0) == [[1, 2, 3], [4, 5, 6]]
    assert cropped(4, 4, 1) == [[3, 2, 1], [6, 5, 4]]


def test_a_crop_beside_the_image_has_zeros() -> None:
    assert cropped(3, 4, 0) == [[0, 0, 0], [1, 2, 3]]
    assert cropped(5, 4, 0) == [[4, 5, 6], [0, 0, 0]]
    assert cropped(4, 3, 0) == [[0, 1, 2], [0, 4, 5]]
    assert cropped(4, 6, 0) == [[3, 0, 0], [6, 0, 0]]
    assert cropped(0, 0, 1) == [[0, 0, 0], [0, 0, 0]]


def test_the_crop_is_flipped_and_not_the_image() -> None:
    assert cropped(4, 3, 1) == [[2, 1, 0], [5, 4, 0]]


def test_every_image_has_its_own_crop() -> None:
    both = crop_and_flip(np.concatenate([IMAGE, IMAGE]), np.array([[4, 4, 0], [3, 4, 1]]))
    assert both[0, 0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert both[1, 0].tolist() == [[0, 0, 0], [3, 2, 1]]
    assert IMAGE[0, 0, 0, 0] == 1, "the images are not changed"


def test_all_places_and_both_sides_are_drawn_equally_often() -> None:
    count = 20_000
    crops = training_crops(RunSettings(), 0, "a", 1, count)
    assert crops.shape == (count, 3)
    for column, places in enumerate((9, 9, 2)):
        drawn = Counter(crops[:, column].tolist())
        assert sorted(drawn) == list(range(places))
        assert max(drawn.values()) < 1.1 * count / places


def test_the_draws_differ_by_seed_round_client_step_and_purpose() -> None:
    settings, others = RunSettings(seed=1), RunSettings(seed=2)
    draws = [
        training_crops(settings, 3, "a", 1, 16),
        training_crops(others, 3, "a", 1, 16),
        training_crops(settings, 4, "a", 1, 16),
        training_crops(settings, 3, "b", 1, 16),
        training_crops(settings, 3, "a", 2, 16),
        scoring_crops(settings, 3, "a", 1, 16),
    ]
    assert len({draw.tobytes() for draw in draws}) == len(draws)
    assert np.array_equal(draws[0], training_crops(settings, 3, "a", 1, 16))
    assert draws[0][:3].tolist() == [[6, 2, 1], [7, 8, 0], [3, 7, 0]], "the bits of stored runs"


# ---- where they apply

SETTINGS = RunSettings(model="cnn-small", augment="crop-flip", batch_size=8, local_epochs=1, seed=3)


def images(count: int = 20, side: int = 8) -> Shard:
    stream = Stream(1, "augmented images")
    x = stream.uniform(count * side * side).astype(np.float32).reshape(count, 1, side, side)
    y = np.arange(count, dtype=np.int64) % 4
    cut = count * 3 // 4
    return Shard(x[:cut], y[:cut], x[cut:], y[cut:], num_classes=4)


def trained(settings: RunSettings, shard: Shard, client: str = "a", number: int = 0) -> np.ndarray:
    model = image_task.build_model(settings, shard)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_weights(model, manifest, 3))
    mask = Mask.full(manifest.num_masked)
    train_locally(model, manifest, mask, image_task, shard, settings, number, client)
    return read_vector(model, manifest)


def test_training_on_augmented_images_equals_training_on_images_that_were_cropped_before() -> None:
    """One client, one step: its batch is a permutation of all its samples."""
    shard = images(10)
    settings = replace(SETTINGS, batch_size=7)
    order = Stream(3, "batches", 5, "a", 0).permutation(7)
    x = shard.train_x[:7].copy()
    x[order] = crop_and_flip(x[order], training_crops(settings, 5, "a", 1, 7))
    before = replace(shard, train_x=x, train_y=shard.train_y[:7])
    plain = replace(shard, train_x=shard.train_x[:7], train_y=shard.train_y[:7])
    given = trained(replace(settings, augment="none"), before, number=5)
    assert np.array_equal(trained(settings, plain, number=5), given)
    assert not np.array_equal(trained(replace(settings, augment="none"), plain, number=5), given)


def test_a_personal_model_is_trained_on_augmented_images_too() -> None:
    settings = personal_settings(replace(SETTINGS, personalize_epochs=1))
    shard = images()
    plain = replace(settings, augment="none")
    assert not np.array_equal(trained(settings, shard), trained(plain, shard))


def test_only_training_is_augmented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores and tests are the same with and without augmentation."""
    shard = images()
    model = image_task.build_model(SETTINGS, shard)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_weights(model, manifest, 3))
    plain = replace(SETTINGS, augment="none")
    for score in (score_locally, grasp_locally):
        ours, theirs = (
            score(model, manifest, image_task, shard, settings, "a", num_batches=3)
            for settings in (SETTINGS, plain)
        )
        assert np.array_equal(ours, theirs)

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(augment, "_draw", refuse)
    evaluate(model, image_task, shard)


@pytest.mark.parametrize("score", [score_locally, grasp_locally])
def test_scores_of_augmented_minibatches_are_those_of_images_cropped_before(score: object) -> None:
    shard = images(10)
    settings = replace(SETTINGS, scoring_augment=True, batch_size=16)
    model = image_task.build_model(settings, shard)
    manifest = manifest_of(model, {})
    write_vector(model, manifest, initial_weights(model, manifest, 3))
    x = crop_and_flip(shard.train_x, scoring_crops(settings, 2, "a", 0, 7))
    before, plain = replace(shard, train_x=x), replace(settings, scoring_augment=False)
    assert callable(score)
    ours = score(model, manifest, image_task, shard, settings, "a", 2)
    assert np.array_equal(ours, score(model, manifest, image_task, before, plain, "a", 2))
    assert not np.array_equal(ours, score(model, manifest, image_task, shard, plain, "a", 2))
