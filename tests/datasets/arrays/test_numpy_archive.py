from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import SourceError
from ssfl.datasets.source import SourceOptions, read_source
from ssfl.method.streams import Stream

Array = np.ndarray[Any, np.dtype[Any]]


def pixels(*shape: int, seed: int = 0) -> Array:
    flat = Stream(seed, "arrays").uniform(int(np.prod(shape))) * 256
    return flat.astype(np.uint8).reshape(shape)


def read(path: Path, options: dict[str, Any] | None = None, /, **arrays: Any) -> DataSet:
    np.savez(path / "my.npz", **arrays)
    return read_source(SourceOptions(source=str(path / "my.npz"), **(options or {})))


def error_of(path: Path, options: dict[str, Any] | None = None, /, **arrays: Any) -> str:
    with pytest.raises(SourceError) as caught:
        read(path, options, **arrays)
    assert str(caught.value).startswith(f"{path / 'my.npz'}: ")
    return str(caught.value).removeprefix(f"{path / 'my.npz'}: ")


X, Y = pixels(6, 5, 4), np.array([0, 1, 2, 2, 1, 0])
TEST_X, TEST_Y = pixels(3, 5, 4, seed=1), np.array([2, 0, 1])


@pytest.mark.parametrize(
    "names",
    [
        *(("x_train", "y_train", "x_test", "y_test"), ("train_x", "train_y", "test_x", "test_y")),
        *(("X_train", "Y_train", "X_test", "Y_test"), ("X", "y", "test_X", "test_y")),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("data", "target", "test_data", "test_target"),
    ],
)
def test_usual_array_names_are_recognised(tmp_path: Path, names: tuple[str, ...]) -> None:
    arrays = dict(zip(names, (X, Y, TEST_X, TEST_Y), strict=True))
    data = read(tmp_path, **arrays)
    np.testing.assert_array_equal(data.train_x, X[:, None])
    np.testing.assert_array_equal(data.train_y, Y)
    np.testing.assert_array_equal(data.test_x, TEST_X[:, None])
    np.testing.assert_array_equal(data.test_y, TEST_Y)
    assert (data.name, data.class_names, data.notes) == ("my", ("0", "1", "2"), ())
    assert (data.train_x.dtype.name, data.train_y.dtype.name) == ("uint8", "int64")


@pytest.mark.parametrize("names", [("x", "y"), ("images", "labels"), ("data", "labels")])
def test_an_archive_without_test_arrays_has_no_test_samples(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    data = read(tmp_path, **{names[0]: X, names[1]: Y})
    assert (data.train_x.shape, data.test_x.shape) == ((6, 1, 5, 4), (0, 1, 5, 4))
    assert (data.test_y.shape, data.test_y.dtype.name) == ((0,), "int64")


def test_validation_samples_are_added_to_the_training_samples(tmp_path: Path) -> None:
    val_x = pixels(2, 5, 4, seed=2)
    data = read(
        tmp_path,
        train_images=X,
        train_labels=Y[:, None],
        val_images=val_x,
        val_labels=np.array([[1], [1]]),
        test_images=TEST_X,
        test_labels=TEST_Y[:, None],
    )
    np.testing.assert_array_equal(data.train_x[:, 0], np.concatenate([X, val_x]))
    assert data.train_y.tolist() == [*Y, 1, 1]
    assert data.notes == ("2 validation samples were added to the training samples",)


def test_test_samples_may_come_from_a_second_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "prüf.npz", x=TEST_X, y=TEST_Y)
    data = read(tmp_path, {"test": tmp_path / "prüf.npz"}, x=X, y=Y)
    np.testing.assert_array_equal(data.test_x[:, 0], TEST_X)
    np.testing.assert_array_equal(data.test_y, TEST_Y)


