"""ledger.csv: the bytes of a run by round, step, client, phase, direction and encoding.

Rows are appended when a step ends. Bytes outside steps (gathering, fetching the final model) have
an empty round and step. A step that was interrupted by an orderly restart has rows of both
processes. The next journal record holds the length of the file. After a crash the file is truncated
to that length, so no row is duplicated, no committed row is lost, and the rows add up to the totals
in the journal. Bytes that a killed process had counted since the last commit are in neither.
"""

import csv
import io
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ssfl.durable.failpoints import failpoint
from ssfl.durable.files import sync_directory, write_atomic

log = logging.getLogger(__name__)

COLUMNS = (
    "run_id", "round", "step", "client", "phase", "direction", "encoding",
    "payload_bytes", "message_bytes", "socket_bytes",
)  # fmt: skip
COUNTS = ("payload_bytes", "message_bytes")  # columns that the totals in the journal also have
BLOCK_BYTES = 1 << 20
MEND = "restore the file from a backup"


class LedgerFile:
    """The open file; for one thread at a time."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        """Open or create `path`; truncate it to the `num_bytes` that the journal records."""
        self.path = path
        self._file = path.open("a+b", buffering=0)
        sync_directory(path.parent)
        found = self._file.seek(0, os.SEEK_END)
        if found < num_bytes:
            log.warning(
                "%s is shorter than it was: rows of earlier steps are missing. To get them back, "
                "stop the coordinator, restore the file from a backup and start again", path,
            )  # fmt: skip
            num_bytes = _whole_lines(path)
        if found > num_bytes:
            self._file.truncate(num_bytes)
            os.fsync(self._file.fileno())
        self.num_bytes = num_bytes
        self._is_torn = False  # by a write that failed

    def append(
        self,
        rows: Iterable[Mapping[str, Any]],
        run_id: str,
        round_number: int | str,
        step: int | str,
    ) -> int:
        """Write rows (`Ledger.take`) and sync them; return the length of the file."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        if not self.num_bytes:
            writer.writeheader()
        where = {"run_id": run_id, "round": round_number, "step": step}
        writer.writerows({**where, **row} for row in rows)
        failpoint("ledger.append")
        view = memoryview(text.getvalue().encode())
        length = self.num_bytes + len(view)
        if self._is_torn:
            self._file.truncate(self.num_bytes)
        self._is_torn = True  # until the write is complete
        while view:
            view = view[self._file.write(view) :]
        failpoint("ledger.written")
        os.fsync(self._file.fileno())
        self._is_torn = False
        self.num_bytes = length
        return length

    def close(self) -> None:
        self._file.close()


def copy_ledger(source: Path, target: Path, num_bytes: int) -> None:
    """Copy the first `num_bytes`, even while rows are appended."""
    write_atomic(target, _blocks(source, num_bytes))


def ledger_problem(path: Path, totals: Iterable[Mapping[str, Any]], num_bytes: int) -> str:
    """Return what is wrong with the file, whose rows must add up to `totals`; empty if nothing."""
    if not num_bytes:
        return ""
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * len(COUNTS))
    try:
        if (found := path.stat().st_size) < num_bytes:
            return f"{path} has {found} bytes, the journal records {num_bytes}: {MEND}"
        if next(_lines(path, num_bytes), b"").strip() != ",".join(COLUMNS).encode():
            return f"{path}: line 1 does not name the columns that this version writes: {MEND}"
        for row in ledger_rows(path, num_bytes):
            counted = sums[row["phase"], row["direction"], row["encoding"]]
            for at, name in enumerate(COUNTS):
                counted[at] += int(row[name])
    except FileNotFoundError:
        return f"{path} is missing: the bytes of the steps so far are not known by client"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except ValueError as error:
        return str(error)
    wanted = {
        (row["phase"], row["direction"], row.get("encoding", "")): [row[name] for name in COUNTS]
        for row in totals
    }
    return "" if sums == wanted else f"{path} does not add up to the journal's totals: {MEND}"


def ledger_rows(path: Path, num_bytes: int = -1) -> Iterator[dict[str, str]]:
    """Yield the rows of the first `num_bytes`, all by default.

    Raise ValueError naming the file and the line if one is damaged, OSError if the file is.
    """
    rows = csv.DictReader(line.decode() for line in _lines(path, num_bytes))
    try:
        for row in rows:
            if None in row or None in row.values():
                raise ValueError("it has more or fewer columns than line 1")
            if wrong := [name for name in COUNTS if not row.get(name, "").isdecimal()]:
                raise ValueError(f"{wrong[0]} is {row.get(wrong[0], '')[:40]!r}")
            yield row
    except (ValueError, csv.Error) as error:
        number = rows.line_num + isinstance(error, UnicodeDecodeError)  # of the next line
        raise ValueError(f"{path}: line {number} is damaged: {error}; {MEND}") from error


def _lines(path: Path, num_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(num_bytes):
            num_bytes -= len(line)
            yield line


def _blocks(path: Path, num_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(min(BLOCK_BYTES, num_bytes)):
            num_bytes -= len(block)
            yield block


def _whole_lines(path: Path) -> int:
    """Return the length of a file up to the end of its last complete line."""
    at = 0
    with path.open("rb") as file:
        for line in file:
            at += len(line) if line.endswith(b"\n") else 0
    return at
