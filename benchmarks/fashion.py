"""Fashion-MNIST split among clients, and training in one process with the parts of the service.

Sites, cohorts, masks and sums are those of the client and the coordinator (`Site`,
`sample_cohort`, `top_k`, `ExactSum`); only the sockets are missing. Values pass through a `Channel`
instead, which may code them and count the bytes.
"""

import argparse
import gzip
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from benchmarks import environment
from benchmarks.parallel import add_processes_flag

from ssfl.client.local_work import Site
from ssfl.datasets.shards.partition import count_classes, partition, partition_test
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.load_task import load_task
from ssfl.method.density import kept_for_sparsity
from ssfl.method.exact_sum import MAX_SCORE_FRACTION_BITS, VALUE_BOUND, ExactSum, fraction_bits
from ssfl.method.mask import Mask, top_k
from ssfl.method.sampling import sample_cohort
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ScoringRequest
from ssfl.strategies.registry import check_settings

FOLDER = Path("/usr/share/datasets/fashion-mnist")
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte",
         "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")  # fmt: skip
NUM_CLASSES = 10
NUM_CLIENTS = 100
ALPHA = 0.3  # Dirichlet
SPARSITY = "0.9"
DENSITY = 0.1

Vector = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class NoData(Exception):
    """The data set is missing."""

    def __init__(self, missing: str, folder: Path) -> None:
        super().__init__(
            f"{folder} has no {missing} (nor {missing}.gz). Fashion-MNIST comes with\n"
            "    apt-get install dataset-fashion-mnist\n"
            "or as four IDX files from https://github.com/zalandoresearch/fashion-mnist: "
            "give their folder with --data"
        )


@dataclass(frozen=True, eq=False)
class FashionImages:
    """The whole data set as stored."""

    train_x: Bytes  # (60000, 28, 28)
    train_y: npt.NDArray[np.int64]
    test_x: Bytes  # (10000, 28, 28)
    test_y: npt.NDArray[np.int64]


def read_images(folder: Path) -> FashionImages:
    """Return Fashion-MNIST; raise NoData if a file is missing."""
    x, y, test_x, test_y = (_read_idx(folder, name) for name in FILES)
    return FashionImages(x, y.astype(np.int64), test_x, test_y.astype(np.int64))


def _read_idx(folder: Path, name: str) -> Bytes:
    for path, opened in ((folder / f"{name}.gz", gzip.open), (folder / name, open)):
        if path.is_file():
            with opened(path, "rb") as file:
                content = file.read()
            shape = np.frombuffer(content, ">u4", count=content[3], offset=4).astype(int)
            return np.frombuffer(content, np.uint8, offset=4 + 4 * shape.size).reshape(shape)
    raise NoData(name, folder)


def small_grey(x: Bytes) -> Vector:
    """Return images of 1x14x14: means of 2x2 pixels."""
    pixels = x.reshape(-1, 14, 2, 14, 2).astype(np.float32)
    means: Vector = pixels.mean(axis=(2, 4))[:, None]
    return means / np.float32(255)


def large_colour(x: Bytes) -> Vector:
    """Return images of 3x32x32 for ResNet-18: two black pixels around, grey in three channels."""
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2))).astype(np.float32) / np.float32(255)
    return np.repeat(padded[:, None], 3, axis=1)


def client_names(num_clients: int) -> list[str]:
    return [f"shard_{client:02d}" for client in range(num_clients)]


@dataclass(frozen=True, eq=False)
class Split:
    """The samples of each client: Dirichlet(0.3) class mixes, equal sizes."""

    images: FashionImages
    train: list[npt.NDArray[np.int64]]
    test: list[npt.NDArray[np.int64]]

    @classmethod
    def of(cls, images: FashionImages, num_clients: int, seed: int) -> "Split":
        train = partition(images.train_y, num_clients, "dirichlet", ALPHA, seed)
        counts = count_classes(images.train_y, train, NUM_CLASSES)
        return cls(images, train, partition_test(images.test_y, counts))

    def shard(self, client: int, prepare: Callable[[Bytes], Vector]) -> Shard:
        """Return a client's shard, with images prepared for the network."""
        images, train, test = self.images, self.train[client], self.test[client]
        return Shard(
            prepare(images.train_x[train]), images.train_y[train],
            prepare(images.test_x[test]), images.test_y[test], NUM_CLASSES,
        )  # fmt: skip


class Channel(Protocol):
    """The link between coordinator and clients."""

    def down(self, round_number: int, cohort: list[str], base: Vector) -> None:
        """Send the base to the clients of a round."""
        ...

    def up(self, round_number: int, client: str, values: Vector, base: Vector) -> Vector:
        """Return a client's values as the coordinator receives them."""
        ...

    def commit(self, mean: Vector, base: Vector) -> Vector:
        """Return the next base, as all ends will hold it."""
        ...


