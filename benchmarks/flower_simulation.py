"""Federated averaging in Flower's simulation, with Ray: `flower_simulation.py DATA ROUNDS`.

Run by simulator_speed.py if Flower is available, with its own folder on PYTHONPATH, so that Ray's
processes import it like any Flower app. DATA is an npz archive with the samples of all clients, one
after the other. 10 of the clients train in each round: one epoch of plain PyTorch over a random
permutation, without a data loader. The model is tested only after the last round. Ray gets one
core, which all processes inherit.

The last line of the output is JSON: the CPU seconds of this process and its descendants after each
round (round 0: before the first), and the accuracy of the last model on all test samples.
"""

import json
import sys
from functools import lru_cache
from typing import Any

import numpy as np
import psutil
import torch

# mypy runs in an environment without Flower.
from flwr.app import (  # type: ignore[import-not-found]
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # type: ignore[import-not-found]
from flwr.serverapp import Grid, ServerApp  # type: ignore[import-not-found]
from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found]
from flwr.simulation import run_simulation  # type: ignore[import-not-found]
from torch import nn
from torch.nn import functional

PER_ROUND, BATCH, RATE, DECAY, WEIGHT_DECAY = 10, 16, 0.1, 0.98, 5e-4
Parts = dict[str, torch.Tensor]


@lru_cache(maxsize=1)
def samples(path: str) -> Parts:
    """Return the data, read once per process."""
    torch.set_num_threads(1)
    with np.load(path) as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


def network() -> nn.Sequential:
    """Return the benchmark's network, cnn-small."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return model


def train_one(message: Message, context: Context, path: str) -> Message:
    """Train one client for a round."""
    data = samples(path)
    client = int(context.node_config["partition-id"])
    rows = slice(int(data["starts"][client]), int(data["starts"][client + 1]))
    x, y = data["train_x"][rows], data["train_y"][rows]
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    round_number = int(message.content["config"]["server-round"]) - 1
    optimizer = torch.optim.SGD(
        model.parameters(), RATE * DECAY**round_number, weight_decay=WEIGHT_DECAY
    )
    order = torch.randperm(len(y))
    for start in range(0, len(y), BATCH):
        batch = order[start : start + BATCH]
        optimizer.zero_grad()
        functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, including ended ones."""
    here = psutil.Process()
    total = 0.0
    for process in (here, *here.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # its own, and those of ended children
        except psutil.NoSuchProcess:
            continue
    return total


class RoundRecorder:
    """Records CPU time after each round, and the accuracy after the last."""

    def __init__(self, path: str, rounds: int) -> None:
        self.seconds: list[float] = []
        self.accuracy = 0.0
        self._path, self._rounds = path, rounds

    def look(self, round_number: int, arrays: ArrayRecord) -> MetricRecord:
        self.seconds.append(cpu_seconds())
        if round_number == self._rounds:
            data, model = samples(self._path), network()
            model.load_state_dict(arrays.to_torch_state_dict())
            with torch.no_grad():
                right = model(data["test_x"]).argmax(dim=1) == data["test_y"]
            self.accuracy = float(right.float().mean())
        return MetricRecord({})


def main(path: str, rounds: int) -> None:
    torch.manual_seed(0)
    recorder = RoundRecorder(path, rounds)
    clients = len(samples(path)["starts"]) - 1
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        return train_one(message, context, path)

    @server_app.main()  # type: ignore[untyped-decorator]
    def serve(grid: Grid, _context: Context) -> None:
        strategy = FedAvg(
            fraction_train=PER_ROUND / clients, fraction_evaluate=0.0, min_available_nodes=clients
        )
        strategy.start(
            grid, ArrayRecord(network().state_dict()), num_rounds=rounds,
            train_config=ConfigRecord({}), evaluate_fn=recorder.look,
        )  # fmt: skip

    resources: dict[str, Any] = {
        "init_args": {"num_cpus": 1, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client_app, clients, backend_config=resources)
    print(json.dumps({"cpu_seconds": recorder.seconds, "accuracy": recorder.accuracy}))


if __name__ == "__main__":
    import flower_simulation  # type: ignore[import-not-found]  # as Ray's processes import it

    flower_simulation.main(sys.argv[1], int(sys.argv[2]))
