"""The data of a study: a known data set, cut among clients in memory by a seed.

The samples are those that `ssfl shards` writes with the same flags, with pixels 0 … 1 as a client
reads them. A study can also use a part of the data, smaller images, and clients that join late
with classes that no other client has. Test samples are spread like training samples, so the local
test sets together are the whole test set.

The files of a known data set are in the cache of `ssfl shards`, in the folder of a system package,
or in `data/<name>` of the working directory.

The source can also be a folder of shards, which are used unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.errors import PartitionError, SourceError
from ssfl.datasets.published.digits import digits
from ssfl.datasets.published.originals import MissingFiles, cache_folder
from ssfl.datasets.registry import PUBLISHED_SETS
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.partition import KINDS, count_classes, partition, partition_test
from ssfl.datasets.shards.shard_file import Array, Shard, find_shard, read_shard, shard_names
from ssfl.datasets.shards.split import choose_share
from ssfl.datasets.source import EMBEDDED, NAMES
from ssfl.method.errors import SettingsError
from ssfl.method.streams import Stream

DATA = Path("data")  # folder of the working directory that may hold known data sets
Indices = npt.NDArray[np.int64]

_BLOCK = 4096  # images pooled at a time
_FOLDER_FIELDS = ("source", "late_clients", "late_round")  # apply to a folder of shards


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Which data a study uses, and how they are cut among clients."""

    source: str = EMBEDDED  # a name that `ssfl shards` knows, or a folder that it wrote
    clients: int = 8
    partition: str = "dirichlet"
    alpha: float = 0.3
    classes_per_client: int = 2
    samples_per_client: int = 0  # on average, drawn from all training samples; 0: all of them
    pool: int = 1  # divides the sides of images; each pixel is the mean of a square
    late_classes: str = ""  # "8,9": only late clients have these, and they have no others
    late_clients: int = 0  # number of clients that join late: the last ones
    late_round: int = 0  # round before which they join
    validation: float = 0.0  # share of each client's training samples

    def validate(self) -> None:
        """Raise SettingsError naming the field at fault."""
        Cut(
            self.clients, self.partition, self.alpha, self.classes_per_client, self.validation
        ).validate()
        if self.partition not in KINDS:
            raise SettingsError(
                f"the partition must be one of {', '.join(KINDS)}, got {self.partition!r}"
            )
        for name, minimum in (
            *(("clients", 1), ("classes_per_client", 1), ("samples_per_client", 0)),
            *(("pool", 1), ("late_clients", 0), ("late_round", 0)),
        ):
            if getattr(self, name) < minimum:
                raise SettingsError(f"{name} must be {minimum} or more, got {getattr(self, name)}")
        if self.source in NAMES and self.late_clients >= self.clients:
            raise SettingsError(
                f"late_clients {self.late_clients} leaves none of {self.clients} clients for "
                "the start: ask for fewer"
            )
        if self.late_clients and not self.late_round:
            raise SettingsError(
                "late_clients needs late_round, the round before which they join: 1 or more"
            )
        if self.late_classes and not self.late_clients:
            raise SettingsError("late_classes needs late_clients, the clients that have them")
        if self.source not in NAMES:
            self._refuse_cutting()

    def _refuse_cutting(self) -> None:
        for field in fields(self):
            if field.name not in _FOLDER_FIELDS and getattr(self, field.name) != field.default:
                raise SettingsError(
                    f"{field.name} is for cutting one of {', '.join(NAMES)}; the shards of "
                    f"{self.source} are used as they are, so leave it out"
                )


BENCHMARK_S = DataSpec(source="fashion-mnist", clients=100, samples_per_client=200, pool=2)


def build_shards(spec: DataSpec, seed: int) -> dict[str, Shard]:
    """Return the shards by client, in the order of names; the same seed gives the same bytes.

    Raises SettingsError, SourceError, ShardError or PartitionError; the message has the remedy.
    """
    spec.validate()
    if spec.source not in NAMES:
        folder = _folder(spec.source)
        return {name: read_shard(find_shard(name, folder)) for name in client_names(spec)}
    data = _smaller(spec.source, spec.pool)
    return dict(zip(client_names(spec), _cut(data, spec, seed), strict=True))


def arrivals(spec: DataSpec) -> dict[str, int]:
    """Return the clients that join late, each with its first round."""
    spec.validate()
    names = client_names(spec)
    return dict.fromkeys(names[len(names) - spec.late_clients :], spec.late_round)


def available(source: str) -> bool:
    """Return True if a source is on this machine; raise SourceError if it is damaged."""
    if source == EMBEDDED:
        return find_spec("sklearn") is not None
    if source not in NAMES:
        return Path(source).expanduser().is_dir()
    try:
        _read(source)
    except _FilesMissing:
        return False
    return True


def first_available(*sources: str) -> str:
    """Return the first source that is on this machine; raise SourceError if none is."""
    for source in sources:
        if available(source):
            return source
    raise SourceError(" ".join(_how_to_get(source) for source in sources))


def client_names(spec: DataSpec) -> list[str]:
    """Return the names of all clients, in their order; late ones are the last."""
    if spec.source not in NAMES:
        names = shard_names(_folder(spec.source))
        if spec.late_clients >= len(names):
            raise SettingsError(
                f"late_clients {spec.late_clients} leaves none of the {len(names)} shards of "
                f"{spec.source} for the start: ask for fewer"
            )
        return names
    width = max(2, len(str(spec.clients - 1)))
    return [f"shard_{client:0{width}d}" for client in range(spec.clients)]


def _folder(source: str) -> Path:
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise SourceError(
            f"{source} is neither a data set nor a folder: name one of "
            f"{', '.join(NAMES)}, or a folder that `ssfl shards` wrote"
        )
    return folder


