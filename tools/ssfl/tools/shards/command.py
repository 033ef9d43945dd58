"""`ssfl shards`: cut a data set into shards, one per client."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ssfl.datasets.errors import OptionError
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import PICTURE, SUMMARY
from ssfl.datasets.shards.summary import ShardSummary
from ssfl.datasets.shards.write import DrawSummary, check_folder, make_shards
from ssfl.datasets.source import LAYOUTS, MISSING, TARGETS, SourceOptions, read_source
from ssfl.datasets.wording import plural
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError, raise_on_sigterm, usage_error
from ssfl.program.printable import printable
from ssfl.tools.shards.view import ProgressView, data_set_line, summary_table
from ssfl.tools.terminal import console

DESCRIPTION = (
    "Cuts a data set into shards, one file per client. The files together are the whole data set: "
    "every sample is in exactly one of them. The same flags give the same files."
)
EXPLANATION = """\
A --source is a known data set (digits, mnist, fashion-mnist, cifar10, cifar100, tiny-imagenet), \
a .npz archive with arrays, a table (.csv, .tsv, .parquet; also .csv.gz) or a folder with a folder \
of images per class.

--partition dirichlet: every client has the same number of samples but a class mix of its own, \
drawn from Dirichlet(alpha); the paper's split, with alpha 0.3 for CIFAR-10 and 0.2 for CIFAR-100. \
dirichlet-unbalanced: each class is cut by shares from Dirichlet(alpha), so that sizes differ, \
too. classes: every client has exactly --classes-per-client classes. iid: every client has the \
same mix. Where the targets are numbers, ten groups of similar numbers stand for classes.

For example: ssfl shards --clients 20 --partition classes --classes-per-client 2

For example: ssfl shards --source patients.csv --label diagnosis --clients 5 --out hospitals"""


@dataclass(frozen=True, slots=True)
class ShardsConfig:
    """Settings of `ssfl shards`."""

    source: str = setting(
        "digits", "a known data set, a file or a folder; see below", metavar="NAME"
    )
    path: Path | None = setting(
        None, "folder with the files of a known data set; by default the cache"
    )
    download: bool = setting(False, "download missing files of a known data set")
    mirror: str = setting("", "another address to download from", metavar="URL")
    test: Path | None = setting(None, "a second file or folder that holds the test samples")
    label: str = setting("", "table: the column to predict", metavar="COLUMN")
    target: str = setting("auto", "kind of value to predict", choices=TARGETS)
    ignore: str = setting("", "table: columns to leave out, such as id,name", metavar="COLUMNS")
    missing: str = setting(
        "refuse",
        "table: refuse empty cells, drop their rows, or fill in the mean of the column",
        choices=MISSING,
    )
    standardize: bool = setting(
        True, "table: scale columns of numbers to mean 0 and variance 1; numbers to predict, too"
    )
    layout: str = setting("auto", "archive: position of the channels of images", choices=LAYOUTS)
    image_size: int = setting(
        0, "folder: side of the square that images are resized to; 0: keep their common size",
        unit="pixels", le=4096,
    )  # fmt: skip
    grey: bool = setting(False, "folder: one grey channel instead of three colours")
    cut: Cut = field(default_factory=Cut)
    out: Path = setting(Path("shards"), "folder to write to")
    overwrite: bool = setting(False, "replace existing shards")

    def source_options(self) -> SourceOptions:
        """Return the options for the reader of the source."""
        shared = {name: getattr(self, name) for name in SourceOptions.__slots__ if name != "ignore"}
        return SourceOptions(**shared, ignore=_columns(self.ignore))


def shards(argv: Sequence[str]) -> None:
    """Run the command."""
    config = settings.load(ShardsConfig, argv, None, "ssfl shards", DESCRIPTION, EXPLANATION)
    raise_on_sigterm()
    screen = console()
    try:
        check_folder(config.out, overwrite=config.overwrite)
        with ProgressView() as progress:
            data = read_source(config.source_options(), progress.show)
        screen.print(data_set_line(data))
        _print_notes(screen, data.notes)
        draw = _chart_function(screen)
        with ProgressView() as progress:
            summary = make_shards(
                config.out, data, config.cut,
                overwrite=config.overwrite, on_progress=progress.show, draw=draw,
            )  # fmt: skip
    except OptionError as error:
        raise usage_error(str(error)) from error
    except MemoryError:
        text = "the data set does not fit into this machine's memory"
        raise ProgramError(text, ExitCode.BAD_DATA) from None
    _print_notes(screen, summary.notes[len(data.notes) :])
    screen.print(summary_table(summary))
    _print_files(screen, config, summary, PICTURE if draw else "")


def _columns(text: str) -> tuple[str, ...]:
    """Return the names in a list such as a,b,c; a name with a comma is in double quotes."""
    (names,) = csv.reader([text], skipinitialspace=True) if text else ((),)
    return tuple(name.strip() for name in names if name.strip())


def _print_notes(screen: Console, notes: Sequence[str]) -> None:
    for note in notes:
        screen.print(printable(f"  {note}"))


def _print_files(
    screen: Console, config: ShardsConfig, summary: ShardSummary, picture: str
) -> None:
    others = f"{SUMMARY} and {picture}" if picture else SUMMARY
    out = printable(str(config.out))
    screen.print(f"{plural(len(summary.paths), 'shard')} in {out}/, with {others}", soft_wrap=True)
    root = "" if out == "shards" else f"--data-root '{out}' "
    is_table = len(summary.input_shape) == 1 and summary.input_type == "float32"
    root = f"--task table {root}" if is_table else root
    screen.print(
        f"start a client: ssfl-client {root}--data {summary.paths[0].stem}", soft_wrap=True
    )


def _chart_function(screen: Console) -> DrawSummary | None:
    """Return the function that draws the chart; without matplotlib, print a hint."""
    try:
        from ssfl.tools.shards.chart import draw_classes
    except ImportError:
        screen.print(f"{PICTURE} needs matplotlib: pip install 'ssfl[data]'")
        return None
    return draw_classes
