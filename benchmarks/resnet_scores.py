"""Saliency scores of a real ResNet-18: clients of Fashion-MNIST, one balanced minibatch each.

Images are padded to 32x32 and repeated in three channels. The scores are the service's own
(`score_locally`, as called by `Site.score`), of the initial weights of seed 0. They are kept in
files of 45 MB per client: for the time of a benchmark, or in the folder of `--scores` for the next
one.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from benchmarks.fashion import (
    NUM_CLASSES,
    NUM_CLIENTS,
    Split,
    Vector,
    client_names,
    large_colour,
    read_images,
)
from benchmarks.parallel import Report, run_all
from torch import nn

from ssfl.learning.describe import manifest_of
from ssfl.learning.flatten import write_vector
from ssfl.learning.load_task import IMAGE, load_task
from ssfl.learning.models import build_model
from ssfl.learning.saliency import score_locally
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings

SETTINGS = RunSettings(model="resnet18", seed=0)
INPUT_SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class _Client:
    data: Path
    number: int
    path: Path


def resnet() -> tuple[nn.Module, Manifest, Vector]:
    """Return the network, its manifest and its initial weights."""
    model = build_model(SETTINGS.model, INPUT_SHAPE, NUM_CLASSES)
    manifest = manifest_of(model, {"model": SETTINGS.model})
    return model, manifest, initial_vector(manifest, SETTINGS.seed)


@contextmanager
def score_clients(args: argparse.Namespace, num_clients: int) -> Iterator[list[Path]]:
    """Yield files with the scores of the first `num_clients` of 100 clients."""
    with tempfile.TemporaryDirectory(prefix="ssfl-scores-") as temporary:
        folder = args.scores or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        clients = [_Client(args.data, n, folder / f"{n:02d}.npy") for n in range(num_clients)]
        missing = [client for client in clients if not client.path.exists()]
        run_all(_score, missing, [1] * len(missing), args.processes, "scoring with ResNet-18")
        yield [client.path for client in clients]


def add_scores_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scores", type=Path, help="folder that keeps ResNet-18's scores; not deleted"
    )


def read(paths: Sequence[Path]) -> dict[str, Vector]:
    """Return scores by client, memory-mapped."""
    return {path.stem: np.load(path, mmap_mode="r") for path in paths}


@lru_cache(maxsize=1)
def _ready(data: Path) -> tuple[nn.Module, Manifest, Split]:
    model, manifest, initial = resnet()
    write_vector(model, manifest, initial)
    return model, manifest, Split.of(read_images(data), NUM_CLIENTS, SETTINGS.seed)


def _score(client: _Client, report: Report) -> None:
    model, manifest, split = _ready(client.data)
    shard = split.shard(client.number, large_colour)
    name = client_names(NUM_CLIENTS)[client.number]
    scores = score_locally(model, manifest, load_task(IMAGE), shard, SETTINGS, name)
    unfinished = client.path.with_suffix(".part.npy")
    np.save(unfinished, scores)
    unfinished.replace(client.path)
    report(1)
