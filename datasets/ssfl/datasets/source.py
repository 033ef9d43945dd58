"""From what a person calls a data set to the data set itself.

A source is the name of a known set (digits, mnist, cifar10, …) or a path: a numpy archive, a table
or a folder of images. Options that a source has no use for are refused by name, not ignored.
Readers are imported when they are needed, so that a set of numbers needs no image library.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import OptionError, SourceError

Progress = Callable[[str, int, int], None]  # what is under way, how much is done, how much of it

EMBEDDED = "digits"  # needs no files
PUBLISHED = ("mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet")
NAMES = (EMBEDDED, *PUBLISHED)

ARRAYS = (".npz",)
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")

TARGETS = ("auto", "class", "number")
MISSING = ("refuse", "drop", "mean")
LAYOUTS = ("auto", "nchw", "nhwc")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Which data set, and how to read it; each field is a flag of `ssfl shards`."""

    source: str = EMBEDDED
    path: Path | None = None  # where the original files of a known set are; None: the cache
    download: bool = False  # fetch what is missing
    mirror: str = ""  # another address to fetch from
    test: Path | None = None  # a second file or folder, with the test samples
    label: str = ""  # the column to predict
    target: str = "auto"  # one of TARGETS
    ignore: tuple[str, ...] = ()  # columns left out
    missing: str = "refuse"  # one of MISSING: what to do about empty cells
    standardize: bool = True  # columns to mean 0, variance 1
    layout: str = "auto"  # one of LAYOUTS: where the channels of image arrays are
    image_size: int = 0  # side of the square images become; 0: they have one size already
    grey: bool = False  # one channel instead of three


# Which options each kind of source understands; the rest must be left alone.
_USES = {
    "digits": set[str](),
    "published": {"path", "download", "mirror"},
    "arrays": {"test", "target", "layout"},
    "table": {"test", "label", "target", "ignore", "missing", "standardize"},
    "folder": {"test", "image_size", "grey"},
}
_CALLED = {
    "digits": "the digits",
    "published": "a known data set",
    "arrays": "a numpy archive",
    "table": "a table",
    "folder": "a folder of images",
}

# How to tell a published set: what some of its files and folders are called.
_FILES = {
    "mnist": ("train-images?idx3-ubyte*", "t10k-images?idx3-ubyte*"),
    "cifar10": ("data_batch_1", "data_batch_1.bin", "cifar-10-*.tar.gz"),
    "cifar100": ("train.bin", "fine_label_names.txt", "cifar-100-*.tar.gz"),
    "tiny-imagenet": ("wnids.txt", "tiny-imagenet-200.zip"),
}
_FOLDERS = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "cifar100": ("cifar-100-binary", "cifar-100-python"),
    "tiny-imagenet": ("tiny-imagenet-200",),
}


def read_source(options: SourceOptions, on_progress: Progress | None = None) -> DataSet:
    """Return the data set; raise SourceError or DownloadError with what to do about it."""
    _check_choices(options)
    try:
        kind = _kind(options.source)
    except OSError as error:  # no permission, or no possible name
        raise SourceError(f"cannot look at {options.source}: {error.strerror}") from error
    _check_uses(options, kind)
    path = Path(options.source).expanduser()
    if kind in ("digits", "published"):
        from ssfl.datasets.registry import read_named_set

        return read_named_set(options, on_progress)
    if kind == "arrays":
        from ssfl.datasets.arrays.numpy_archive import read_arrays

        return read_arrays(path, options)
    if kind == "table":
        from ssfl.datasets.tables.table import read_table

        return read_table(path, options, on_progress)
    from ssfl.datasets.images.folders import read_image_folder

    return read_image_folder(path, options, on_progress)


def flag(option: str) -> str:
    """Return how an option is called on the command line."""
    return "--no-standardize" if option == "standardize" else "--" + option.replace("_", "-")


