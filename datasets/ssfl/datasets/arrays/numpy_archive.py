"""Numpy archives as data sets: samples and labels under any of the usual names.

    x_train y_train x_test y_test                      Keras
    train_images train_labels val_images … test_images MedMNIST
    x y, data target, images labels                    no test samples: a share is set aside

A name is a part (train, val, test or none) and a role (samples or labels), in any order and case.
Validation samples are added to the training samples because shards set aside their own. A second
archive may hold the test samples. Nothing is unpickled.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ssfl.datasets.archive import read_archive
from ssfl.datasets.arrays.samples import read_samples
from ssfl.datasets.arrays.targets import read_targets
from ssfl.datasets.data_set import Array, DataSet
from ssfl.datasets.errors import ShardError, SourceError, errors_of
from ssfl.datasets.source import SourceOptions
from ssfl.datasets.wording import join_names

_PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_ROLES = {
    **dict.fromkeys(("x", "images", "image", "data", "features", "inputs", "samples"), "samples"),
    **dict.fromkeys(("y", "labels", "label", "targets", "target"), "labels"),
}
_USUAL = "x_train and y_train (also x_test and y_test), or x and y"


@dataclass(frozen=True)
class _Pair:
    """The samples and labels of one part, unchanged from the archive."""

    x_name: str
    y_name: str
    x: Array
    y: Array


def read_arrays(path: Path, options: SourceOptions) -> DataSet:
    """Return the data set in an archive; raise SourceError naming the file and the array."""
    with errors_of(path):
        pairs, unused = _read_pairs(path)
        pairs = {part: pair for part, pair in pairs.items() if len(pair.x) or part != "test"}
        train = [pairs[part] for part in ("", "train", "val") if part in pairs]
        if "" in pairs and "train" in pairs:
            names = f"{pairs[''].x_name} and {pairs['train'].x_name}"
            raise SourceError(f"{names} are both training samples: keep one")
        if not train or (len(train) == 1 and "val" in pairs):
            raise SourceError(f"there are no training samples; expected {_USUAL}")
        if not len(train[0].x):
            raise SourceError(f"{train[0].x_name} holds no samples")
    test = pairs.get("test")
    if options.test is not None:
        if test is not None:
            raise SourceError(f"{path} has its own test samples: remove --test")
        test = _read_test(options.test.expanduser())
    train = [pair for pair in train if len(pair.x)]
    notes = [f"{path.name}: {', '.join(unused)} not used"] if unused else []
    if "val" in pairs:
        notes.append(
            f"{len(pairs['val'].x):,} validation samples were added to the training samples"
        )
    with errors_of(path):
        return _make_data_set(path.stem, train, test, options, notes)


def _make_data_set(
    name: str, train: list[_Pair], test: _Pair | None, options: SourceOptions, notes: list[str]
) -> DataSet:
    pairs = [*train, *([test] if test else [])]
    samples = read_samples([(pair.x_name, pair.x) for pair in pairs], options.layout)
    targets = read_targets([(pair.y_name, pair.y) for pair in pairs], options.target)
    count, names = len(train), targets.class_names
    train_x, train_y = _join(samples.values[:count]), _join(targets.values[:count])
    test_x, test_y = train_x[:0], train_y[:0]
    if test:
        test_x, test_y = samples.values[count], targets.values[count]
        unknown = np.setdiff1d(test_y, train_y) if names else ()
        if len(unknown):
            raise SourceError(
                f"{test.y_name} holds labels that no training sample has: "
                f"{join_names([names[label] for label in unknown])}; remove these samples, or "
                "correct the labels (do training labels start at 0 and test labels at 1?)"
            )
    all_notes = (*notes, *samples.notes, *targets.notes)
    return DataSet(name, train_x, train_y, test_x, test_y, names, all_notes)


def _read_test(path: Path) -> _Pair:
    if not path.is_file():
        raise SourceError(f"there is no file {path} (--test)")
    with errors_of(path):
        pairs, _ = _read_pairs(path)
        if "test" not in pairs and len(pairs) != 1:
            raise SourceError(f"it is not clear which arrays are for testing: {', '.join(pairs)}")
    pair = pairs["test"] if "test" in pairs else next(iter(pairs.values()))
    if not len(pair.x):
        raise SourceError(f"{path} (--test): {pair.x_name} holds no samples")
    return _Pair(f"{pair.x_name} of {path.name}", f"{pair.y_name} of {path.name}", pair.x, pair.y)


def _read_pairs(path: Path) -> tuple[dict[str, _Pair], list[str]]:
    """Return the pairs by part ("" if the name has no part) and the names of unused arrays."""
    names = _names(path)
    chosen: dict[tuple[str, str], str] = {}
    unused = []
    for name in names:
        key = _meaning(name)
        if key is None:
            unused.append(name)
        elif key in chosen:
            raise SourceError(
                f"{chosen[key]} and {name} are both {' '.join(key).strip()}: keep one"
            )
        else:
            chosen[key] = name
    parts = sorted({part for part, _ in chosen})
    for part in parts:
        for role in ("samples", "labels"):
            if (part, role) not in chosen:
                held = ", ".join(name for key, name in chosen.items() if key[0] == part)
                raise SourceError(f"there are no {role} to go with {held}; expected {_USUAL}")
    if not parts:
        held = join_names(names) or "nothing"
        raise SourceError(f"no samples and labels: it holds {held}; expected {_USUAL}")
    try:
        arrays = read_archive(path, list(chosen.values()), [])
    except ShardError as error:
        raise SourceError(str(error)) from error
    pairs = {}
    for part in parts:
        x_name, y_name = chosen[part, "samples"], chosen[part, "labels"]
        pairs[part] = _Pair(x_name, y_name, arrays[x_name], arrays[y_name])
        _check_counts(pairs[part])
    return pairs, unused


def _names(path: Path) -> list[str]:
    try:
        read_archive(path, [], [])  # raises if the file is not an archive
        with zipfile.ZipFile(path) as archive:
            files = archive.namelist()
    except (ShardError, OSError, zipfile.BadZipFile) as error:
        raise SourceError(str(error)) from error
    return [file.removesuffix(".npy") for file in files if file.endswith(".npy")]


def _meaning(name: str) -> tuple[str, str] | None:
    """Return the part and role that a name stands for, or None if it has no such meaning."""
    words = name.lower().replace("-", "_").split("_")
    roles = [_ROLES[word] for word in words if word in _ROLES]
    parts = [_PARTS[word] for word in words if word in _PARTS]
    if len(roles) != 1 or len(parts) > 1 or len(roles) + len(parts) != len(words):
        return None
    return (parts[0] if parts else ""), roles[0]


def _check_counts(pair: _Pair) -> None:
    for name, array in ((pair.x_name, pair.x), (pair.y_name, pair.y)):
        if array.ndim == 0:
            raise SourceError(f"{name} is a single value, not one per sample")
    if len(pair.x) != len(pair.y):
        raise SourceError(
            f"{pair.x_name} has {len(pair.x):,} samples, {pair.y_name} {len(pair.y):,} labels"
        )


def _join(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
