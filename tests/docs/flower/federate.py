"""Runs a Flower app, server and clients, in this process: `federate.py APP CONFIGS NODES`.

APP is a module with `server_app` and `client_app`. The others are lists in JSON: the run config of
each run, and the node config of each node. Flower's strategy assigns the work; this
program only carries messages, as the bytes they would be on a wire. Of each run it prints a line of
JSON: a list of what was exchanged, in order.
"""

import hashlib
import importlib
import json
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import torch

# mypy runs in an environment without Flower.
from flwr.app import Context, Message, RecordDict  # type: ignore[import-not-found]
from flwr.clientapp import ClientApp  # type: ignore[import-not-found]
from flwr.common.serde import (  # type: ignore[import-not-found]
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Message as Packed  # type: ignore[import-not-found]
from flwr.serverapp import Grid  # type: ignore[import-not-found]
from flwr.supercore.run import Run  # type: ignore[import-not-found]
from flwr.supercore.task_identity import TaskIdentity  # type: ignore[import-not-found]

RUN_ID, SERVER_ID = 1, 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """One message and the reply to it."""

    kind: str  # train, evaluate, get_parameters
    node: int
    sent: str  # digest of the arrays sent to the node; empty if there were none
    returned: str  # digest of the returned arrays
    metrics: dict[str, Any]  # the returned numbers


class LocalGrid(Grid):  # type: ignore[misc]
    """Nodes in this process, each with its own persistent context, like real ones."""

    def __init__(self, app: ClientApp, nodes: dict[int, Context]) -> None:
        self.app, self.nodes = app, nodes
        self.exchanges: list[Exchange] = []
        self.lock = threading.Lock()  # a NumPyClient's server calls from several threads

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002
    ) -> list[Message]:
        with self.lock:
            return [self.exchange(message) for message in messages]

    def exchange(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        reply = over_a_wire(self.app(over_a_wire(message), self.nodes[node]))
        self.exchanges.append(
            Exchange(message.metadata.message_type, node, digest(message.content),
                     digest(reply.content), numbers(reply.content))
        )  # fmt: skip
        return reply

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    @property
    def run(self) -> Run:
        return Run.create_empty(RUN_ID)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def over_a_wire(message: Message) -> Message:
    return message_from_proto(Packed.FromString(message_to_proto(message).SerializeToString()))


def digest(content: RecordDict) -> str:
    arrays = [a for r in content.array_records.values() for a in r.to_numpy_ndarrays()]
    parts = [f"{a.dtype}{a.shape}".encode() + a.tobytes() for a in arrays]
    return hashlib.sha256(b"".join(parts)).hexdigest() if parts else ""


def numbers(content: RecordDict) -> dict[str, Any]:
    records = [*content.metric_records.values(), *content.config_records.values()]
    return {name: value for record in records for name, value in record.items()}


def run(
    app: ModuleType, run_config: dict[str, Any], node_configs: list[dict[str, Any]]
) -> LocalGrid:
    torch.manual_seed(0)
    nodes = {
        node: Context(RUN_ID, node, config, RecordDict(), run_config)
        for node, config in enumerate(node_configs, SERVER_ID + 1)
    }
    grid = LocalGrid(app.client_app, nodes)
    app.server_app(grid, Context(RUN_ID, SERVER_ID, {}, RecordDict(), run_config))
    return grid


def main(name: str, run_configs: str, node_configs: str) -> None:
    app = importlib.import_module(name)
    # Set by the process that runs a ServerApp, and read whenever a message is made.
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, SERVER_ID
    for run_config in json.loads(run_configs):
        grid = run(app, run_config, json.loads(node_configs))
        print(json.dumps([asdict(exchange) for exchange in grid.exchanges]))


if __name__ == "__main__":
    sys.path.insert(0, "")  # the app is in the current folder
    main(*sys.argv[1:])