def _kind(source: str) -> str:
    if source in NAMES:
        return "digits" if source == EMBEDDED else "published"
    path = Path(source).expanduser()
    if source and path.is_dir():
        _refuse_original_files(path)
        _refuse_parquet(path)
        return "folder"
    for kind, endings in (("arrays", ARRAYS), ("table", TABLES)):
        if source.lower().endswith(endings):
            if not path.is_file():
                raise SourceError(f"there is no file {source}")
            return kind
    raise SourceError(_explain_unknown_source(source, path))


def _explain_unknown_source(source: str, path: Path) -> str:
    if not source:
        wrong = "no data set was named"
    elif path.is_file():
        wrong = f"{source} is no file that can be read"
        name = _published_set_of(path.name)
        if name:
            where = source if path.name.endswith((".tar.gz", ".zip")) else path.parent
            return f"{source} looks like {name} as published: --source {name} --path {where}"
    else:
        wrong = f"there is no data set, file or folder called {source}"
        close = difflib.get_close_matches(source.lower(), NAMES, n=1)
        wrong += f" (is it {close[0]}?)" if close else ""
    return (
        f"{wrong}. A source is one of {', '.join(NAMES)}, "
        f"a file ({', '.join(ARRAYS + TABLES)}) or a folder of images"
    )


def _refuse_original_files(folder: Path) -> None:
    """A published set's own files are no folder of images: say how they are read."""
    entries = list(folder.iterdir())
    inside = {entry.name for entry in entries if entry.is_dir()}
    files = {entry.name for entry in entries if entry.is_file()}
    for name in PUBLISHED:
        is_pickled = name == "cifar100" and {"meta", "train"} <= files
        has_folder = not inside.isdisjoint(_FOLDERS.get(name, ()))
        if is_pickled or has_folder or any(_published_set_of(file) == name for file in files):
            also = " (or fashion-mnist)" if name == "mnist" else ""
            raise SourceError(
                f"{folder} holds the files of {name}{also}: --source {name} --path {folder}"
            )


def _refuse_parquet(folder: Path) -> None:
    """A table in several files looks like a folder of images: say how to make one file of it."""
    entries = list(folder.iterdir())
    has_parts = any(entry.name.lower().endswith(".parquet") for entry in entries)
    has_folders = any(entry.is_dir() for entry in entries)
    if folder.name.lower().endswith(".parquet") or (has_parts and not has_folders):
        raise SourceError(
            f"{folder} is a folder of Parquet files, and one file is read: join them in Python, "
            "import pyarrow.parquet as pq; "
            f"pq.write_table(pq.read_table({str(folder)!r}), 'joined.parquet')"
        )


def _published_set_of(file: str) -> str:
    """Return the set one of whose published files is called so; empty if none."""
    for name, patterns in _FILES.items():
        if any(fnmatchcase(file, pattern) for pattern in patterns):
            return name
    return ""


def _check_choices(options: SourceOptions) -> None:
    choices = {"target": TARGETS, "missing": MISSING, "layout": LAYOUTS}
    for option, allowed in choices.items():
        given = getattr(options, option)
        if given not in allowed:
            raise OptionError(f"{flag(option)} must be one of {', '.join(allowed)}, got {given!r}")
    if options.image_size < 0:
        raise OptionError(f"--image-size must be 0 or more, got {options.image_size}")


def _check_uses(options: SourceOptions, kind: str) -> None:
    for field in fields(options):
        changed = getattr(options, field.name) != field.default
        if changed and field.name != "source" and field.name not in _USES[kind]:
            users = [_CALLED[other] for other, uses in _USES.items() if field.name in uses]
            raise OptionError(
                f"{flag(field.name)} does nothing for {_CALLED[kind]} ({options.source}); "
                f"it is for {' or '.join(users)}"
            )
    if options.mirror and not options.download:
        raise OptionError("--mirror says where to fetch from: it needs --download")