def test_a_test_file_is_refused_if_missing_empty_or_different_or_not_needed(tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    with pytest.raises(SourceError, match=r"there is no file .*other\.npz \(--test\)"):
        read(tmp_path, {"test": other}, x=X, y=Y)
    np.savez(other, x=TEST_X, y=TEST_Y)
    with pytest.raises(SourceError, match="has its own test samples: remove --test"):
        read(tmp_path, {"test": other}, x=X, y=Y, x_test=TEST_X, y_test=TEST_Y)
    np.savez(other, x=TEST_X[:, :-1], y=TEST_Y)
    assert error_of(tmp_path, {"test": other}, x=X, y=Y) == (
        "x holds uint8 of shape (1, 5, 4), x of other.npz uint8 of shape (1, 4, 4): "
        "they must be the same"
    )
    np.savez(other, x=TEST_X[:0], y=TEST_Y[:0])
    with pytest.raises(SourceError, match=r"other.npz \(--test\): x holds no samples"):
        read(tmp_path, {"test": other}, x=X, y=Y)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_layout_is_inferred_from_the_axis_of_the_channels(
    tmp_path: Path, channels: int
) -> None:
    last = pixels(6, 8, 7, channels)
    first = last.transpose(0, 3, 1, 2)
    for array in (first, last, np.asfortranarray(last)):
        data = read(tmp_path, x=array, y=Y)
        np.testing.assert_array_equal(data.train_x, first)
        assert data.train_x.flags.c_contiguous


def test_an_ambiguous_layout_must_be_set(tmp_path: Path) -> None:
    both, neither = pixels(6, 3, 8, 3), pixels(6, 2, 8, 5)
    assert error_of(tmp_path, x=both, y=Y) == (
        "x has shape (6, 3, 8, 3): both the first and the last axis of an image could be channels "
        "(1, 3 or 4); use --layout nchw or --layout nhwc"
    )
    assert "neither the first nor the last axis" in error_of(tmp_path, x=neither, y=Y)
    nchw = read(tmp_path, {"layout": "nchw"}, x=both, y=Y)
    nhwc = read(tmp_path, {"layout": "nhwc"}, x=neither, y=Y)
    np.testing.assert_array_equal(nchw.train_x, both)
    np.testing.assert_array_equal(nhwc.train_x, neither.transpose(0, 3, 1, 2))
    message = error_of(tmp_path, {"layout": "nchw"}, x=X, y=Y)
    assert message == "--layout is for images of 4 axes; x has shape (6, 5, 4)"


@pytest.mark.parametrize(
    ("array", "dtype", "note"),
    [
        (X, "uint8", ""),
        (X.astype(np.uint16) * 257, "uint16", ""),
        (X.astype(">u2") * 257, "uint16", ""),
        (X.astype(np.int64), "uint8", "x holds int64 pixels 0 … 253: kept as uint8"),
        (X.astype(np.int32) * 100, "uint16", "x holds int32 pixels 0 … 25300: kept as uint16"),
        (X / 255, "float32", ""),
        ((X / 255).astype(np.float16), "float32", ""),
        ((X / 255).astype(">f8"), "float32", ""),
        (X > 127, "float32", ""),
        (
            X.astype(np.float64),
            "float32",
            "x goes up to 253; pixels are usually 0 … 1, and floats are not scaled",
        ),
    ],
)
def test_pixels_keep_the_narrowest_type(
    tmp_path: Path, array: Array, dtype: str, note: str
) -> None:
    data = read(tmp_path, x=array, y=Y)
    np.testing.assert_array_equal(data.train_x[:, 0], array.astype(dtype))
    assert (data.train_x.dtype.name, data.train_x.dtype.isnative) == (dtype, True)
    assert data.notes == ((note,) if note else ())


def test_two_axes_are_tables_or_tokens(tmp_path: Path) -> None:
    rows = np.arange(24).reshape(6, 4)
    floats = read(tmp_path, x=rows / 8, y=Y)
    np.testing.assert_array_equal(floats.train_x, (rows / 8).astype(np.float32))
    scaled = read(tmp_path, x=rows.astype(np.uint8), y=Y)
    np.testing.assert_array_equal(scaled.train_x, rows.astype(np.float32) / np.float32(255))
    assert scaled.notes == ("x holds rows of uint8: divided by 255",)
    tokens = read(tmp_path, x=rows.astype(np.int16), y=Y)
    np.testing.assert_array_equal(tokens.train_x, rows)
    assert tokens.train_x.dtype.name == "int64"
    assert tokens.notes == ("x holds rows of int16: read as token ids",)


def with_value(value: float, dtype: str = "float64") -> Array:
    array = np.ones((6, 5, 4), dtype=dtype)
    array[4, 2, 3] = value
    return array


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (with_value(np.nan), "x holds NaN or infinity, first in sample 4"),
        (with_value(-np.inf, "float32"), "x holds NaN or infinity, first in sample 4"),
        (with_value(1e300), "x holds a number too large for float32, first in sample 4"),
        (with_value(-3, "int64"), "x holds int64 pixels -3 … 1; integers must fit"),
        (with_value(70_000, "int64"), "x holds int64 pixels 1 … 70000; integers must fit"),
        (np.full((6, 2), -1), "one in sample 0 is below 0 or too large; save a table as floats"),
        (np.ones(6), "x has shape (6,); samples are (N, columns)"),
        (np.ones((6, 2, 2, 2, 2)), "x has shape (6, 2, 2, 2, 2); samples are"),
        (np.ones((6, 0, 4)), "x has shape (6, 0, 4); samples are"),
        (np.array(["a"] * 6), "x holds text; samples must be numbers"),
        (np.ones((6, 2), dtype=complex), "x holds complex numbers; samples must be numbers"),
        (np.ones((6, 2), dtype="datetime64[s]"), "x holds dates; samples must be numbers"),
        (np.float32(3), "x is a single value, not one per sample"),
        (X[:5], "x has 5 samples, y 6 labels"),
    ],
)
def test_invalid_samples_are_refused_with_the_reason(
    tmp_path: Path, array: Array, message: str
) -> None:
    assert message in error_of(tmp_path, x=array, y=Y)


