"""One end of Flower over a link: `flower_link_app.py server|client ADDRESS VALUES ROUNDS PAUSE_S`.

Run by flower_link.py with Flower on PYTHONPATH. The client returns the VALUES float32 that it got,
after a pause that stands for training. The server prints the seconds of each round, without
the pause, as JSON.
"""

import json
import socket
import sys
import time
from typing import Any

import numpy as np

# mypy runs in an environment without Flower.
from flwr.client import NumPyClient, start_client  # type: ignore[import-not-found]
from flwr.common import ndarrays_to_parameters  # type: ignore[import-not-found]
from flwr.server import ServerConfig, start_server  # type: ignore[import-not-found]
from flwr.server.strategy import FedAvg  # type: ignore[import-not-found]

START_S = 60.0


class Timed(FedAvg):  # type: ignore[misc]
    """FedAvg that notes when a round begins and ends."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.began_s: list[float] = []
        self.ended_s: list[float] = []

    def configure_fit(self, *given: Any, **more: Any) -> Any:
        self.began_s.append(time.monotonic())
        return super().configure_fit(*given, **more)

    def aggregate_fit(self, *given: Any, **more: Any) -> Any:
        self.ended_s.append(time.monotonic())
        return super().aggregate_fit(*given, **more)


class Echo(NumPyClient):  # type: ignore[misc]
    """Returns what it got, after a pause."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    def fit(self, parameters: Any, config: Any) -> Any:  # noqa: ARG002
        time.sleep(self.pause_s)
        return [values + 1 for values in parameters], 1, {}


def wait_for(address: str) -> None:
    """Return when the server accepts connections: Flower's client does not wait for it."""
    host, port = address.split(":")
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=START_S).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


def main() -> None:
    end, address, values, rounds, pause = sys.argv[1:]
    if end == "client":
        wait_for(address)
        start_client(server_address=address, client=Echo(float(pause)).to_client())
        return
    first = np.random.default_rng(0).normal(size=int(values)).astype(np.float32)
    strategy = Timed(
        fraction_evaluate=0.0, min_fit_clients=1, min_available_clients=1,
        initial_parameters=ndarrays_to_parameters([first]),
    )  # fmt: skip
    start_server(
        server_address=address, config=ServerConfig(num_rounds=int(rounds)), strategy=strategy
    )
    took = [
        ended - began - float(pause)
        for began, ended in zip(strategy.began_s, strategy.ended_s, strict=True)
    ]
    print(json.dumps(took))


if __name__ == "__main__":
    main()
