"""The specification of one run of a study: the same spec gives the same model."""

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
from ssfl.strategies.registry import check_settings, identity
from ssfl.study.data import DataSpec, arrivals, client_names
from ssfl.study.errors import StudyError

MODES = ("exact", "fast")
DEVICES = ("auto", "cpu", "cuda", "mps")
CPU = "cpu"
IMAGE = "image"
# Run settings that a study replaces, and what replaces them.
STUDY_SETTINGS = {
    "clients": "every shard is a client: set `clients` of the data",
    "seed": "a study has `seeds`",
    "reproducible": "a simulated run always is",
}
_MAX_NAME_CHARS = 80  # characters of a configuration name in a file name


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A run: its data, settings and seed.

    `settings` are named as the flags of `ssfl-coordinator`; any not given have the value of
    `profile` or their default. `arrivals` has the first round of clients that join later, in
    addition to those of `data`.
    """

    name: str  # of the configuration; runs that differ only in their seed share it
    data: DataSpec = field(default_factory=DataSpec)  # the cut depends on `seed`
    settings: Mapping[str, Setting] = field(default_factory=dict)
    seed: int = 0  # decides every random choice of data and run
    mode: str = "exact"  # same bits as the service; `fast`: clients stacked where that is faster
    arrivals: Mapping[str, int] = field(default_factory=dict)
    task: str = IMAGE  # image, table, a .py file or an importable module
    device: str = CPU  # as for `ssfl-client`
    tests_apart: bool = False  # the bytes of rounds are those of a run without tests
    round_tests: bool = True  # clients of a round test the model before and after they train

    @property
    def label(self) -> str:
        """Name and seed, for people."""
        return f"{self.name}, seed {self.seed}"

    def late(self) -> dict[str, int]:
        """Return every client that joins late, with its first round."""
        return {**arrivals(self.data), **self.arrivals}

    def run_settings(self) -> RunSettings:
        """Return the settings of the run, which waits for all clients that join at the start.

        The run is `reproducible` unless a client joins later, since a reproducible service admits
        no newcomers. The simulated run gives the same model each time in either case.

        Raises StudyError or SettingsError for settings that no run can have.
        """
        for name, why in STUDY_SETTINGS.items():
            if name in self.settings:
                raise StudyError(f"{name} is not a setting of a simulated run: {why}")
        values, late = self._values(), self.late()
        clients = len(client_names(self.data)) - len(late)
        min_clients = min(int(values.get("min_clients", RunSettings().min_clients)), clients)
        own = {"clients": clients, "min_clients": min_clients, "seed": self.seed}
        settings = RunSettings(**{**values, **own, "reproducible": not late})
        check_settings(settings, simulated=True)
        return settings

    def all_settings(self) -> dict[str, Any]:
        """Return every setting by name: its given value, that of the profile, or its default."""
        return {**asdict(RunSettings(**self._values())), **self.settings}

    def _values(self) -> dict[str, Any]:
        try:
            return with_profile(values_by_name(RunSettings, self.settings, "a run"))
        except TypeError as error:
            raise StudyError(str(error)) from None

    def check(self) -> None:
        """Raise the exception that `run_one` would raise for an invalid spec."""
        if self.mode not in MODES:
            raise StudyError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.device not in DEVICES:
            raise StudyError(f"device must be one of {', '.join(DEVICES)}, got {self.device!r}")
        if not 0 <= self.seed <= MAX_SEED:
            raise StudyError(f"a seed must be 0 to {MAX_SEED}, got {self.seed}")
        self.data.validate()
        rounds = self.run_settings().rounds
        for name, number in self.late().items():
            if number >= rounds:
                raise StudyError(
                    f"late_round {number}: {name} would join after the last of {rounds} rounds"
                )
        if self.task.endswith(".py") and not Path(self.task).is_file():
            raise StudyError(f"there is no task file {self.task}")

    def document(self) -> dict[str, Any]:
        """Return the spec in types that JSON has; settings as they were given."""
        return asdict(self)

    def digest(self) -> str:
        """Return twelve hex digits that change with anything that the result depends on.

        These are all settings with their defaults, the content of task files, shards and the code
        of ssfl, and the version of torch.
        """
        return digest_of(self.ingredients())

    def ingredients(self) -> dict[str, Any]:
        """Return what the digest covers, in types that JSON has."""
        settings = self.run_settings()
        return {
            **self.document(),
            "settings": asdict(settings),
            "arrivals": self.late(),
            "files": [_file_digest(path) for path in self._files()],
            "versions": [version("ssfl"), code_digest(), version("torch")],
            "strategy": identity(settings),
        }

    def file_name(self) -> str:
        """Return the name of the file that stores the result."""
        plain = re.sub(r"[^\w.=,+-]+", "_", self.name).strip("._") or "run"
        return f"{plain[:_MAX_NAME_CHARS]}-{self.seed}-{self.digest()}.json"

    def _files(self) -> list[Path]:
        files = [Path(self.task)] if self.task.endswith(".py") else []
        if self.data.source not in NAMES:
            folder = Path(self.data.source).expanduser()
            files += [find_shard(name, folder) for name in shard_names(folder)]
        return files


def digest_of(ingredients: Mapping[str, Any]) -> str:
    """Return the twelve hex digits of a spec's ingredients."""
    text = json.dumps(ingredients, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def spec_of(document: Mapping[str, Any]) -> RunSpec:
    """Return the spec of a document that `RunSpec.document` returned."""
    return RunSpec(**{**document, "data": DataSpec(**document["data"])})


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a digest of the code that a simulated run uses."""
    import ssfl

    parts = (
        *("codec", "method", "strategies", "datasets", "learning", "client", "server"),
        *("simulator", "study"),
    )
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


def _file_digest(path: Path) -> str:
    if path.is_dir():  # a shard that a task reads itself
        return "".join(_file_digest(file) for file in sorted(path.rglob("*")) if file.is_file())
    stat = path.stat()
    return _content_digest(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _content_digest(path: Path, _size: int, _changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