def test_train_and_test_pixels_get_the_wider_of_their_types(tmp_path: Path) -> None:
    dark, bright = X.astype(np.int64), TEST_X.astype(np.int64) * 16
    data = read(tmp_path, x_train=dark, y_train=Y, x_test=bright, y_test=TEST_Y)
    assert (data.train_x.dtype.name, data.test_x.dtype.name) == ("uint16", "uint16")
    np.testing.assert_array_equal(data.train_x[:, 0], dark)
    np.testing.assert_array_equal(data.test_x[:, 0], bright)


def test_train_and_test_samples_of_different_types_are_refused(tmp_path: Path) -> None:
    message = error_of(tmp_path, x_train=X, y_train=Y, x_test=TEST_X / 255, y_test=TEST_Y)
    assert "x_train holds uint8 of shape (1, 5, 4), x_test float32 of shape (1, 5, 4)" in message


@pytest.mark.parametrize(
    ("labels", "names", "classes", "note"),
    [
        ([3, 7, 3, 7, 7, -1], ("-1", "3", "7"), [1, 2, 1, 2, 2, 0], "labels -1, 3, 7 became"),
        (["b", "ä", "b", "b", "b", "ä"], ("b", "ä"), [0, 1, 0, 0, 0, 1], ""),
        ([b"no", b"yes", b"no", b"no", b"no", b"no"], ("no", "yes"), [0, 1, 0, 0, 0, 0], ""),
        ([True, False, True, True, True, True], ("false", "true"), [1, 0, 1, 1, 1, 1], ""),
        ([0, 0, 0, 0, 0, 0], ("0",), [0] * 6, ""),
        (
            np.array([5] * 6, dtype=np.uint64),
            ("5",),
            [0] * 6,
            "label 5 became class 0, the only class",
        ),
    ],
)
def test_labels_become_classes_in_sorted_order(
    tmp_path: Path, labels: Any, names: tuple[str, ...], classes: list[int], note: str
) -> None:
    data = read(tmp_path, x=X, y=np.array(labels))
    assert (data.class_names, data.train_y.tolist()) == (names, classes)
    assert data.train_y.dtype.name == "int64"
    assert len(data.notes) == bool(note)
    assert data.notes == () or data.notes[0].startswith(note)


def test_labels_that_differ_only_in_spaces_get_a_note(tmp_path: Path) -> None:
    (note,) = read(tmp_path, x=X, y=np.array(["a", "a ", "b", "b", "b", "b"])).notes
    assert note == "classes that differ only in spaces around their names: 'a', 'a '"


