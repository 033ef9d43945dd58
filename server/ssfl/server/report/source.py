"""The source of a report: the results folder of a coordinator, or its state directory.

history.json has one line per round, mask and evaluation (history_file.py). It is read line by line,
once for each list, so that entries can be merged in chronological order and memory does not depend
on the number of rounds. A history.json with another layout is read as a whole.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from itertools import repeat
from pathlib import Path
from typing import Any

from ssfl.method.errors import MethodError
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.program.model_io.safetensors_model import MANIFEST, MASK
from ssfl.program.names import RUN_ID_RULE, is_run_id
from ssfl.program.printable import printable
from ssfl.server.accounting.ledger_file import ledger_rows
from ssfl.server.history.run_history import Entry

HISTORY, LEDGER = "history.json", "ledger.csv"
LISTS = ("evaluations", "masks", "rounds")  # of one model, in chronological order
NEEDED = ("run_id", "settings", "rounds_done", "finished", "clients", "ledger")
FORMAT = 1  # of history.json
_LIST = re.compile(r'"(rounds|masks|evaluations)": \[(\]\}?,?)?\n?')
_ENDS = {"", ",", "],", "]}"}  # what may follow an entry on its line

Entries = Iterator[tuple[str, Entry]]


class ReportError(Exception):
    """The files of a run cannot be read; the message names the file and the problem."""


@dataclass(frozen=True, slots=True)
class Source:
    """One run: its final summary, and its entries, which can be iterated repeatedly."""

    folder: Path
    summary: dict[str, Any]  # history.json without the lists of `LISTS`
    entries: Callable[[], Entries]  # of these lists, in chronological order
    ledger: Path | None  # ledger.csv, if there is one
    model: tuple[Manifest, Mask] | None  # None before the first agreed mask
    ledger_bytes: int = -1  # of ledger.csv, if it may have grown since; -1: the whole file

    def ledger_rows(self) -> Iterator[dict[str, str]]:
        """Yield the rows of ledger.csv; nothing if there is none."""
        if self.ledger is None:
            return
        try:
            yield from ledger_rows(self.ledger, self.ledger_bytes)
        except OSError as error:
            raise ReportError(f"cannot read {self.ledger}: {error.strerror}") from error
        except ValueError as error:
            raise ReportError(str(error)) from error


def without_damaged_ledger(source: Source) -> tuple[Source, str]:
    """Return the source and an empty string; if its ledger is damaged, without it, and why."""
    try:
        for _ in source.ledger_rows():
            pass
    except ReportError as error:
        return replace(source, ledger=None), str(error)
    return source, ""


def open_folder(folder: Path) -> Source:
    """Return the run whose results a coordinator wrote into `folder`."""
    history = folder / HISTORY
    try:
        summary, entries = _open_history(history)
    except OSError as error:
        raise ReportError(f"cannot read {history}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of text that is not UTF-8
        raise _damaged(history, error) from error
    _check(history, summary)
    ledger = folder / LEDGER if (folder / LEDGER).is_file() else None
    return Source(folder, summary, entries, ledger, _mask(folder, summary))


def _open_history(path: Path) -> tuple[dict[str, Any], Callable[[], Entries]]:
    with path.open(encoding="utf-8") as file:
        first, second = file.readline().rstrip("\n"), file.readline()
    if first.endswith(",") and _LIST.fullmatch(second):
        return _object(first[:-1] + "}"), lambda: _in_order(_lines(path, name) for name in LISTS)
    whole = _object(path.read_text("utf-8"))
    lists = {name: whole.pop(name, []) for name in LISTS}
    return whole, lambda: _in_order(zip(repeat(name), lists[name]) for name in LISTS)


def _in_order(lists: Iterable[Entries]) -> Entries:
    """Merge lists: all clients test a model before its mask is refreshed and training continues."""
    return merge(*lists, key=lambda one: (one[1]["rounds_done"], LISTS.index(one[0])))


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    return found


def _lines(path: Path, wanted: str) -> Entries:
    decode = json.JSONDecoder().raw_decode
    name, end = "", ""
    try:
        with path.open(encoding="utf-8") as file:
            file.readline()
            for line in file:
                if start := _LIST.match(line):
                    name, end = start[1], "]}" if (start[2] or "").startswith("]}") else ""
                    continue
                if name != wanted:
                    end = line[-3:].strip().lstrip("}")
                    continue
                entry, at = decode(line)
                end = line[at:].strip()
                if end not in _ENDS or not isinstance(entry, dict):
                    raise ValueError(f"cannot read {line[at : at + 40]!r}")
                yield name, entry
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    if not end.startswith("]"):
        raise _damaged(path, "it ends in the middle")


def _damaged(path: Path, why: object) -> ReportError:
    return ReportError(f"{path} is damaged: {why}; restore it, or name the run's state directory")


def _check(path: Path, summary: dict[str, Any]) -> None:
    missing = [name for name in NEEDED if name not in summary]
    if missing:
        raise ReportError(f"{path} is not the history of a run: it holds no {missing[0]!r}")
    if summary.get("format") != FORMAT:
        raise ReportError(
            f"{path} has format {summary.get('format')!r}; this version reads {FORMAT}: "
            "use the version that wrote it, or a later one"
        )


def check_run_id(path: Path, run_id: object) -> None:
    """Raise ReportError for a run id that cannot be the name of a folder."""
    if not isinstance(run_id, str) or not is_run_id(run_id):
        raise ReportError(
            f"{path} is damaged: its run id is '{printable(str(run_id)[:100])}', not {RUN_ID_RULE}"
        )


def _mask(folder: Path, summary: dict[str, Any]) -> tuple[Manifest, Mask] | None:
    """Return the final mask, if its files are there and are those of the history."""
    if not (folder / MANIFEST).is_file() or not (folder / MASK).is_file():
        return None
    try:
        manifest = Manifest.from_json((folder / MANIFEST).read_bytes())
        mask = Mask((folder / MASK).read_bytes(), manifest.num_masked)
    except (MethodError, ValueError, OSError) as error:
        raise ReportError(f"{folder / MASK} and {MANIFEST} cannot be read: {error}") from error
    expected = (summary.get("mask") or {}).get("digest")
    if mask.digest.hex() != expected:
        raise ReportError(f"{folder / MASK} is not the mask of {HISTORY}")
    return manifest, mask
