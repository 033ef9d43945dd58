"""Results in one file, which another machine can check.

`pack` takes a folder of `ssfl simulate` (summary.json) or of `ssfl paper` (a document for each
experiment) and the runs that these name. The file is a ZIP archive of JSON: manifest.json has the
size and SHA-256 of every other member. There are no weights, no pickles and no charts in it.

`check` reads an archive without trusting it: names and sizes are checked before a member is read.
Then every member must have its digest, every run the digest of its settings, data and code in its
name, and the summary and conclusions must follow from the runs. Nothing is run.
"""

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ssfl.datasets.errors import DataError
from ssfl.datasets.source import NAMES
from ssfl.durable.files import atomic_file
from ssfl.experiments import EXPERIMENTS
from ssfl.experiments.contract import Runs
from ssfl.experiments.recipe import Recipe
from ssfl.study.errors import EXPECTED, StudyError
from ssfl.study.run_spec import IMAGE, code_digest, digest_of, spec_of
from ssfl.study.summary import summary_of
from ssfl.study.sweep import RUNS, RunResult, read_result

MANIFEST = "manifest.json"
TASKS = (IMAGE, "table")
FORMAT = 1
MAX_FILES = 100_000
MAX_BYTES = 1 << 28  # of a member; a run of 1,000 rounds has some megabytes
MAX_TOTAL = 1 << 34
_NAME = re.compile(rf"({RUNS}/)?[\w=,+-][\w.=,+-]*\.json")
_OLDEST = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that the same results give the same file
_SHOWN = 5  # differences of a document that are named
# Of documents that have another form than those of this program.
_MALFORMED = (LookupError, TypeError, AttributeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Packed:
    """What was written."""

    runs: int
    files: int
    size: int


@dataclass(slots=True)
class Checked:
    """What a check found; the results agree with themselves if there is no problem."""

    problems: list[str] = field(default_factory=list)
    runs: int = 0
    software: str = ""
    torch: str = ""
    concluded: list[str] = field(default_factory=list)  # experiments that follow from their runs
    not_concluded: list[str] = field(default_factory=list)  # measured on data, not on runs


def pack(folder: Path, file: Path) -> Packed:
    """Write the results of a folder into one file; raise StudyError if they are incomplete."""
    documents = {path.name: path for path in sorted(folder.glob("*.json"))}
    named = {name: _runs_of(_read_json(path)) for name, path in documents.items()}
    members = {name: documents[name] for name, runs in named.items() if runs is not None}
    if not members:
        raise StudyError(f"{folder} has no results of `ssfl paper` or `ssfl simulate`")
    for run in sorted({run for runs in named.values() if runs for run in runs}):
        members[run] = folder / run
        if not _NAME.fullmatch(run):
            raise StudyError(f"{folder} names a run outside of it: {run}")
        if not read_ingredients(folder / run):
            raise StudyError(f"{folder / run} was stored by an older version: repeat the run")
    data = {name: _read(path) for name, path in members.items()}
    manifest = {
        "format": FORMAT,
        "software": version("ssfl"),
        "code": code_digest(),
        "torch": version("torch"),
        "files": {name: _seal(content) for name, content in data.items()},
    }
    data = {MANIFEST: json.dumps(manifest, indent=1).encode(), **data}
    try:
        with atomic_file(file) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in data.items():
                entry = zipfile.ZipInfo(name, _OLDEST)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
    except OSError as error:
        raise StudyError(f"{file} cannot be written: {error.strerror}") from None
    runs = sum(name.startswith(f"{RUNS}/") for name in data)
    return Packed(runs, len(data), file.stat().st_size)


def read_ingredients(path: Path) -> Any:
    """Return what the digest of a stored run covers; None if an older version stored it."""
    return _read_json(path).get("ingredients")


def _runs_of(document: Mapping[str, Any]) -> list[str] | None:
    """Return the files of the runs that a document is about; None: it is another document."""
    if "configurations" in document:
        return [run["file"] for run in document["runs"] if not run["error"]]
    return document["runs"] if document.get("experiment") in EXPERIMENTS else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_read(path))
    except ValueError:
        raise StudyError(f"{path} is not JSON") from None
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}") from None