def test_train_and_test_share_class_numbers(tmp_path: Path) -> None:
    data = read(
        tmp_path,
        x_train=X,
        y_train=np.array([4, 4, 9, 9, 4, 4], dtype=np.uint64),
        x_test=TEST_X,
        y_test=np.array([9, 9, 4]),
    )
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 0, 1, 1, 0, 0], [1, 1, 0])
    assert data.class_names == ("4", "9")


def test_a_class_without_training_samples_is_refused(tmp_path: Path) -> None:
    message = error_of(tmp_path, x_train=X, y_train=Y, x_test=TEST_X, y_test=TEST_Y + 1)
    assert message.startswith("y_test holds labels that no training sample has: 3; remove")
    assert message.endswith("(do training labels start at 0 and test labels at 1?)")


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.bool_])
def test_one_hot_rows_are_classes(tmp_path: Path, dtype: Any) -> None:
    data = read(tmp_path, x=X, y=np.eye(4)[Y].astype(dtype))
    assert data.train_y.tolist() == Y.tolist()
    assert data.class_names == ("0", "1", "2", "3")  # class 3 has no samples
    assert data.notes == ("one-hot labels became class numbers",)


def test_floats_with_a_fraction_are_numbers_and_whole_floats_need_a_target(tmp_path: Path) -> None:
    numbers = np.array([0.5, 1, 2, 3, 4, 5])
    data = read(tmp_path, x=X, y=numbers)
    np.testing.assert_array_equal(data.train_y, numbers.astype(np.float32))
    assert (data.train_y.dtype.name, data.class_names) == ("float32", ())
    assert error_of(tmp_path, x=X, y=Y.astype(np.float64)) == (
        "y holds floats that are whole numbers: are they classes or numbers to predict? "
        "Use --target class or --target number"
    )
    as_class = read(tmp_path, {"target": "class"}, x=X, y=Y.astype(np.float64))
    assert (as_class.train_y.tolist(), as_class.num_classes) == (Y.tolist(), 3)
    as_number = read(tmp_path, {"target": "number"}, x=X, y=Y)
    assert (as_number.train_y.dtype.name, as_number.num_classes) == ("float32", 0)


@pytest.mark.parametrize(("different", "samples"), [(150, 150), (60, 60), (72, 500), (101, 5000)])
def test_integers_that_rarely_repeat_need_a_target(
    tmp_path: Path, different: int, samples: int
) -> None:
    x, y = np.zeros((samples, 2)), np.arange(samples) % different
    message = error_of(tmp_path, x=x, y=y)
    assert message.startswith(f"y holds {different} different integers in {samples:,} samples")
    assert read(tmp_path, {"target": "class"}, x=x, y=y).num_classes == different


def test_a_sample_may_have_several_numbers_to_predict(tmp_path: Path) -> None:
    numbers = np.arange(12).reshape(6, 2) / 4
    data = read(tmp_path, x=X, y=numbers)
    np.testing.assert_array_equal(data.train_y, numbers.astype(np.float32))
    assert (data.train_y.dtype.name, data.num_classes, data.test_y.shape) == ("float32", 0, (0, 2))
    whole = np.arange(12).reshape(6, 2)
    assert error_of(tmp_path, x=X, y=whole).endswith("numbers to predict: --target number")
    data = read(tmp_path, {"target": "number"}, x=X, y=whole)
    np.testing.assert_array_equal(data.train_y, whole.astype(np.float32))
    numbers[4, 1] = 1e300
    assert "of sample 4 is too large" in error_of(tmp_path, x=X, y=numbers)


@pytest.mark.parametrize(("high", "factor"), [(4093, 16), (200, 256), (16383, 4), (16384, 0)])
def test_images_that_use_few_of_16_bits_get_a_note(tmp_path: Path, high: int, factor: int) -> None:
    images = np.minimum(X, 200).astype(np.uint16)
    images[0, 0, 0] = high
    notes = " ".join(read(tmp_path, x=images, y=Y).notes)
    expected = f"x goes up to {high} of 65535: {max(high.bit_length(), 8)}-bit images?"
    if factor:
        assert expected in notes and notes.endswith(f"first multiply them by {factor}")
    else:
        assert not notes


