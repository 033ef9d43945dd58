"""The run settings of images: `augment`, `normalize`, and the value `auto` of `initialization`.

The value `auto` stands for the recipe of the paper's code where the samples are images of its data
sets' shapes (CIFAR-10 and CIFAR-100: 3x32x32, Tiny-ImageNet: 3x64x64), and for the plain default
elsewhere. The coordinator has no data, so each client resolves it from the shape of its samples,
which is the same at every site of a run.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.method.errors import SettingsError

NONE, AUTO, CROP_FLIP = "none", "auto", "crop-flip"
AUGMENTATIONS = (NONE, CROP_FLIP, AUTO)
KAIMING_NORMAL, PAPER = "kaiming-normal", "paper"
INITIALIZATIONS = (KAIMING_NORMAL, "torch-default", PAPER)

# Channel means and standard deviations in the paper's code, of pixels from 0 to 1.
STATISTICS = {
    "cifar10": "0.49139968:0.48215827:0.44653124/0.24703233:0.24348505:0.26158768",
    "cifar100": "0.5071:0.4867:0.4408/0.2675:0.2565:0.2761",
}
_SMALL, _TINY_IMAGENET = (3, 32, 32), (3, 64, 64)
_HALVES = "0.5/0.5"  # for Tiny-ImageNet, the code of DisPFL, which the paper follows
_MAX_CHANNELS = 4096

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # means, standard deviations


def is_paper_image(shape: Sequence[int]) -> bool:
    """Return True if samples of this shape are images of the paper's kind."""
    return tuple(shape) in (_SMALL, _TINY_IMAGENET)


def resolve_augment(augment: str, shape: Sequence[int]) -> str:
    """Return the augmentation for samples of a shape: `none` or `crop-flip`."""
    if augment != AUTO:
        return augment
    return CROP_FLIP if is_paper_image(shape) else NONE


def resolve_initialization(initialization: str, shape: Sequence[int]) -> str:
    """Return the initialization for samples of a shape, one of INITIALIZATIONS."""
    if initialization != AUTO:
        return initialization
    return PAPER if is_paper_image(shape) else KAIMING_NORMAL


def resolve_normalize(normalize: str, shape: Sequence[int], num_classes: int) -> str:
    """Return the statistics for samples of a shape as numbers, or `none`.

    >>> resolve_normalize("auto", (3, 64, 64), 200), resolve_normalize("auto", (1, 28, 28), 10)
    ('0.5/0.5', 'none')
    """
    if normalize == AUTO and tuple(shape) == _SMALL:
        normalize = "cifar100" if num_classes == 100 else "cifar10"
    elif normalize == AUTO:
        normalize = _HALVES if is_paper_image(shape) else NONE
    return STATISTICS.get(normalize, normalize)


def parse_statistics(text: str) -> Statistics:
    """Return the means and standard deviations of "0.5:0.4:0.4/0.25:0.2:0.2" or "0.5/0.25".

    >>> parse_statistics("0.5/0.25")
    ((0.5,), (0.25,))
    """
    means, slash, deviations = text.partition("/")
    try:
        numbers = tuple(tuple(map(float, part.split(":"))) for part in (means, deviations))
        fits = len(numbers[0]) == len(numbers[1]) <= _MAX_CHANNELS
        is_finite = all(map(math.isfinite, (*numbers[0], *numbers[1])))
        # Smaller than any deviation of pixels, and still far from an overflow of float32.
        if not slash or not fits or not is_finite or min(numbers[1]) < 1e-6:
            raise ValueError
    except ValueError:
        raise SettingsError(
            f"--normalize must be none, auto, {', '.join(STATISTICS)}, or the mean and the "
            "standard deviation of each channel, such as 0.5:0.4:0.4/0.25:0.2:0.2, "
            f"got {text[:200]!r}"
        ) from None
    return numbers[0], numbers[1]


def check_normalize(normalize: str) -> None:
    """Raise SettingsError unless the value of --normalize is a word or numbers."""
    if normalize not in (NONE, AUTO, *STATISTICS):
        parse_statistics(normalize)


def constant_tensors(description: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of a network that are neither trained nor sent, by name.

    They are the statistics of its first layer, from the unchecked description in a manifest;
    empty if it has none.
    """
    try:
        means, deviations = parse_statistics(str(description["normalize"]))
    except (KeyError, SettingsError):
        return {}
    return {
        f"normalize.{name}": np.array(numbers, dtype=np.float32).reshape(-1, 1, 1)
        for name, numbers in (("mean", means), ("std", deviations))
    }
