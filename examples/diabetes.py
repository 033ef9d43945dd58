r"""Tabular regression: the progression of diabetes after a year, from ten measurements.

Four hospitals hold 442 patients (scikit-learn's copy of Efron et al. 2004), divided by age, so
that every hospital sees different patients. To try it, in any folder:

    python diabetes.py                    # writes hospitals/young.csv … old.csv
    ssfl rehearse --task diabetes.py --data-root hospitals --sparsity 0.8 --rounds 10 \
        --local-epochs 1 --dense

A task is the first four functions below; the rest prepares the data. With more rounds or epochs
the networks overfit the 352 training patients, the dense one more so.
"""

from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards import Shard
from ssfl.method.settings import RunSettings

MEAN, DEVIATION = 152.1, 77.0  # of the target; the hospitals agreed on them before the run
TEST_EVERY = 5


def load_shard(path: Path) -> Shard:
    """Return a hospital's patients: every fifth is for testing."""
    table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float32)
    x, y = table[:, :-1], (table[:, -1] - MEAN) / DEVIATION
    is_test = np.arange(len(y)) % TEST_EVERY == 0
    return Shard(x[~is_test], y[~is_test], x[is_test], y[is_test], num_classes=0)


def build_model(settings: RunSettings, shard: Shard) -> nn.Module:
    """Return a small network with one output."""
    (columns,) = shard.input_shape
    return nn.Sequential(
        nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared error; outputs (N, 1) become (N,) like the targets."""
    return functional.mse_loss(model(x).squeeze(1), y)


def metrics(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the mean absolute error in the target's unit."""
    return {"absolute_error": DEVIATION * (model(x).squeeze(1) - y).abs().mean()}


def write_hospitals(folder: Path) -> None:
    """Divide the patients by age into four files."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    features = data.data * np.sqrt(len(data.data))  # columns of mean 0 and deviation 1
    by_age = np.argsort(features[:, data.feature_names.index("age")], kind="stable")
    folder.mkdir(exist_ok=True)
    for name, patients in zip(
        ("young", "younger", "older", "old"), np.array_split(by_age, 4), strict=True
    ):
        table = np.column_stack([features[patients], data.target[patients]])
        np.random.default_rng(0).shuffle(table)
        header = ",".join([*data.feature_names, "progression"])
        path = folder / f"{name}.csv"
        np.savetxt(path, table, delimiter=",", header=header, comments="", fmt="%.6g")
        print(f"{path}: {len(table)} patients")


if __name__ == "__main__":
    write_hospitals(Path("hospitals"))
