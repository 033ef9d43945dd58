"""Tiny-ImageNet as published: 200 classes of 64 x 64 JPEGs, unpacked or in its .zip.

    wnids.txt                              the classes, by WordNet number
    words.txt                              the name of each WordNet number
    train/<wnid>/images/*.JPEG             500 of each class
    val/images/*.JPEG, val_annotations.txt 50 of each class, used as the test set

The published test images have no labels and are not used. Classes are numbered by sorted WordNet
number.
"""

import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.datasets.data_set import DataSet, Progress
from ssfl.datasets.errors import SourceError, errors_of
from ssfl.datasets.published.originals import FETCH_AGAIN, MissingFiles, read_bytes

ARCHIVE = "tiny-imagenet-200.zip"
FOLDER = "tiny-imagenet-200"
_SIDE = 64
_PUBLISHED = (100_000, 10_000)  # training and test images
_MAX_BYTES = 16 << 20  # of one member; words.txt has 2.6 MB, images a few thousand bytes
_REPORT_EVERY = 500
_IMAGE = re.compile(r"[^.].*\.jpe?g", re.IGNORECASE | re.DOTALL)
_ANNOTATIONS = "val/val_annotations.txt"

_DAMAGED = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)

Images = npt.NDArray[np.uint8]
Sample = tuple[str, int]  # name of the image in the tree, class


def read_tiny_imagenet(place: Path, on_progress: Progress | None = None) -> DataSet:
    """Return the set from its folder, the parent of its folder, or its .zip.

    Raise MissingFiles if it is missing.
    """
    with closing(_open(place)) as tree, errors_of(place):
        return _read(tree, on_progress)


def _read(tree: "_Tree", on_progress: Progress | None) -> DataSet:
    wnids = sorted({line.strip() for line in _lines(tree, "wnids.txt") if line.strip()})
    if not wnids:
        raise SourceError("wnids.txt names no classes")
    train = list(_train_samples(tree, wnids))
    test = list(_test_samples(tree, wnids))
    names = _class_names(tree, wnids)
    total = len(train) + len(test)
    train_x = _read_images(tree, train, 0, total, on_progress)
    test_x = _read_images(tree, test, len(train), total, on_progress)
    note = (
        f"{len(train):,} training and {len(test):,} test images; the published set has "
        f"{_PUBLISHED[0]:,} and {_PUBLISHED[1]:,}"
    )
    notes = (note,) if (len(train), len(test)) != _PUBLISHED else ()
    return DataSet("tiny-imagenet", train_x, _labels(train), test_x, _labels(test), names, notes)


def _open(place: Path) -> "_Tree":
    for folder in (place, place / FOLDER):
        if (folder / "wnids.txt").is_file():
            return _Tree(folder)
    for archive in (place, place / ARCHIVE):
        if archive.is_file():
            return _ZipTree(archive)
    raise MissingFiles([ARCHIVE], partly=False)


def _train_samples(tree: "_Tree", wnids: list[str]) -> Iterator[Sample]:
    for label, wnid in enumerate(wnids):
        folder = f"train/{wnid}/images"
        images = [name for name in tree.list(folder) if _IMAGE.fullmatch(name)]
        if not images:
            raise SourceError(f"{folder} holds no .JPEG images")
        yield from ((f"{folder}/{name}", label) for name in images)


def _test_samples(tree: "_Tree", wnids: list[str]) -> Iterator[Sample]:
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    for number, line in enumerate(_lines(tree, _ANNOTATIONS), start=1):
        if not line.strip():
            continue
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0].strip()
        if wnid not in label_of or "/" in name:
            raise SourceError(
                f"{_ANNOTATIONS} line {number}: expected an image and its class, got {line[:60]!r}"
            )
        yield f"val/images/{name}", label_of[wnid]


def _class_names(tree: "_Tree", wnids: list[str]) -> tuple[str, ...]:
    """Return the first name of each class, with its WordNet number if the name is not unique."""
    words = dict(line.split("\t", 1) for line in _lines(tree, "words.txt") if "\t" in line)
    first = [words.get(wnid, wnid).split(",")[0].strip() or wnid for wnid in wnids]
    return tuple(
        f"{name} ({wnid})" if first.count(name) > 1 else name
        for name, wnid in zip(first, wnids, strict=True)
    )


def _read_images(
    tree: "_Tree", samples: list[Sample], before: int, total: int, on_progress: Progress | None
) -> Images:
    try:
        from ssfl.datasets.images.files import ImageForm, decode
    except ImportError as error:
        raise SourceError("reading images needs Pillow: pip install 'ssfl[data]'") from error
    form = ImageForm(3, np.uint8, _SIDE, _SIDE, may_scale=False)
    images = np.empty((len(samples), *form.shape), dtype=np.uint8)
    for number, (name, _) in enumerate(samples):
        images[number] = decode(Path(name), form, tree.read(name))
        done = before + number + 1
        if on_progress and (done % _REPORT_EVERY == 0 or done == total):
            on_progress("reading images", done, total)
    return images


def _labels(samples: list[Sample]) -> npt.NDArray[np.int64]:
    return np.array([label for _, label in samples], dtype=np.int64)


def _lines(tree: "_Tree", name: str) -> list[str]:
    if not tree.has(name):
        raise SourceError(f"{name} is missing")
    return tree.read(name).decode("utf-8", "replace").splitlines()


class _Tree:
    """Files by name, such as `train/n01443537/images/n01443537_0.JPEG`, in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self) -> None:
        """Close the archive, if there is one."""

    def read(self, name: str) -> bytes:
        path = self._path / name
        if path.is_file() and path.stat().st_size > _MAX_BYTES:
            raise SourceError(f"{name} has more than {_MAX_BYTES:,} bytes")
        return read_bytes(path)

    def list(self, folder: str) -> list[str]:
        path = self._path / folder
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()


class _ZipTree(_Tree):
    """Files in a zip archive, read in memory; nothing is unpacked to disk."""

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
        except (OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
            raise SourceError(f"{path} cannot be unpacked ({error}): {FETCH_AGAIN}") from error
        super().__init__(path)
        names = self._archive.namelist()
        self._prefix = f"{FOLDER}/" if f"{FOLDER}/wnids.txt" in names else ""
        self._names = set(names)
        self._folders: dict[str, list[str]] = {}
        for name in sorted(names):
            folder, _, last = name.rpartition("/")
            self._folders.setdefault(folder, []).append(last)

    def read(self, name: str) -> bytes:
        if not self.has(name):
            raise SourceError(f"{name} is missing")
        try:
            member = self._archive.getinfo(self._prefix + name)
            if member.file_size > _MAX_BYTES:
                raise SourceError(f"{name} unpacks to more than {_MAX_BYTES:,} bytes")
            # zipfile stops at the announced size and checks the CRC.
            return self._archive.read(member)
        except _DAMAGED as error:
            raise SourceError(f"{name} cannot be unpacked: {error}") from error

    def list(self, folder: str) -> list[str]:
        return self._folders.get(self._prefix + folder, [])

    def has(self, name: str) -> bool:
        return self._prefix + name in self._names

    def close(self) -> None:
        self._archive.close()
