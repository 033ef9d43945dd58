"""Shards: the data of one site, in one file.

A shard is a numpy archive, `shard_07.npz`; docs/shards.md specifies its arrays. Reading never
unpickles. Any other file raises ShardError.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.archive import MEMORY_ADVICE, read_archive
from ssfl.datasets.errors import ShardError, errors_of
from ssfl.datasets.memory import first_not_finite
from ssfl.datasets.wording import format_bytes, join_names
from ssfl.durable.files import atomic_file

Array = npt.NDArray[Any]

FORMAT = 2
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "num_classes")
OPTIONAL = ("format", "val_x", "val_y", "class_names")
SUMMARY = "shards.json"  # `ssfl shards` writes this and PICTURE next to the shards
PICTURE = "classes.png"
MAKE_SHARDS = "make some with: ssfl shards"
MAX_OMITTED_ZEROS = 5  # leading zeros of the number in a name
MAX_NUM_CLASSES = 1_000_000  # num_classes becomes the width of a network
_PIXEL_MAX = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}
_EMPTY: Array = np.empty(0)


@dataclass(frozen=True, eq=False)
class Shard:
    """A site's samples. A custom task may use inputs and targets of any shape."""

    train_x: Array  # (N, ...)
    train_y: Array  # (N, ...)
    test_x: Array  # (M, ...)
    test_y: Array  # (M, ...)
    num_classes: int  # 0 if the targets are not classes
    val_x: Array = field(default_factory=lambda: _EMPTY)  # (V, ...); V is 0 by default
    val_y: Array = field(default_factory=lambda: _EMPTY)
    class_names: tuple[str, ...] = ()  # by class number; empty if they have no names

    def __post_init__(self) -> None:
        for name in ("train_x", "train_y", "test_x", "test_y", "val_x", "val_y"):
            _check_numbers(name, getattr(self, name))
        if isinstance(self.num_classes, bool) or not isinstance(self.num_classes, int | np.integer):
            raise ShardError(
                f"num_classes must be an integer, 0 for numbers, not {self.num_classes!r}"
            )
        if self.val_x is _EMPTY and self.val_y is _EMPTY:
            object.__setattr__(self, "val_x", self.train_x[:0])
            object.__setattr__(self, "val_y", self.train_y[:0])
        for part in ("train", "val", "test"):
            x, y = getattr(self, f"{part}_x"), getattr(self, f"{part}_y")
            check_pair(part, x, y, self.num_classes)
        if self.num_samples == 0:
            raise ShardError("there are no training samples")
        for part, x in (("validation", self.val_x), ("test", self.test_x)):
            if x.shape[1:] != self.train_x.shape[1:]:
                shapes = f"{self.train_x.shape[1:]} and {x.shape[1:]}"
                raise ShardError(f"train and {part} samples have different shapes: {shapes}")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ShardError(
                f"there are {len(self.class_names)} class_names for {self.num_classes} classes"
            )

    @property
    def num_samples(self) -> int:
        """Number of training samples: the site's weight in every mean."""
        return len(self.train_x)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_x.shape[1:]


def _check_numbers(name: str, array: Any) -> None:
    """Raise ShardError unless the array holds numbers; a custom task may return anything."""
    if not isinstance(array, np.ndarray):
        raise ShardError(
            f"{name} must be a numpy array, not {type(array).__name__}: np.asarray(…) makes one"
        )
    if array.ndim == 0 or array.dtype.kind not in "fiub" or not array.dtype.isnative:
        kind = array.dtype if array.dtype.isnative else f"big-endian {array.dtype}"
        raise ShardError(
            f"{name} is {kind} of shape {array.shape}: make it rows of numbers, float32 or int64"
        )


def describe_samples(shard: Shard) -> str:
    """Return a description of a shard's samples and targets."""
    shape = "x".join(str(n) for n in shard.input_shape) or "1"
    targets = f"{shard.num_classes} classes" if shard.num_classes else "numbers to predict"
    return f"its samples are {shape} of {shard.train_x.dtype}, its targets {targets}"


