"""The default data set: 1,797 handwritten digits of 8x8 pixels, included in scikit-learn."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import SourceError
from ssfl.method.streams import Stream

NUM_CLASSES = 10
_PIXEL_MAX = 16
_TEST_EVERY = 5  # one sample in five of each class is for testing
_FILE = "datasets/data/digits.csv.gz"  # in the folder of scikit-learn


def digits(seed: int = 0) -> DataSet:
    """Return the digits: float32 pixels 0 … 1, (N, 1, 8, 8), split 80/20 in each class."""
    pixels, labels = _pixels_and_labels()
    x = (pixels / _PIXEL_MAX).astype(np.float32).reshape(-1, 1, 8, 8)
    y = labels.astype(np.int64)
    is_test = np.zeros(len(y), dtype=np.bool_)
    for label in range(NUM_CLASSES):  # the same share of every class
        samples = np.flatnonzero(y == label)
        chosen = Stream(seed, "digits", label).choose(len(samples), len(samples) // _TEST_EVERY)
        is_test[samples[chosen]] = True
    names = tuple(map(str, range(NUM_CLASSES)))
    return DataSet("digits", x[~is_test], y[~is_test], x[is_test], y[is_test], names)


def _pixels_and_labels() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read scikit-learn's file. Importing scikit-learn, as load_digits does, takes 1.5 s of CPU."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise SourceError("the digits come with scikit-learn: pip install 'ssfl[data]'")
    file = Path(package.origin).parent / _FILE
    if file.is_file():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels
