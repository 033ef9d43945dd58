"""Cut a data set into shard files, one per client, and a summary.

The files appear together, after the last one is written. A refused or interrupted request leaves
the folder unchanged. If the process is killed while new files replace old ones, the folder holds a
mixture; the next request first restores the old files. The name of the folder in `.shards.part`
that holds the old files shows the progress: `old`, then `old-complete`, then `replaced`.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ssfl.datasets.data_set import DataSet, Progress
from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards.assign import Assignment, assign
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import PICTURE, SUMMARY, write_shard
from ssfl.datasets.shards.summary import ShardSummary, summarize, summary_json
from ssfl.datasets.wording import format_bytes, join_names, plural
from ssfl.durable.files import sync_directory, write_atomic
from ssfl.program.exits import deferred_signals

_WORK_FOLDER = ".shards.part"  # new shards are written here
_OLD_MOVING = "old"  # holds some old files; the others are still in place
_OLD_MOVED = "old-complete"  # holds all old files; files in place are new
_OLD_REPLACED = "replaced"  # holds old files that are no longer needed
_OVERHEAD_BYTES = 4096  # per shard: headers of the file and its line in the summary

DrawSummary = Callable[[ShardSummary, Path], None]  # draws a summary into a file


def make_shards(
    out: Path,
    data: DataSet,
    cut: Cut,
    *,
    overwrite: bool = False,
    on_progress: Progress | None = None,
    draw: DrawSummary | None = None,
) -> ShardSummary:
    """Write `shard_00.npz` … and `shards.json` into `out`; return the summary.

    `draw` also makes `classes.png`. Raise ShardError if the folder already holds any of these
    files; with `overwrite` all of them are replaced, so that no file of an earlier cut remains.
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
    """Raise ShardError if `out` is not a folder, or holds shards and `overwrite` is not set."""
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
    """Return the files that a cut writes; other files in the folder are left alone."""
    files = (*sorted(folder.glob("shard_*.npz")), folder / SUMMARY, folder / PICTURE)
    return [path for path in files if path.is_file()]


def _check_disk_space(out: Path, data: DataSet, clients: int) -> None:
    arrays = (data.train_x, data.train_y, data.test_x, data.test_y)
    needed = sum(array.nbytes for array in arrays) + clients * _OVERHEAD_BYTES
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ShardError(
            f"the shards need {format_bytes(needed)}, but the disk of {existing} has "
            f"{format_bytes(free)} free: free some space or choose another folder with --out"
        )


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder inside `out` that is locked for this process."""
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    new = out / _WORK_FOLDER
    try:
        with _lock(out):
            _clear(new, out)  # left by a process that was killed
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
        raise ShardError(f"another program is writing shards into {folder}") from None
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
    """Replace the old files by the new ones; `_clear` undoes a failure."""
    files = sorted(new.iterdir())
    old = _written_files(out)
    moving, moved = new / _OLD_MOVING, new / _OLD_MOVED
    with deferred_signals():
        moving.mkdir()
        _move(old, moving)
        moving.rename(moved)
        sync_directory(new)
        _move(files, out)
        moved.rename(new / _OLD_REPLACED)
        sync_directory(new)


def _recover(out: Path) -> None:
    """Restore the old files if a process was killed while it replaced them."""
    new = out / _WORK_FOLDER
    if new.is_dir():
        try:
            with _lock(out):
                _clear(new, out)
        except OSError as error:
            raise ShardError(f"cannot restore the shards in {out}: {error}") from error


def _clear(new: Path, out: Path) -> None:
    """Remove the work folder; first restore the old files unless all new ones are in place."""
    moving, moved = new / _OLD_MOVING, new / _OLD_MOVED
    if moved.is_dir():
        for path in _written_files(out):
            path.unlink(missing_ok=True)
        sync_directory(out)
        moved.rename(moving)  # if the process is killed now, the old files are still restored
        sync_directory(new)
    if moving.is_dir():
        _move(sorted(moving.iterdir()), out)
    shutil.rmtree(new, ignore_errors=True)


def _move(files: list[Path], folder: Path) -> None:
    for path in files:
        path.rename(folder / path.name)
    for touched in {path.parent for path in files} | {folder}:
        sync_directory(touched)