def class_counts(labels: Array) -> dict[int, int]:
    """Return the number of samples per class, lowest class first; {} if targets are numbers."""
    if labels.dtype.kind not in "iu":
        return {}
    classes, counts = np.unique(labels, return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def find_shard(data: str, data_root: Path) -> Path:
    """Return the path of a shard, given its name (`shard_07` under `data_root`) or path."""
    named = Path(data)
    is_bare = named.name == data
    try:
        places = [data_root / data, named, data_root / full_name(data, data_root)]
        for place in places if is_bare else [named]:
            for path in (place, Path(f"{place}.npz")):
                if named.name and path.exists():
                    return path
        if not is_bare:
            raise ShardError(f"there is no file {data}")
        if not data_root.is_dir():
            raise ShardError(f"there is no folder {data_root} to find {data} in; {MAKE_SHARDS}")
        raise ShardError(
            f"there is no shard {data} under {data_root}; "
            f"there are: {join_names(shard_names(data_root))}"
        )
    except OSError as error:
        raise ShardError(f"cannot look for the shard {data}: {error}") from error


def full_name(data: str, data_root: Path) -> str:
    """Return the name of a shard whose number may lack leading zeros.

    `shard_7` becomes `shard_07` if only that exists under `data_root`, since job schedulers count
    0, 1, 2. Any other name is returned unchanged.
    """
    parts = re.fullmatch(r"(.*?)(\d+)(?:\.npz)?", data)
    if not parts or Path(data).name != data or _shard_exists(data_root / data):
        return data
    start, number = parts.groups()
    padded = (f"{start}{'0' * zeros}{number}" for zeros in range(1, MAX_OMITTED_ZEROS + 1))
    found = [name for name in padded if _shard_exists(data_root / name)]
    return found[0] if len(found) == 1 else data


def _shard_exists(place: Path) -> bool:
    try:
        return place.exists() or Path(f"{place}.npz").exists()
    except OSError:  # `find_shard` reports the error
        return False


def shard_names(folder: Path) -> list[str]:
    """Return the valid values of `--data` for a folder, sorted.

    Any file or folder may be a shard of some task, except hidden ones, SUMMARY and PICTURE. Raise
    ShardError if there is none, or if two have the same name.
    """
    if not folder.is_dir():
        raise ShardError(f"there is no folder {folder} to find shards in; {MAKE_SHARDS}")
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise ShardError(f"cannot read the folder {folder}: {error}") from error
    files = [entry.name for entry in entries if not entry.name.startswith(".")]
    names = sorted(name.removesuffix(".npz") for name in files if name not in (SUMMARY, PICTURE))
    if not names:
        raise ShardError(f"the folder {folder} holds no shards; {MAKE_SHARDS}")
    for name, following in pairwise(names):
        if name == following:
            raise ShardError(
                f"{folder / name} and {folder / name}.npz are both shard {name}: rename one"
            )
    return names


def read_shard(path: Path) -> Shard:
    """Return the shard in a file; raise ShardError naming the file and the problem."""
    try:
        with errors_of(path):
            return _parse_shard(read_archive(path, ARRAYS, OPTIONAL))
    except MemoryError as error:  # one-byte pixels become four-byte floats
        raise ShardError(
            f"{path}: the file has {format_bytes(path.stat().st_size)}, and its arrays take more "
            f"memory than is free here: {MEMORY_ADVICE}"
        ) from error


def write_shard(path: Path, shard: Shard) -> None:
    """Write the file atomically; the same shard gives the same bytes."""
    names = ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y")
    arrays: dict[str, Array] = {name: getattr(shard, name) for name in names}
    head: dict[str, Any] = {"format": np.int64(FORMAT), "num_classes": np.int64(shard.num_classes)}
    if shard.class_names:
        head["class_names"] = np.array(shard.class_names, dtype=np.str_)
    with atomic_file(path) as file:
        np.savez(file, allow_pickle=False, **head, **arrays)


def _parse_shard(arrays: dict[str, Array]) -> Shard:
    version = int(_integers("format", arrays.get("format", np.array(1)), 0))
    if not 1 <= version <= FORMAT:
        raise ShardError(f"it has format {version}; this program reads 1 to {FORMAT}")
    num_classes = int(_integers("num_classes", arrays["num_classes"], 0))
    if num_classes == 1:
        raise ShardError(
            "num_classes is 1, but a classifier needs at least two classes; it counts the classes "
            "of all sites together, and is 0 where the targets are numbers"
        )
    if not 0 <= num_classes <= MAX_NUM_CLASSES:
        raise ShardError(
            f"num_classes must be 2 … {MAX_NUM_CLASSES}, or 0 for numbers, got {num_classes}"
        )
    if ("val_x" in arrays) != ("val_y" in arrays):
        present, lacking = ("val_x", "val_y") if "val_x" in arrays else ("val_y", "val_x")
        raise ShardError(f"the archive has {present} but lacks {lacking}")
    inputs = {name: _inputs(name, arrays[name]) for name in arrays if name.endswith("_x")}
    for name, x in inputs.items():
        if x.dtype != inputs["train_x"].dtype:
            raise ShardError(f"train_x is {inputs['train_x'].dtype} but {name} is {x.dtype}")
    targets = {
        name: _integers(name, arrays[name], 1) if num_classes else _numbers(name, arrays[name])
        for name in arrays
        if name.endswith("_y")
    }
    names = _names(arrays["class_names"]) if "class_names" in arrays else ()
    return Shard(num_classes=num_classes, class_names=names, **inputs, **targets)


def _inputs(name: str, array: Array) -> Array:
    check_inputs(name, array)
    native = array.dtype.newbyteorder("=")
    if native in _PIXEL_MAX:
        return array.astype(np.float32) / np.float32(_PIXEL_MAX[native])
    return np.ascontiguousarray(array, dtype=native)


def _numbers(name: str, array: Array) -> npt.NDArray[np.float32]:
    if array.dtype.newbyteorder("=") != np.float32 or array.ndim not in (1, 2):
        raise ShardError(
            f"{name} must be float32 of shape (N,) or (N, d) as num_classes is 0, "
            f"not {array.dtype} of shape {array.shape}"
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def _integers(name: str, array: Array, ndim: int) -> npt.NDArray[np.int64]:
    array = np.asarray(array)
    if array.ndim != ndim or array.dtype.kind not in "iu":
        wanted = "a row of int64" if ndim else "one int64"
        raise ShardError(f"{name} must be {wanted}, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _names(array: Array) -> tuple[str, ...]:
    if array.ndim != 1 or array.dtype.kind != "U":
        raise ShardError(
            f"class_names must be a row of text, not {array.dtype} of shape {array.shape}"
        )
    return tuple(array.tolist())


def check_inputs(name: str, array: Array) -> None:
    """Raise ShardError unless the shard format supports the samples' shape and type."""
    if array.ndim < 2 or 0 in array.shape[1:]:
        raise ShardError(
            f"{name} must have shape (N, …) with at least one value per sample, not {array.shape}"
        )
    native = array.dtype.newbyteorder("=")
    if native in (np.int32, np.int64) and array.ndim != 2:
        raise ShardError(
            f"{name} is {native}, which is for sequences (N, length), but has shape "
            f"{array.shape}; save images as uint8, uint16 or float32"
        )
    if native not in (np.float32, np.int32, np.int64, *_PIXEL_MAX):
        raise ShardError(
            f"{name} must be float32, uint8 or uint16 (int32 or int64 for sequences), "
            f"not {array.dtype}"
        )


def check_pair(part: str, x: Array, y: Array, num_classes: int) -> None:
    """Raise ShardError unless there is one target per sample, all finite, labels in range."""
    if len(x) != len(y):
        raise ShardError(f"{part}_x has {len(x)} samples but {part}_y has {len(y)} labels")
    for name, array in ((f"{part}_x", x), (f"{part}_y", y)):
        broken = first_not_finite(array)
        if broken is not None:
            raise ShardError(f"{name} holds NaN or infinity, first in sample {broken}")
    if num_classes and len(y) and not 0 <= y.min() <= y.max() < num_classes:
        raise ShardError(
            f"{part}_y holds labels {y.min()} … {y.max()}, "
            f"but {num_classes} classes are 0 … {num_classes - 1}"
        )