def _places(source: str) -> list[Path]:
    system = PUBLISHED_SETS[source].system
    return [cache_folder(source), *([system] if system else []), DATA / source]


def _how_to_get(source: str) -> str:
    if source not in PUBLISHED_SETS:
        return f"{source} not found."
    known = PUBLISHED_SETS[source]
    debian = f", on Debian {known.package} brings it" if known.package else ""
    return (
        f"{source} not found in {' or '.join(map(str, _places(source)))}; expected there: "
        f"{known.expects}. `ssfl shards --source {source} --download` fetches it{debian}."
    )


class _FilesMissing(SourceError):
    """A known data set is not on this machine."""


@lru_cache(maxsize=2)
def _read(source: str) -> DataSet:
    """Return a known data set; a process reads its files once."""
    if source == EMBEDDED:
        return digits()
    for place in _places(source):
        try:
            return PUBLISHED_SETS[source].read(place, None)
        except MissingFiles:
            continue
    raise _FilesMissing(_how_to_get(source))


@lru_cache(maxsize=2)
def _smaller(source: str, pool: int) -> DataSet:
    """Return a known data set with its images pooled."""
    data = _read(source)
    if pool == 1:
        return data
    rows, columns = data.input_shape[-2:]
    if rows % pool or columns % pool:
        raise SettingsError(
            f"images of {rows}x{columns} cannot be pooled by {pool}: it must divide both sides"
        )
    train_x, test_x = (_pooled(x, pool) for x in (data.train_x, data.test_x))
    return DataSet(data.name, train_x, data.train_y, test_x, data.test_y, data.class_names)


def _pooled(x: Array, pool: int) -> npt.NDArray[np.float32]:
    """Return the means of squares of pixels, scaled to 0 … 1."""
    count, channels, rows, columns = x.shape
    out = np.zeros((count, channels, rows // pool, columns // pool), dtype=np.float32)
    for start in range(0, count, _BLOCK):
        block = out[start : start + _BLOCK]
        for place in range(pool * pool):
            row, column = divmod(place, pool)
            block += x[start : start + _BLOCK, :, row::pool, column::pool]
        block /= np.float32(pool * pool)
    return _scaled(out, x.dtype)


def _scaled(x: Array, stored: np.dtype[Any] | None = None) -> npt.NDArray[np.float32]:
    """Return pixels as a client reads them; the largest whole number becomes 1."""
    stored = stored or x.dtype
    pixels: npt.NDArray[np.float32] = x.astype(np.float32, copy=False)
    return pixels / np.float32(np.iinfo(stored).max) if stored.kind == "u" else pixels


def _cut(data: DataSet, spec: DataSpec, seed: int) -> Iterator[Shard]:
    """Yield the shards; those of late clients come last."""
    late = _late_classes(data, spec)
    if not late:
        yield from _deal(data, spec, spec.clients, np.arange(data.num_classes), seed)
        return
    others = np.setdiff1d(np.arange(data.num_classes), late)
    yield from _deal(data, spec, spec.clients - spec.late_clients, others, seed)
    # Another seed, so that late clients are not copies of the first ones with other classes.
    late_seed = int(Stream(seed, "study", "late").words(1)[0] >> np.uint64(1))
    yield from _deal(data, spec, spec.late_clients, np.array(late), late_seed)


def _late_classes(data: DataSet, spec: DataSpec) -> list[int]:
    words = [word.strip() for word in spec.late_classes.split(",") if word.strip()]
    known = {str(label): label for label in range(data.num_classes)}
    for word in words:
        if word not in known:
            raise SettingsError(
                f"late_classes must be numbers of classes, 0 to {data.num_classes - 1}, separated "
                f"by commas; got {word!r}"
            )
    late = sorted({known[word] for word in words})
    if len(late) == data.num_classes:
        raise SettingsError("late_classes names all classes: leave some for the other clients")
    return late


def _deal(
    data: DataSet, spec: DataSpec, clients: int, classes: Indices, seed: int
) -> Iterator[Shard]:
    """Yield the shards of `clients` clients, which share the samples of `classes`."""
    train = _drawn(np.flatnonzero(np.isin(data.train_y, classes)), spec, clients, seed)
    test = np.flatnonzero(np.isin(data.test_y, classes))
    labels = data.train_y[train]
    each = spec.classes_per_client
    if spec.late_classes:
        each = min(each, len(classes))
    parts = partition(labels, clients, spec.partition, spec.alpha, seed, each, data.class_names)
    counts = count_classes(labels, parts, data.num_classes)
    tests = partition_test(data.test_y[test], counts)
    for client, (part, tested) in enumerate(zip(parts, tests, strict=True)):
        stream = Stream(seed, "partition", "validation", client)
        val = choose_share(labels[part], spec.validation, stream, keep_each=False)
        kept = np.delete(part, val)
        yield Shard(
            _scaled(data.train_x[train[kept]]), labels[kept],
            _scaled(data.test_x[test[tested]]), data.test_y[test[tested]],
            data.num_classes,
            _scaled(data.train_x[train[part[val]]]), labels[part[val]],
            data.class_names,
        )  # fmt: skip


def _drawn(samples: Indices, spec: DataSpec, clients: int, seed: int) -> Indices:
    """Return the samples to cut: all, or a random part."""
    wanted = clients * spec.samples_per_client
    if wanted > len(samples):
        raise PartitionError(
            f"{clients} clients of {spec.samples_per_client} training samples need {wanted}, but "
            f"{spec.source} has {len(samples)} for them: ask for samples_per_client "
            f"{len(samples) // clients} or less"
        )
    if not wanted:
        return samples
    return samples[Stream(seed, "study", "samples").choose(len(samples), wanted)]
