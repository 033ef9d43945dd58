"""The image task with a client that can be blocked before a gradient (federation.Hold).

A block at a known gradient instead of a sleep, so that a kill "in the middle of a round" really
is in the middle of one.
"""

import os
import time
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn

from ssfl.learning.image_task import build_model, load_shard, metrics
from ssfl.learning.image_task import loss as image_loss

__all__ = ["build_model", "load_shard", "loss", "metrics"]

_gradients = count(0)  # 0: a site tries its task on one batch before it joins


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        _stand_still(next(_gradients))
    return image_loss(model, x, y)


def _stand_still(gradient: int) -> None:
    name = os.environ.get("HOLD_FILE")
    if not name or Path(name).name != f"hold-{gradient}":
        return
    Path(name).with_suffix(".reached").touch()
    while Path(name).exists():
        time.sleep(0.01)
