"""The networks whose bytes are counted, and the images for their saliency.

The images are Fashion-MNIST if Debian's package `dataset-fashion-mnist` is installed, else the
digits of scikit-learn. Both become 3x32x32, so the networks have the sizes of the paper.
"""

import gzip
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.shard_file import Shard

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
SIDE = 32
NUM_CLASSES = 10  # of the images; a network may have more outputs
SAMPLES, TEST_SAMPLES = 160, 8  # of one client
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class NetworkCase:
    """A network of the paper."""

    name: str
    model: str
    num_classes: int


CASES = (
    NetworkCase("ResNet-18", "resnet18", 10),
    NetworkCase("ResNet-50", "resnet50", 100),
    NetworkCase("ResNet-110", "resnet110", 10),
)


@dataclass(frozen=True)
class ImageSet:
    """A whole data set."""

    source: str
    x: npt.NDArray[np.uint8]  # (N, 3, 32, 32)
    y: npt.NDArray[np.int64]

    def shard(self, client: int, num_classes: int) -> Shard:
        """Return the samples of one client: four of the ten classes."""
        own = [(client + step) % NUM_CLASSES for step in (0, 1, 3, 6)]
        mine = np.flatnonzero(np.isin(self.y, own))
        first = client * (SAMPLES + TEST_SAMPLES) % (mine.size - SAMPLES - TEST_SAMPLES)
        chosen = mine[first : first + SAMPLES + TEST_SAMPLES]
        x, y = self.x[chosen].astype(np.float32) / np.float32(255), self.y[chosen]
        return Shard(x[:SAMPLES], y[:SAMPLES], x[SAMPLES:], y[SAMPLES:], num_classes)


def load_images() -> ImageSet:
    """Return the available images."""
    if not FASHION_MNIST.is_dir():
        small = digits()
        x = np.rint(small.train_x * 255).astype(np.uint8).repeat(4, axis=2).repeat(4, axis=3)
        return ImageSet(
            "scikit-learn's digits, 8x8 enlarged to 3x32x32", _coloured(x), small.train_y
        )
    x = _read_idx(FASHION_MNIST / "t10k-images-idx3-ubyte.gz")[:, None]
    y = _read_idx(FASHION_MNIST / "t10k-labels-idx1-ubyte.gz").astype(np.int64)
    border = (SIDE - x.shape[-1]) // 2
    x = np.pad(x, ((0, 0), (0, 0), (border, border), (border, border)))
    return ImageSet(
        "Fashion-MNIST (10,000 test images), 28x28 with a border to 3x32x32", _coloured(x), y
    )


def _coloured(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.repeat(x, 3, axis=1)


def _read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Return the array of an idx file: 2 zero bytes, type 8, dimensions, sizes u32, bytes."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\x00\x00\x08":
        raise RuntimeError(f"{path.name} is not an idx file of bytes")
    num_dimensions = content[3]
    shape = np.frombuffer(content, ">u4", num_dimensions, offset=4).tolist()
    data = np.frombuffer(content, np.uint8, math.prod(shape), offset=4 + 4 * num_dimensions)
    return data.reshape(shape)
