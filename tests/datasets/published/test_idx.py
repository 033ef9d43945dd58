import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from datasets.published.idx_files import contents, idx, images, labels
from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import SourceError
from ssfl.datasets.published.idx import FILES, read_idx, read_idx_set
from ssfl.datasets.published.originals import MissingFiles

NAMES = tuple("0123456789")


def write(folder: Path, **changes: bytes) -> Path:
    """Write the four files; `train_images=…` replaces the bytes of one."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in contents().items():
        key = "_".join(file.split("-")[:2])
        (folder / file).write_bytes(changes.get(key, data))
    return folder


def read(folder: Path) -> DataSet:
    return read_idx_set("mnist", folder, NAMES, {})


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inner", ["", "raw", "MNIST/raw"])
def test_all_spellings_and_compressions_are_read(
    tmp_path: Path, dotted: bool, packed: bool, inner: str
) -> None:
    folder = tmp_path / "schöne Zahlen" / inner
    folder.mkdir(parents=True)
    for file, data in contents().items():
        name = file.replace("-idx", ".idx") if dotted else file
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    data_set = read(tmp_path / "schöne Zahlen")
    np.testing.assert_array_equal(data_set.train_x[:, 0], images(7))
    np.testing.assert_array_equal(data_set.test_x[:, 0], images(3))
    np.testing.assert_array_equal(data_set.train_y, labels(7))
    np.testing.assert_array_equal(data_set.test_y, labels(3))
    assert (data_set.train_x.dtype.name, data_set.train_y.dtype.name) == ("uint8", "int64")
    assert (data_set.name, data_set.class_names) == ("mnist", NAMES)


def test_a_gz_file_that_a_browser_unpacked_is_read(tmp_path: Path) -> None:
    for file, data in contents().items():
        (tmp_path / f"{file}.gz").write_bytes(data)
    assert len(read(tmp_path).train_x) == 7


def test_only_a_file_with_another_checksum_gets_a_note(tmp_path: Path) -> None:
    published = {file: hashlib.md5(data).hexdigest() for file, data in contents().items()}
    published["t10k-labels-idx1-ubyte"] = "0" * 32
    for file, data in contents().items():
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress(data, compresslevel=1))
    data_set = read_idx_set("mnist", tmp_path, NAMES, published)
    assert data_set.notes == ("t10k-labels-idx1-ubyte is not the published file",)


def test_one_sample_and_no_test_samples_are_read(tmp_path: Path) -> None:
    none = np.zeros((0, 28, 28), dtype=np.uint8)
    one = {"train_images": idx(images(1)), "train_labels": idx(labels(1))}
    write(tmp_path, t10k_images=idx(none), t10k_labels=idx(labels(0)), **one)
    data_set = read(tmp_path)
    assert (data_set.train_x.shape, data_set.test_x.shape) == ((1, 1, 28, 28), (0, 1, 28, 28))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": b""}, "train-images-idx3-ubyte: the file is empty"),
        ({"train_labels": gzip.compress(b"")}, "train-labels-idx1-ubyte: the file is empty"),
        (
            {"train_images": idx(labels(7))},
            "an IDX file of bytes with 3 axes begins with 00 00 08 03, this one with 00 00 08 01",
        ),
        ({"train_labels": b"<html>404</html>"}, "this one with 3c 68 74 6d"),
        ({"train_labels": b"\0\0\x08\x01\0"}, "the file ends within its header"),
        (
            {"train_labels": idx(labels(7))[:-1]},
            "the header announces 7 bytes, but the file holds at most 6",
        ),
        (
            {"train_labels": idx(labels(7)) + b"\0"},
            "the header announces 7 bytes, but the file holds 8",
        ),
        (
            {"train_labels": gzip.compress(idx(labels(7))[:-1])},
            "the header announces 7 bytes, but the file holds only 6",
        ),
        (
            {"train_labels": gzip.compress(idx(labels(7)) + b"\0")},
            "the header announces 7 bytes, but the file holds more",
        ),
        ({"train_labels": gzip.compress(idx(labels(7)))[:-9]}, "it may be cut short"),
        (
            {"train_images": b"\0\0\x08\x03" + b"\xff" * 12},
            "announces 4294967295 x 4294967295 x 4294967295 bytes, but the file holds at most",
        ),
        (
            {"train_images": gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12)},
            "announces 4294967295 x 4294967295 x 4294967295 bytes, but the file holds at most",
        ),
        ({"train_labels": idx(labels(6))}, "7 images, "),
        ({"t10k_labels": idx(labels(4))}, "3 images, "),
        (
            {"train_labels": idx(np.array([0, 1, 2, 12, 4, 5, 6], dtype=np.uint8))},
            "label 12 of sample 3, but the classes are 0 … 9",
        ),
        (
            {"t10k_images": idx(np.zeros((3, 14, 28), dtype=np.uint8))},
            "different sizes: 28 x 28 and 14 x 28",
        ),
        (
            {
                "train_images": idx(np.zeros((0, 28, 28), dtype=np.uint8)),
                "train_labels": idx(labels(0)),
            },
            "train-images-idx3-ubyte holds no images",
        ),
        (
            {"train_images": idx(np.zeros((7, 0, 28), dtype=np.uint8))},
            "holds images of 0 x 28 pixels",
        ),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, bytes], message: str
) -> None:
    write(tmp_path, **changes)
    with pytest.raises(SourceError) as caught:
        read(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_unpacks_to_more_than_it_announces_is_refused(
    tmp_path: Path,
) -> None:
    bomb = gzip.compress(idx(labels(7)) + bytes(50_000_000))
    assert len(bomb) < 100_000
    (tmp_path / "bomb").write_bytes(bomb)
    with pytest.raises(SourceError, match="announces 7 bytes, but the file holds more"):
        read_idx(tmp_path / "bomb", axes=1)


def test_a_header_that_announces_more_than_the_file_can_unpack_to_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "lie").write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 10**8)))
    with pytest.raises(SourceError, match="announces 100000000 bytes, but the file holds at most"):
        read_idx(tmp_path / "lie", axes=1)


def test_missing_files_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / FILES[1]).unlink()
    with pytest.raises(MissingFiles) as caught:
        read(tmp_path)
    assert (caught.value.missing, caught.value.partly) == ((FILES[1],), True)
    with pytest.raises(MissingFiles) as caught:
        read(tmp_path / "nowhere")
    assert (caught.value.missing, caught.value.partly) == (FILES, False)


def test_a_path_to_one_of_the_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(SourceError, match="must be the folder with all four IDX files"):
        read(tmp_path / FILES[0])