def test_integers_that_become_dark_16_bit_images_get_a_note(tmp_path: Path) -> None:
    (note,) = read(tmp_path, x=X.astype(np.int64) * 8, y=Y).notes
    assert "kept as uint16; x goes up to" in note and note.endswith("first multiply them by 32")


@pytest.mark.parametrize(
    ("labels", "target", "message"),
    [
        (np.array([0, 1, np.nan, 1, 0, 1]), "auto", "y holds NaN or infinity, first in sample 2"),
        (np.array([0.5, 1e300, 1, 1, 0, 1]), "auto", "y: 1e+300 of sample 1 is too large"),
        (np.array([0, 0.5, 1, 1, 0, 1]), "class", "y holds 0.5 in sample 1, which is not a class"),
        (np.array(["a"] * 6), "number", "--target number: y holds text, such as 'a'"),
        (np.array(["a", "", "a", "a", "a", "a"]), "auto", "the label of sample 1 is empty"),
        (np.array([b"\xff"] * 6), "auto", "y holds text that is not UTF-8"),
        (np.eye(6), "number", "--target number: y holds one-hot rows, which are classes"),
        (np.ones((6, 3)), "auto", "y has shape (6, 3) and is not one-hot (sample 0)"),
        (np.ones((6, 3, 2)), "auto", "y has shape (6, 3, 2); there must be one label per sample"),
        (np.ones(6, dtype=complex), "auto", "y holds complex128; labels are numbers or text"),
        (np.full(6, 2**64 - 1, dtype=np.uint64), "auto", "which is too large for a label"),
    ],
)
def test_invalid_labels_are_refused_with_the_reason(
    tmp_path: Path, labels: Array, target: str, message: str
) -> None:
    assert message in error_of(tmp_path, {"target": target}, x=X, y=labels)


def test_train_and_test_labels_of_different_types_are_refused(tmp_path: Path) -> None:
    message = error_of(
        tmp_path, x_train=X, y_train=Y, x_test=TEST_X, y_test=np.array(["a", "b", "c"])
    )
    assert message.startswith("the labels differ in type or shape: y_train int64 (")


def test_python_objects_are_refused(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}] * 6, dtype=object)
    assert "y holds Python objects, which are never read" in error_of(tmp_path, x=X, y=objects)


def test_one_sample_is_enough_and_zero_samples_are_refused(tmp_path: Path) -> None:
    one = read(tmp_path, x=X[:1], y=Y[:1])
    assert (one.train_x.shape, one.class_names) == ((1, 1, 5, 4), ("0",))
    assert error_of(tmp_path, x=X[:0], y=Y[:0]) == "x holds no samples"
    empty_test = read(tmp_path, x=X, y=Y, x_test=np.array([]), y_test=np.array([]))
    assert empty_test.test_x.shape == (0, 1, 5, 4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "no samples and labels: it holds nothing; expected x_train and y_train"),
        ({"größe": Y}, "no samples and labels: it holds größe; expected"),
        ({"x": X}, "there are no labels to go with x; expected"),
        ({"x": X, "y": Y, "y_test": TEST_Y}, "there are no samples to go with y_test; expected"),
        ({"x_test": X, "y_test": Y}, "there are no training samples; expected"),
        ({"x_val": X, "y_val": Y}, "there are no training samples; expected"),
        ({"x": X, "data": X, "y": Y}, "x and data are both samples: keep one"),
        (
            {"x": X, "y": Y, "x_train": X, "y_train": Y},
            "x and x_train are both training samples: keep one",
        ),
    ],
)
def test_an_archive_without_clear_pairs_of_samples_and_labels_is_refused(
    tmp_path: Path, arrays: dict[str, Array], message: str
) -> None:
    assert message in error_of(tmp_path, **arrays)


def test_arrays_with_other_names_are_ignored_with_a_note(tmp_path: Path) -> None:
    data = read(tmp_path, x=X, y=Y, classes=np.array(["a", "b", "c"]), größe=Y)
    assert data.notes == ("my.npz: classes, größe not used",)


def test_a_file_that_is_empty_or_not_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my.npz"
    for content, message in ((b"", "the file is empty"), (b"hello", "this is not a numpy .npz")):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=f"{path}: {message}"):
            read_source(SourceOptions(source=str(path)))
