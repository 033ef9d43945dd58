"""One run of a study, said in full: the same spec gives the same model."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ssfl.datasets.shards.shard_file import find_shard, shard_names
from ssfl.datasets.source import NAMES
from ssfl.method.profiles import with_profile
from ssfl.method.settings import MAX_SEED, RunSettings
from ssfl.program.settings.loading import Setting, values_by_name
from ssfl.study.data import DataSpec, arrivals
from ssfl.study.errors import StudyError

MODES = ("exact", "fast")
DEVICES = ("auto", "cpu", "cuda", "mps")
CPU = "cpu"
IMAGE = "image"
# Settings of a run that a study has its own words for, and those.
STUDY_SETTINGS = {
    "clients": "every shard is a client: say how many with the data's `clients`",
    "seed": "a study has `seeds`",
    "reproducible": "a simulated run always is",
}
_MAX_NAME_CHARS = 80  # characters of a name in that of a file


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A run: which data, which settings, which seed.

    Attributes:
        name: of the configuration; runs that differ in their seed alone share it
        data: which data, and who has what of it; cut by `seed`, too
        settings: run settings by name, as the flags of `ssfl-coordinator`; others are defaults,
            or those of the `profile` among them
        seed: behind every random choice of data and run
        mode: `exact`, the bits of the service, or `fast`, clients stacked where that is faster
        arrivals: clients that join later, and before which round; beyond those of `data`
        task: what is learned: image, table, a .py file or an importable module
        device: where clients compute, as for `ssfl-client`
    """

    name: str
    data: DataSpec = field(default_factory=DataSpec)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    seed: int = 0
    mode: str = "exact"
    arrivals: Mapping[str, int] = field(default_factory=dict)
    task: str = IMAGE
    device: str = CPU

    @property
    def label(self) -> str:
        """What a person calls it."""
        return f"{self.name}, seed {self.seed}"

    def late(self) -> dict[str, int]:
        """Return every client that joins late, with its round."""
        return {**arrivals(self.data), **self.arrivals}

    def run_settings(self) -> RunSettings:
        """Return the settings of the run: it waits for all clients that are there at the start.

        It is `reproducible` unless somebody joins later: a service that is lets nobody in. The
        simulated run gives the same model each time, in either case.

        Raises StudyError or SettingsError for what no run can have.
        """
        for name, why in STUDY_SETTINGS.items():
            if name in self.settings:
                raise StudyError(f"{name} is no setting of a simulated run: {why}")
        values, late = self._values(), self.late()
        clients = _num_clients(self.data) - len(late)
        least = min(int(values.get("min_clients", RunSettings().min_clients)), clients)
        own = {"clients": clients, "min_clients": least, "seed": self.seed}
        settings = RunSettings(**{**values, **own, "reproducible": not late})
        settings.validate()
        return settings

    def all_settings(self) -> dict[str, Any]:
        """Return every setting by name: as it was given, else of the profile, else its default."""
        return {**asdict(RunSettings(**self._values())), **self.settings}

    def _values(self) -> dict[str, Any]:
        try:
            return with_profile(values_by_name(RunSettings, self.settings, "a run"))
        except TypeError as error:
            raise StudyError(str(error)) from None

    def check(self) -> None:
        """Raise what `run_one` would raise for data and settings that contradict themselves."""
        if self.mode not in MODES:
            raise StudyError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.device not in DEVICES:
            raise StudyError(f"device must be one of {', '.join(DEVICES)}, got {self.device!r}")
        if not 0 <= self.seed <= MAX_SEED:
            raise StudyError(f"a seed must be 0 to {MAX_SEED}, got {self.seed}")
        self.data.validate()
        never = [name for name, number in self.late().items() if number >= self._rounds()]
        if never:
            raise StudyError(
                f"late_round {self.late()[never[0]]}: {never[0]} would join after the last of "
                f"{self._rounds()} rounds"
            )
        if self.task.endswith(".py") and not Path(self.task).is_file():
            raise StudyError(f"there is no task file {self.task}")
        self.run_settings()

    def _rounds(self) -> int:
        return self.run_settings().rounds

    def document(self) -> dict[str, Any]:
        """Return all of it in plain types; settings as they were given."""
        return {
            "name": self.name,
            "data": asdict(self.data),
            "settings": dict(self.settings),
            "seed": self.seed,
            "mode": self.mode,
            "arrivals": dict(self.arrivals),
            "task": self.task,
            "device": self.device,
        }

    def digest(self) -> str:
        """Return twelve digits that change with anything that the result depends on.

        Settings count with their defaults, files of a task and of shards and the code of ssfl with
        their content, torch with its version.
        """
        whole = {
            **self.document(),
            "settings": asdict(self.run_settings()),
            "arrivals": self.late(),
            "files": [_file_digest(path) for path in self._files()],
            "versions": [version("ssfl"), _code_digest(), version("torch")],
        }
        text = json.dumps(whole, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def file_name(self) -> str:
        """Return the name under which its result is stored."""
        plain = re.sub(r"[^\w.=,+-]+", "_", self.name).strip("._") or "run"
        return f"{plain[:_MAX_NAME_CHARS]}-{self.seed}-{self.digest()}.json"

    def _files(self) -> list[Path]:
        files = [Path(self.task)] if self.task.endswith(".py") else []
        if self.data.source not in NAMES:
            folder = Path(self.data.source).expanduser()
            files += [find_shard(name, folder) for name in shard_names(folder)]
        return files


@lru_cache(maxsize=1)
def _code_digest() -> str:
    """Return a digest of the code that a simulated run goes through."""
    import ssfl

    parts = ("codec", "method", "datasets", "learning", "client", "server", "simulator", "study")
    found = {
        file.relative_to(root).as_posix(): file
        for root in ssfl.__path__
        for part in parts
        for file in (Path(root) / part).rglob("*.py")
    }
    whole = hashlib.sha256()
    for name, file in sorted(found.items()):
        whole.update(name.encode() + file.read_bytes())
    return whole.hexdigest()[:12]


def _num_clients(data: DataSpec) -> int:
    if data.source in NAMES:
        return data.clients
    return len(shard_names(Path(data.source).expanduser()))


def _file_digest(path: Path) -> str:
    if path.is_dir():  # a shard of a task's own
        return "".join(_file_digest(one) for one in sorted(path.rglob("*")) if one.is_file())
    stat = path.stat()
    return _content_digest(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _content_digest(path: Path, _size: int, _changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
