"""Training loops as users write them, and tasks that have them."""

import textwrap
from pathlib import Path

from ssfl.learning.load_task import LoadedTask, load_task

HEAD = """
import copy

import torch
from torch import nn
from torch.nn import functional

from ssfl.learning.image_task import load_shard, loss, metrics


def build_model(settings, shard):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 4)
    )

"""

BUILT_IN = """
def fit(model, batches, settings):
    optimizer = torch.optim.SGD(
        model.parameters(), lr=batches.rate, momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    total, seen = 0.0, 0
    for x, y in batches:
        for group in optimizer.param_groups:
            group["lr"] = batches.rate
        optimizer.zero_grad()
        value = loss(model, x, y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        total, seen = total + value.item() * len(y), seen + len(y)
    return total / seen
"""

ACCUMULATED = """
def fit(model, batches, settings):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.5, 0.9))
    for epoch in batches.epochs():
        for number, (x, y) in enumerate(epoch, start=1):
            value = functional.cross_entropy(model(x), y) / 2
            value.backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
    return value
"""

TWO = """
def fit(model, batches, settings):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    first = torch.optim.Adam(matrices, lr=0.01)
    second = torch.optim.RMSprop(others, lr=0.001, momentum=0.9, weight_decay=0.1)
    for x, y in batches:
        first.zero_grad()
        second.zero_grad()
        value = functional.cross_entropy(model(x), y)
        value.backward()
        first.step()
        second.step()
    return value
"""

LBFGS = """
def fit(model, batches, settings):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for x, y in batches:
        def closure():
            optimizer.zero_grad()
            value = functional.cross_entropy(model(x), y)
            value.backward()
            return value
        value = optimizer.step(closure)
    return value
"""

OWN_LOADER = """
def fit(model, batches, settings):
    shard = batches.shard
    data = torch.utils.data.TensorDataset(
        torch.from_numpy(shard.train_x), torch.from_numpy(shard.train_y)
    )
    loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            value = functional.cross_entropy(model(x), y)
            value.backward()
            optimizer.step()
    return value.item()
"""

BY_HAND = """
def fit(model, batches, settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        gradients = torch.autograd.grad(
            functional.cross_entropy(model(x), y), list(model.parameters())
        )
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.grad = gradient
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
    return 1
"""


def task_with(folder: Path, body: str) -> LoadedTask:
    """Write a task with this code into a folder and load it."""
    path = folder / f"task_{len(list(folder.iterdir()))}.py"
    path.write_text(HEAD + textwrap.dedent(body))
    return load_task(str(path))