def _seal(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def check(file: Path) -> Checked:
    """Compare an archive with itself; raise StudyError if it is not an archive of results."""
    checked = Checked()
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / RUNS).mkdir()
        manifest = _unpack(file, folder, checked.problems)
        if checked.problems:
            return checked
        checked.software, checked.torch = str(manifest.get("software")), str(manifest.get("torch"))
        results: dict[str, RunResult] = {}
        for name in sorted(name for name in manifest["files"] if name.startswith(f"{RUNS}/")):
            try:
                checked.problems += _run_problems(name, folder / name)
                results[name] = read_result(folder / name)
            except (*EXPECTED, *_MALFORMED) as error:
                checked.problems.append(_malformed(name, error, folder))
        checked.runs = len(results)
        if not checked.problems:
            for name in sorted(name for name in manifest["files"] if "/" not in name):
                try:
                    _check_document(name, _read_json(folder / name), results, checked)
                except (*EXPECTED, *_MALFORMED) as error:
                    checked.problems.append(_malformed(name, error, folder))
    return checked


def _unpack(file: Path, folder: Path, problems: list[str]) -> dict[str, Any]:
    """Write the members whose names, sizes and digests are right; return the manifest."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = _entries(archive, file)
            manifest = _manifest(archive, entries, file)
            sealed = manifest["files"]
            problems += [f"{name} is not in the manifest" for name in entries if name not in sealed]
            for name, seal in sealed.items():
                if name not in entries:
                    problems.append(f"{name} is missing")
                    continue
                try:
                    content = _member(archive, entries[name])
                except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
                    problems.append(f"{name} is damaged: {error}")
                    continue
                if _seal(content) != seal:
                    problems.append(f"{name} has changed: its SHA-256 is another one")
                else:
                    (folder / name).write_bytes(content)
    except OSError as error:
        raise StudyError(f"{file} cannot be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise StudyError(f"{file} is not an archive of `ssfl paper --pack`: {error}") from None
    return manifest


def _entries(archive: zipfile.ZipFile, file: Path) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name; raise StudyError for names and sizes that no archive has."""
    listed = archive.infolist()
    names = [entry.filename for entry in listed]
    for entry in listed:
        if not _NAME.fullmatch(entry.filename):
            raise StudyError(f"{file} has a member with a wrong name: {entry.filename!r}")
        if entry.file_size > MAX_BYTES:
            raise StudyError(f"{file}: {entry.filename} is too large: {entry.file_size:,} bytes")
    if len(set(names)) < len(names):
        raise StudyError(f"{file} has two members of the same name")
    if len(listed) > MAX_FILES or sum(entry.file_size for entry in listed) > MAX_TOTAL:
        raise StudyError(f"{file} is too large")
    return {entry.filename: entry for entry in listed if entry.filename != MANIFEST}


