r"""Fine-tuning: a pretrained network continues to learn at the sites.

A public network knows the handwritten digits 0 to 7. Four sites hold all digits, including 8 and
9, and may not share them. To try it, in any folder:

    python fine_tuning.py                 # writes pretrained.safetensors and sites/*.npz
    ssfl init --task fine_tuning.py --data-root sites --weights pretrained.safetensors --partial
    ssfl rehearse --task fine_tuning.py --data-root sites --init initial.safetensors \
        --sparsity 0.5 --rounds 3 --local-epochs 1

`ssfl init` copies every tensor with the same name and shape. --partial is needed because the last
layer has eight outputs in the file and ten here; it starts untrained. Leave --init out to compare.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards import Shard, read_shard, write_shard
from ssfl.method.settings import RunSettings


class Network(nn.Module):
    """Two convolutions and two linear layers for 8x8 images."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 2 * 2, 64), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


def load_shard(path: Path) -> Shard:
    """Return a site's images, from a shard file as `ssfl shards` writes it."""
    return read_shard(path)


def build_model(settings: RunSettings, shard: Shard) -> nn.Module:
    """Return the network for all ten digits."""
    return Network(shard.num_classes)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return functional.cross_entropy(model(x), y)


def metrics(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the share of digits classified correctly."""
    return {"accuracy": (model(x).argmax(dim=1) == y).float().mean()}


def pretrain(x: Tensor, y: Tensor, steps: int = 400) -> Network:
    """Train on the public digits in the usual, centralised way."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as clients do; small layers do not gain from more threads
    model = Network(8)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(steps):
        batch = torch.arange(64 * step, 64 * step + 64) % len(x)
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(x[batch]), y[batch]))
        optimizer.step()
    right = (model(x).argmax(dim=1) == y).float().mean()
    print(f"pretrained on {len(x)} digits 0 to 7: {100 * right:.1f} % right")
    return model


def write_all(folder: Path) -> None:
    """Train the public network on a third of the digits; give the rest to four sites."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = labels.astype(np.int64)
    public = (np.arange(len(y)) % 3 == 0) & (y < 8)
    model = pretrain(torch.from_numpy(x[public]), torch.from_numpy(y[public]))
    save_file(model.state_dict(), "pretrained.safetensors")
    private = np.flatnonzero(np.arange(len(y)) % 3 != 0)
    folder.mkdir(exist_ok=True)
    for site in range(4):
        own = private[site::4]
        train, test = own[: len(own) * 4 // 5], own[len(own) * 4 // 5 :]
        shard = Shard(x[train], y[train], x[test], y[test], num_classes=10)
        write_shard(folder / f"site_{site}.npz", shard)
    print(f"four sites of {len(own)} digits in {folder}/")


if __name__ == "__main__":
    write_all(Path("sites"))
