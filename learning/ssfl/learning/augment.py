"""Random crops and flips of training images (`--augment crop-flip`).

An image gets a border of 4 zeros, is cropped back to its size at a random place, and is flipped
from left to right with probability one half. The draws of a step come from a stream that is named
by round, client and step, so that every mode of the simulator and the service take the same crops.
"""

import numpy as np
import numpy.typing as npt

from ssfl.datasets.shards.shard_file import Array, Shard
from ssfl.learning.errors import ModelError
from ssfl.method.image_settings import CROP_FLIP, resolve_augment
from ssfl.method.manifest import format_shape
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

PADDING = 4
_PLACES = 2 * PADDING + 1  # of a crop, by rows and by columns

Crops = npt.NDArray[np.int64]  # (samples, 3): first row, first column, 1 if flipped


def is_augmented(settings: RunSettings, shard: Shard) -> bool:
    """Return True if the training images of a shard are augmented."""
    augment = resolve_augment(settings.augment, shard.input_shape)
    return augment == CROP_FLIP and shard.num_classes > 0


def check_augment(settings: RunSettings, shard: Shard) -> None:
    """Raise ModelError if the settings augment samples that are not images with classes."""
    if settings.augment == CROP_FLIP and not (len(shard.input_shape) == 3 and shard.num_classes):
        what = "with classes" if shard.num_classes else "with numbers as targets"
        raise ModelError(
            f"--augment crop-flip is for images (channels, height, width) with classes; these "
            f"samples are {format_shape(shard.input_shape)} {what}: use --augment none"
        )


def training_crops(
    settings: RunSettings, round_number: int, client_id: str, step: int, count: int
) -> Crops:
    """Return the crops of a step, counted from 1 in its round, with `count` samples."""
    return _draw(Stream(settings.seed, "augment", round_number, client_id, step), count)


def scoring_crops(
    settings: RunSettings, mask_epoch: int, client_id: str, number: int, count: int
) -> Crops:
    """Return the crops of a scored minibatch, counted from 0, with `count` samples."""
    return _draw(Stream(settings.seed, "augment scoring", mask_epoch, client_id, number), count)


def _draw(stream: Stream, count: int) -> Crops:
    words = (stream.words(count) % np.uint64(2 * _PLACES**2)).astype(np.int64)
    return np.stack([words % _PLACES, words // _PLACES % _PLACES, words // _PLACES**2], axis=1)


def crop_and_flip(images: Array, crops: Crops) -> Array:
    """Return the images (samples, channels, height, width), cropped and flipped."""
    samples, channels, height, width = images.shape
    padded = np.zeros(
        (samples, channels, height + 2 * PADDING, width + 2 * PADDING), dtype=images.dtype
    )
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    out = np.empty_like(images)
    for new, image, (row, column, flipped) in zip(out, padded, crops.tolist(), strict=True):
        crop = image[:, row : row + height, column : column + width]
        new[:] = crop[:, :, ::-1] if flipped else crop
    return out
