import sys

import numpy as np
import pytest

from ssfl.datasets.errors import SourceError
from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.shard_file import class_counts


def test_digits_are_8x8_images_with_pixels_between_zero_and_one() -> None:
    whole = digits()
    assert whole.input_shape == (1, 8, 8) and whole.num_classes == 10
    assert whole.train_x.dtype == np.float32 and whole.train_y.dtype == np.int64
    assert (whole.train_x.min(), whole.train_x.max()) == (0.0, 1.0)
    assert len(whole.train_y) + len(whole.test_y) == 1797
    assert whole.class_names == tuple("0123456789")


def test_one_in_five_samples_of_every_class_is_for_testing() -> None:
    whole = digits()
    train, test = class_counts(whole.train_y), class_counts(whole.test_y)
    assert all(test[label] == (train[label] + test[label]) // 5 for label in range(10))


def test_the_split_depends_only_on_the_seed() -> None:
    first, again, other = digits(seed=1), digits(seed=1), digits(seed=2)
    np.testing.assert_array_equal(first.test_x, again.test_x)
    assert not np.array_equal(first.test_x, other.test_x)


def test_the_digits_are_read_without_importing_scikit_learn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert digits().num_classes == 10


def test_the_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    read = digits()
    monkeypatch.setattr("ssfl.datasets.published.digits._FILE", "elsewhere")
    loaded = digits()
    for name in ("train_x", "train_y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(read, name), getattr(loaded, name), strict=True)


def test_without_scikit_learn_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(SourceError, match=r"pip install 'ssfl\[data\]'"):
        digits()
