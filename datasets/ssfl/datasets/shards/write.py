"""Cutting a data set into shard files, one per client, and a summary beside them.

The files appear all at once, when the last is written: a refused or interrupted request leaves
the folder as it was. Only a process that is killed, or a machine that stops, in the moment in which
new files take the place of old ones leaves a mixture; the next request first puts the old ones
back. How far the exchange had come is told by the folder in `.shards.part` in which the old files
wait: first `old`, then `old-complete`, then `replaced`.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ssfl.datasets.shards.assign import Assignment, assign
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards.shard_file import PICTURE, SUMMARY, write_shard
from ssfl.datasets.source import Progress
from ssfl.datasets.shards.summary import ShardSummary, summarize, summary_json
from ssfl.datasets.wording import format_bytes, join_names, plural
from ssfl.program.exits import deferred_signals
from ssfl.durable.files import sync_directory, write_atomic

_WORK_FOLDER = ".shards.part"  # folder in which new shards wait for the last of them
_OLD_MOVING = "old"  # in it: old files on their way out; the others are where they were
_OLD_MOVED = "old-complete"  # all of the old ones; what lies in their place is new
_OLD_REPLACED = "replaced"  # nobody needs them any more
_OVERHEAD_BYTES = 4096  # of a shard file, beside its arrays, and of its line in the summary

DrawSummary = Callable[[ShardSummary, Path], None]  # makes the picture of a summary


def make_shards(
    out: Path,
    data: DataSet,
    cut: Cut,
    *,
    overwrite: bool = False,
    on_progress: Progress | None = None,
    draw: DrawSummary | None = None,
) -> ShardSummary:
    """Write `shard_00.npz` … and `shards.json` into `out` and return what each holds.

    With `draw` a picture, `classes.png`, appears together with them. A folder that already holds
    any of these files is refused; with `overwrite` they are removed, so that nothing of another
    partition stays among the new ones.
    """
    _recover(out)
    check_folder(out, overwrite=overwrite)
    if on_progress:
        on_progress("dividing the samples", 0, 0)
    assignment = assign(data, cut)
    width = max(2, len(str(cut.clients - 1)))
    names = [f"shard_{client:0{width}d}.npz" for client in range(cut.clients)]
    summary = summarize(assignment, cut, tuple(out / name for name in names))
    try:
        _check_disk_space(out, data, cut.clients)
        with _new_folder(out) as new:
            _write(new, assignment, summary, on_progress)
            if draw:
                draw(summary, new / PICTURE)
            check_folder(out, overwrite=overwrite)
            _swap(new, out)
    except OSError as error:
        raise ShardError(f"cannot write shards into {out}: {error}") from error
    return summary


def check_folder(out: Path, *, overwrite: bool) -> None:
    """Raise ShardError if it is no folder, or holds shards that are not to be replaced."""
    if out.exists() and not out.is_dir():
        raise ShardError(f"{out} is a file: choose a folder with --out")
    held = _written_files(out)
    if held and not overwrite:
        shards = [path for path in held if path.suffix == ".npz"]
        what = plural(len(shards), "shard") if shards else join_names([path.name for path in held])
        raise ShardError(
            f"{out} already holds {what}; add --overwrite to replace, "
            "or choose another folder with --out"
        )


def _written_files(folder: Path) -> list[Path]:
    """Return the files that a cut writes; what a person put beside them is no concern of one."""
    files = (*sorted(folder.glob("shard_*.npz")), folder / SUMMARY, folder / PICTURE)
    return [path for path in files if path.is_file()]


def _check_disk_space(out: Path, data: DataSet, clients: int) -> None:
    arrays = (data.train_x, data.train_y, data.test_x, data.test_y)
    needed = sum(array.nbytes for array in arrays) + clients * _OVERHEAD_BYTES
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise ShardError(
            f"the shards need {format_bytes(needed)}, but the disk of {there} has {format_bytes(free)} free: "
            "make room or choose another folder with --out"
        )


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder inside `out`, of which this process is the only user."""
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    new = out / _WORK_FOLDER
    try:
        with _lock(out):
            _clear(new, out)  # of a process that was killed
            new.mkdir()
            try:
                yield new
            finally:
                _clear(new, out)
    finally:
        if is_new and not any(out.iterdir()):
            out.rmdir()


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ShardError(f"another program is writing shards into {folder} now") from None
    finally:
        os.close(descriptor)


def _write(
    new: Path, assignment: Assignment, summary: ShardSummary, on_progress: Progress | None
) -> None:
    for done, (path, shard) in enumerate(zip(summary.paths, assignment.shards(), strict=True)):
        if on_progress:
            on_progress("writing shards", done, len(summary.paths))
        write_shard(new / path.name, shard)
    write_atomic(new / SUMMARY, summary_json(summary).encode())
    if on_progress:
        on_progress("writing shards", len(summary.paths), len(summary.paths))


def _swap(new: Path, out: Path) -> None:
    """Put the new files in the place of the old ones; if it fails, `_clear` undoes it."""
    files = sorted(new.iterdir())
    old = _written_files(out)
    leaving, left = new / _OLD_MOVING, new / _OLD_MOVED
    with deferred_signals():
        leaving.mkdir()
        _move(old, leaving)
        leaving.rename(left)
        sync_directory(new)
        _move(files, out)
        left.rename(new / _OLD_REPLACED)
        sync_directory(new)


def _recover(out: Path) -> None:
    """Undo an exchange in the midst of which a process was killed."""
    new = out / _WORK_FOLDER
    if new.is_dir():
        try:
            with _lock(out):
                _clear(new, out)
        except OSError as error:
            raise ShardError(f"cannot put the shards of {out} back: {error}") from error


def _clear(new: Path, out: Path) -> None:
    """Remove the folder, but return old files to their place unless all of the new ones are."""
    leaving, left = new / _OLD_MOVING, new / _OLD_MOVED
    if left.is_dir():
        for path in _written_files(out):
            path.unlink(missing_ok=True)
        sync_directory(out)
        left.rename(leaving)  # so that being killed now loses nothing either
        sync_directory(new)
    if leaving.is_dir():
        _move(sorted(leaving.iterdir()), out)
    shutil.rmtree(new, ignore_errors=True)


def _move(files: list[Path], folder: Path) -> None:
    for path in files:
        path.rename(folder / path.name)
    for touched in {path.parent for path in files} | {folder}:
        sync_directory(touched)