def _manifest(
    archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], file: Path
) -> dict[str, Any]:
    try:
        manifest = json.loads(_member(archive, archive.getinfo(MANIFEST)))
        if manifest["format"] != FORMAT:
            raise StudyError(f"{file} has format {manifest['format']}; this program reads {FORMAT}")
        names = list(manifest["files"].keys())
    except (*_MALFORMED, EOFError) as error:
        raise StudyError(f"{file}: {MANIFEST} is damaged or missing: {error}") from None
    if wrong := [name for name in names if name not in entries and not _NAME.fullmatch(name)]:
        raise StudyError(f"{file}: {MANIFEST} has a wrong name: {wrong[0]!r}")
    assert isinstance(manifest, dict)
    return manifest


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the content of a member, which is not longer than it says."""
    with archive.open(entry) as member:
        content = member.read(MAX_BYTES + 1)
    if len(content) != entry.file_size:
        raise ValueError(f"it has {len(content):,} bytes instead of {entry.file_size:,}")
    return content


def _run_problems(name: str, path: Path) -> Iterator[str]:
    """Yield what a stored run contradicts: the digest in its name, its settings, its history."""
    stored, ingredients = _read_json(path), read_ingredients(path)
    if not isinstance(ingredients, dict):
        yield f"{name} does not have the ingredients of its digest"
        return
    if not path.stem.endswith(f"-{digest_of(ingredients)}"):
        yield f"{name}: the digest in its name is not that of its settings, data and code"
    if why := _outside(stored["spec"]):
        yield f"{name} cannot be checked: {why}"
        return
    spec = spec_of(stored["spec"])
    settings = json.loads(json.dumps(asdict(spec.run_settings())))
    same = {
        **{key: value for key, value in stored["spec"].items() if key != "settings"},
        "arrivals": spec.late(),
        "settings": settings,
    }
    yield from _named(name, differences(same, ingredients, both=True))
    history = stored["history"]["settings"]
    yield from _named(f"{name}, history", differences(settings, history, both=True))


def _outside(spec: Mapping[str, Any]) -> str:
    """Return which file of another machine a spec names; its settings would load it here."""
    files = [value for value in spec["settings"].values() if str(value).endswith(".py")]
    if spec["task"] not in TASKS:
        files.append(spec["task"])
    if spec["data"]["source"] not in NAMES:
        files.append(spec["data"]["source"])
    return f"it uses {files[0]}, which is not part of ssfl" if files else ""


def _check_document(
    name: str, stored: Mapping[str, Any], results: Mapping[str, RunResult], checked: Checked
) -> None:
    """Compute a summary or an experiment again, and add what differs."""
    files = _runs_of(stored)
    if files is None:
        checked.problems.append(f"{name} is neither a summary nor an experiment")
        return
    if missing := [file for file in files if file not in results]:
        checked.problems.append(f"{name} names a run that is not there: {missing[0]}")
        return
    used = [results[file] for file in files]
    if "configurations" in stored:
        again = json.loads(json.dumps(summary_of(used)))
        again["software"] = stored["software"]
        checked.problems += _named(name, differences(_without_failed(stored), again))
        return
    experiment, recipe = EXPERIMENTS[stored["experiment"]], _recipe_of(stored)
    if experiment.is_measured:
        checked.not_concluded.append(experiment.name)
        return
    try:
        found = {key: stored[key] for key in stored if key not in ("scale", "software", "runs")}
        checked.problems += _named(
            name, differences(found, experiment.document(recipe, Runs(used)))
        )
        checked.concluded.append(experiment.name)
    except DataError:  # the data set is not on this machine
        checked.not_concluded.append(experiment.name)


def _without_failed(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary without runs that failed, which have no file."""
    good = [run for run in summary["runs"] if not run["error"]]
    kept = [{**one, "failed_seeds": []} for one in summary["configurations"] if one["seeds"]]
    return {**summary, "runs": good, "configurations": kept}


def _recipe_of(stored: Mapping[str, Any]) -> Recipe:
    make = Recipe.paper if stored.get("scale") == "paper" else Recipe.quick
    return make(tuple(stored["seeds"]), stored["data"])


def differences(stored: Any, found: Any, place: str = "", *, both: bool = False) -> Iterator[str]:
    """Yield the places at which a stored document and one that was computed again differ.

    Keys that only the computed one has are left out: a newer version may have added them. With
    `both`, so are those that only the stored one has.

    >>> list(differences({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 3], "c": 0}))
    ['b[1]: 2 is stored, 3 was computed']
    """
    if isinstance(stored, dict) and isinstance(found, dict):
        for key, value in stored.items():
            where = f"{place}.{key}" if place else str(key)
            if key in found:
                yield from differences(value, found[key], where, both=both)
            elif not both:
                yield f"{where} was not computed"
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for number, pair in enumerate(zip(stored, found, strict=True)):
            yield from differences(*pair, f"{place}[{number}]", both=both)
    elif stored != found:
        yield f"{place}: {_short(stored)} is stored, {_short(found)} was computed"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _named(name: str, found: Iterator[str]) -> list[str]:
    listed = list(found)
    more = [f"{name}: {len(listed) - _SHOWN} more differences"] if len(listed) > _SHOWN else []
    return [f"{name}: {text}" for text in listed[:_SHOWN]] + more


def _malformed(name: str, error: Exception, folder: Path) -> str:
    text = str(error).replace(f"{folder}/", "")
    return f"{name}: {text}" if isinstance(error, EXPECTED) else f"{name} is malformed: {error!r}"