class PlainChannel:
    """Codes and counts nothing."""

    def down(self, round_number: int, cohort: list[str], base: Vector) -> None:
        pass

    def up(self, _round_number: int, _client: str, values: Vector, _base: Vector) -> Vector:
        return values

    def commit(self, mean: Vector, _base: Vector) -> Vector:
        return mean


class FashionFederation:
    """Clients with their data, and the work of a coordinator."""

    def __init__(
        self, images: FashionImages, seed: int, num_clients: int = NUM_CLIENTS, per_round: int = 0
    ) -> None:
        self.settings = RunSettings(
            sparsity=SPARSITY, clients=num_clients, clients_per_round=per_round, local_epochs=1,
            batch_size=16, learning_rate=0.1, lr_decay=0.998, momentum=0.0, seed=seed,
        )  # fmt: skip
        check_settings(self.settings)
        task = load_task(str(Path(__file__).with_name("fashion_task.py")))
        split, cpu = Split.of(images, num_clients, seed), torch.device("cpu")
        self.sites: dict[str, Site] = {}
        self.weights: dict[str, int] = {}
        for client, name in enumerate(client_names(num_clients)):
            shard = split.shard(client, small_grey)
            self.sites[name] = Site.build(task, shard, self.settings, name, cpu)
            self.weights[name] = shard.num_samples
        everything = Shard(
            small_grey(images.train_x[:1]), images.train_y[:1],
            small_grey(images.test_x), images.test_y, NUM_CLASSES,
        )  # fmt: skip
        # The clients' test samples together are the test set, so one site tests for all.
        self._tester = Site.build(task, everything, self.settings, "tester", cpu)
        self.manifest = self._tester.manifest
        self.initial = self._tester.initial
        self.num_kept = kept_for_sparsity(SPARSITY, self.manifest.num_masked)

    @property
    def paper_bytes(self) -> float:
        """Return the paper's 4sP: four bytes for each of the share s of all P parameters."""
        return 4 * DENSITY * self.manifest.size

    def scores(self, clients: Iterable[str]) -> dict[str, Vector]:
        return {name: self.sites[name].score(ScoringRequest(self.initial)) for name in clients}

    @cached_property
    def mask(self) -> Mask:
        """Return the mask of exact scores."""
        scores = self.scores(self.sites)
        return top_k(mean_scores(scores, self.weights), self.num_kept)

    def accuracy(self, mask: Mask, base: Vector) -> float:
        """Return the accuracy of the base on all clients' test samples."""
        tested = self._tester.evaluate(mask, base)
        assert tested.correct is not None
        return tested.correct / tested.total

    def train(
        self, mask: Mask, rounds: int, channel: Channel, on_round: Callable[[int, Vector], Any]
    ) -> Vector:
        """Train; `on_round` gets each round's number and its resulting base."""
        base = mask.gather(self.initial)
        for round_number in range(rounds):
            cohort = sample_cohort(self.settings, round_number, 0, list(self.sites))
            channel.down(round_number, cohort, base)
            weight = sum(self.weights[client] for client in cohort)
            total = ExactSum(base.size, fraction_bits(VALUE_BOUND, weight))
            for client in cohort:
                trained = self.sites[client].train(mask, base, round_number, _ignore)
                received = channel.up(round_number, client, trained.values, base)
                total.fold(received, self.weights[client])
            base = channel.commit(total.mean(), base)
            on_round(round_number, base)
        return base


@lru_cache(maxsize=1)
def federation(data: Path, seed: int, num_clients: int, per_round: int) -> FashionFederation:
    """Return a federation; the last one is cached per process."""
    return FashionFederation(read_images(data), seed, num_clients, per_round)


def mean_scores(scores: dict[str, Vector], weights: dict[str, int]) -> Vector:
    """Return the mean of scores, weighted by training samples, as the coordinator does."""
    largest = max(float(own_scores.max()) for own_scores in scores.values())
    weight = sum(weights[client] for client in scores)
    bits = fraction_bits(largest, weight, MAX_SCORE_FRACTION_BITS)
    total = ExactSum(next(iter(scores.values())).size, bits)
    for client, own_scores in scores.items():
        total.fold(own_scores, weights[client])
    return total.mean()


def training_parser(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """Return the flags of every benchmark that trains; `quick` is the help of --quick."""
    parser = argparse.ArgumentParser(description=str(doc).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=environment.RESULTS, help="folder of results")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument("--quick", action="store_true", help=quick)
    add_processes_flag(parser)
    parser.add_argument(
        "--data",
        type=Path,
        default=FOLDER,
        help="folder of Fashion-MNIST's IDX files (%(default)s)",
    )
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the arguments; exit with 3 and the remedy if the data are missing."""
    args = parser.parse_args()
    try:
        read_images(args.data)
    except NoData as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    return args


def _ignore(_step: int, _steps: int) -> None:
    """Ignore steps: a benchmark shows rounds."""
