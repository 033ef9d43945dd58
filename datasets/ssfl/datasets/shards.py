"""Shards: the data of one site, in one file.

A shard is a numpy archive, `shard_07.npz`, holding

    train_x     (N, C, H, W)  float32, or uint8, which is divided by 255 when read
    train_y     (N,)          int64, 0 … num_classes-1
    test_x      (M, C, H, W)  as train_x; M may be 0
    test_y      (M,)          as train_y
    num_classes ()            int64, the same at every site

Reading never unpickles, and anything that is not such a file raises ShardError. This module
needs numpy only.
"""

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import ShardError

Array = npt.NDArray[Any]

ARRAYS = ("train_x", "train_y", "test_x", "test_y", "num_classes")
MAKE_SOME = "make some with: ssfl shards"
_SHOWN = 12  # names listed in a message before "…"


@dataclass(frozen=True, eq=False)
class Shard:
    """A site's samples. A task of your own may hold inputs and targets of any shape."""

    train_x: Array  # (N, ...)
    train_y: Array  # (N, ...)
    test_x: Array  # (M, ...)
    test_y: Array  # (M, ...)
    num_classes: int  # 0: the targets are not classes

    def __post_init__(self) -> None:
        _check_pair("train", self.train_x, self.train_y, self.num_classes)
        _check_pair("test", self.test_x, self.test_y, self.num_classes)
        if self.num_samples == 0:
            raise ShardError("there are no training samples")
        if self.test_x.shape[1:] != self.train_x.shape[1:]:
            shapes = f"{self.train_x.shape[1:]} and {self.test_x.shape[1:]}"
            raise ShardError(f"train and test samples have different shapes: {shapes}")

    @property
    def num_samples(self) -> int:
        """Training samples: the site's weight in every mean."""
        return len(self.train_x)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_x.shape[1:]


def class_counts(labels: npt.NDArray[np.integer[Any]]) -> dict[int, int]:
    """Return how often each class occurs, lowest class first."""
    classes, counts = np.unique(labels, return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def find_shard(data: str, data_root: Path) -> Path:
    """Return where a shard lies, named as `shard_07` (under `data_root`) or by its path."""
    named = Path(data)
    is_bare = named.name == data
    for place in [data_root / data, named] if is_bare else [named]:
        for path in (place, Path(f"{place}.npz")):
            if named.name and path.exists():
                return path
    if not is_bare:
        raise ShardError(f"there is no file {data}")
    if not data_root.is_dir():
        raise ShardError(f"there is no folder {data_root} to find {data} in; {MAKE_SOME}")
    existing = sorted(path.name.removesuffix(".npz") for path in data_root.glob("[!.]*"))
    if not existing:
        raise ShardError(f"the folder {data_root} holds no shards; {MAKE_SOME}")
    more = f" … ({len(existing)} in all)" if len(existing) > _SHOWN else ""
    names = ", ".join(existing[:_SHOWN]) + more
    raise ShardError(f"there is no shard {data} under {data_root}; there are: {names}")


def read_shard(path: Path) -> Shard:
    """Return the shard in a file; raise ShardError naming the file and what is wrong with it."""
    try:
        arrays = _read_arrays(path)
        num_classes = int(_integers("num_classes", arrays["num_classes"], 0))
        if num_classes < 2:
            raise ShardError(f"num_classes must be at least 2, got {num_classes}")
        return Shard(
            _inputs("train_x", arrays["train_x"]),
            _integers("train_y", arrays["train_y"], 1),
            _inputs("test_x", arrays["test_x"]),
            _integers("test_y", arrays["test_y"], 1),
            num_classes,
        )
    except ShardError as error:
        raise ShardError(f"{path}: {error}") from error


def write_shard(path: Path, shard: Shard) -> None:
    """Write the file whole or not at all; the same shard gives the same bytes."""
    temporary = path.with_name(path.name + ".part")
    arrays: dict[str, Array] = {name: getattr(shard, name) for name in ARRAYS[:-1]}
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, num_classes=np.int64(shard.num_classes), **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read_arrays(path: Path) -> dict[str, Array]:
    try:
        if not path.is_file():
            raise ShardError("there is no such file")
        if not zipfile.is_zipfile(path):
            raise ShardError("this is not a numpy .npz archive, or it was cut short")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in ARRAYS if name not in archive.files]
            if missing:
                raise ShardError(f"the archive lacks {', '.join(missing)}")
            return {name: archive[name] for name in ARRAYS}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ShardError(f"the archive cannot be read: {error}") from error
    except (KeyError, NotImplementedError, RuntimeError, MemoryError) as error:
        raise ShardError(f"the archive is damaged: {type(error).__name__}: {error}") from error


def _inputs(name: str, array: Array) -> npt.NDArray[np.float32]:
    if array.ndim != 4 or 0 in array.shape[1:]:
        raise ShardError(f"{name} must have shape (N, channels, height, width), not {array.shape}")
    if array.dtype == np.uint8:
        return array.astype(np.float32) / np.float32(255)
    if array.dtype != np.float32:
        raise ShardError(f"{name} must be float32 or uint8, not {array.dtype}")
    return array


def _integers(name: str, array: Array, ndim: int) -> npt.NDArray[np.int64]:
    if array.ndim != ndim or array.dtype.kind not in "iu":
        wanted = "a row of int64" if ndim else "one int64"
        raise ShardError(f"{name} must be {wanted}, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _check_pair(part: str, x: Array, y: Array, num_classes: int) -> None:
    if len(x) != len(y):
        raise ShardError(f"{part}_x has {len(x)} samples but {part}_y has {len(y)} labels")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        broken = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))[0])
        raise ShardError(f"{part}_x holds NaN or infinity, first in sample {broken}")
    if num_classes and len(y) and not 0 <= y.min() <= y.max() < num_classes:
        raise ShardError(
            f"{part}_y holds labels {y.min()} … {y.max()}, "
            f"but {num_classes} classes are 0 … {num_classes - 1}"
        )
