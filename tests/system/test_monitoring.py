"""Real Prometheus and Alertmanager watch a real federation that is broken on purpose.

Alerts fire, are delivered and clear; every dashboard expression has data; `promtool` accepts the
metrics of both programs.
"""

import http.server
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
import yaml
from monitoring.build import HERE
from monitoring.servers import Prometheus, Server, free_port

from parts import part
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import coordinator_pb2_grpc
from system.programs import Coordinator, Program, Programs, until
from watch.dashboard_files import NAMES, expressions

pytestmark = pytest.mark.system

ROOT = HERE.parent
BYTES = "bytes-on-the-wire"
HURRY = 60.0  # minutes of `for:` become seconds
RUN = (
    "--clients=2", "--rounds=1000000", "--local-steps=2", "--model=mlp", "--sparsity=0.9",
    "--scoring-batches=1", "--round-deadline-s=600",
)  # fmt: skip


class AlertReceiver(http.server.BaseHTTPRequestHandler):
    """Receives alerts from Alertmanager, kept by path: (name of the alert, firing or resolved)."""

    kept: dict[str, list[tuple[str, str]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        received = [(alert["labels"]["alertname"], alert["status"]) for alert in body["alerts"]]
        self.kept.setdefault(self.path, []).extend(received)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def receive_alerts() -> Iterator[tuple[str, dict[str, list[tuple[str, str]]]]]:
    """Yield the address of a receiver, and the alerts it has received."""
    kept: dict[str, list[tuple[str, str]]] = {}
    handler = type("Handler", (AlertReceiver,), {"kept": kept})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", kept
        finally:
            server.shutdown()
            thread.join()


class Alertmanager(Server):
    """Alertmanager with our routing; notifications go to one address without delay."""

    def __init__(self, program: str, folder: Path, notes: str) -> None:
        super().__init__("alertmanager", folder)
        config = yaml.safe_load((HERE / "alertmanager.yml").read_text("utf-8"))
        for route in (config["route"], *config["route"]["routes"]):
            route |= {"group_wait": "0s", "group_interval": "1s"}
        for receiver in config["receivers"]:
            for webhook in receiver["webhook_configs"]:
                path = urllib.parse.urlsplit(webhook["url"]).path
                webhook["url"] = notes + path
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config), "utf-8")
        self._program = program

    def run(self) -> Self:
        """Start the process and wait until it is ready."""
        self.start(
            self._program, "--config.file=alertmanager.yml", "--storage.path=data",
            f"--web.listen-address=127.0.0.1:{self.port}", "--cluster.listen-address=",
        )  # fmt: skip
        return self


def metrics_port(program: Program) -> int:
    def line() -> str:
        return next((text for text in program.out.splitlines() if " metrics on " in text), "")

    return int(until(line, f"{program.name} prints its metrics port").rpartition(":")[2])


def start_client(sites: Programs, coordinator: Coordinator, shard: str) -> Program:
    return sites.client(shard, coordinator, "--metrics-port=0", "--threads=1")


def be_refused(coordinator: Coordinator) -> None:
    """Join with an unsupported protocol version."""
    with grpc.insecure_channel(coordinator.address) as channel:
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.Join(pb.JoinRequest(protocol_version=99, client_id="stranger"), timeout=20)


def kinds_of_bytes(prometheus: Prometheus) -> set[tuple[str, ...]]:
    """Return the label sets of all counters of tensor bytes."""
    names = ("direction", "phase", "encoding")
    rows = prometheus.ask("ssfl_payload_bytes_total")
    return {tuple(row["metric"][name] for name in names) for row in rows}


def ask_since(prometheus: Prometheus, expr: str, began: float) -> list[dict[str, Any]]:
    """Return the results of an expression since a time, one per second."""
    span = {"start": str(began), "end": str(time.time()), "step": "1.0"}
    answer = prometheus.get("/api/v1/query_range", query=expr, **span)
    rows: list[dict[str, Any]] = answer["result"]
    return rows


def numbers(rows: list[dict[str, Any]]) -> list[float]:
    """Return the numeric values of a query result."""
    found = (float(value) for row in rows for _, value in row["values"])
    return [value for value in found if math.isfinite(value)]


def is_sound(port: int) -> None:
    """Check a program's metrics with promtool, which must report nothing."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read()
    command = [part("promtool", "prometheus"), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b""), done


def test_make_monitoring_shows_the_first_round(here: Path) -> None:
    """The command itself fails if that takes 2 minutes."""
    part("prometheus", "prometheus")
    command = [sys.executable, "-m", "monitoring.live", "--end-after=round"]
    paths = [str(ROOT), *sys.path]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=300, check=False, cwd=here,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the panel 'Time of a round by phase' shows the first round" in done.stdout
    shown = re.findall(r"^ *[\d.]+ s +(\w+) +[\d.]+ s$", done.stdout, re.M)
    assert sorted(shown) == ["aggregation", "broadcast", "collection", "commit", "training"]


def test_alerts_fire_and_clear_for_a_broken_federation(sites: Programs) -> None:
    began, folder = time.time(), sites.folder
    program = part("prometheus", "prometheus")
    manager_program = part("prometheus-alertmanager", "prometheus-alertmanager")
    with (
        receive_alerts() as (address, notes),
        Alertmanager(manager_program, folder / "alertmanager", address) as manager,
        Prometheus(program, folder / "prometheus", every_s=1, hurry=HURRY) as prometheus,
    ):
        manager.run()
        prometheus.targets({"alertmanager": [f"localhost:{manager.port}"]})
        prometheus.run()
        port, metrics = free_port(), free_port()
        flags = (*RUN, f"--metrics-port={metrics}")
        coordinator = sites.coordinator(*flags, port=port)
        prometheus.targets({"coordinator": [f"localhost:{metrics}"], "client": []})
        until(lambda: prometheus.ask("ssfl_run_phase == 1"), "the coordinator is scraped")
        kinds = kinds_of_bytes(prometheus)
        clients = [start_client(sites, coordinator, f"shard_0{n}") for n in range(2)]
        ports = [metrics_port(client) for client in clients]
        prometheus.targets({"client": [f"localhost:{port}" for port in ports]})

        until(lambda: prometheus.ask("ssfl_rounds_total > 3"), "rounds are seen")
        until(lambda: prometheus.ask("ssfl_site_connected == 1"), "the clients are scraped")
        is_sound(metrics)
        is_sound(ports[0])
        assert not prometheus.firing()
        be_refused(coordinator)

        clients[1].kill()
        for alert in ("SsflClientsLost", "SsflRunStalled"):
            until(lambda alert=alert: alert in prometheus.firing(), f"{alert} fires")  # type: ignore[misc]
        assert [row["metric"]["client"] for row in prometheus.ask("ssfl_client_pending == 1")] == [
            "shard_01"
        ]
        assert not prometheus.ask("ssfl_run_seconds_left"), "the end is unknown"
        stalled = prometheus.firing()["SsflRunStalled"]
        assert "Missing: 1 clients" in stalled["annotations"]["description"]
        assert "SsflRefusals" in prometheus.firing()
        until(lambda: ("SsflRunStalled", "firing") in notes.get("/page", ()), "a page arrives")
        again = start_client(sites, coordinator, "shard_01")
        prometheus.targets(
            {"client": [f"localhost:{port}" for port in (ports[0], metrics_port(again))]}
        )
        until(
            lambda: not {"SsflClientsLost", "SsflRunStalled"} & prometheus.firing().keys(),
            "the alerts clear",
        )
        until(
            lambda: ("SsflRunStalled", "resolved") in notes["/page"], "the resolution is delivered"
        )

        coordinator.signal(signal.SIGTERM)
        coordinator.ends()
        until(lambda: "SsflCoordinatorDown" in prometheus.firing(), "SsflCoordinatorDown fires")
        sites.coordinator(*flags, port=port)
        until(lambda: "SsflCoordinatorDown" not in prometheus.firing(), "it clears")
        before = prometheus.ask("ssfl_rounds_total")[0]["value"][1]
        until(lambda: prometheus.ask(f"ssfl_rounds_total > {before}"), "the run continues")

        for name in NAMES:
            empty = {
                title: expr
                for title, expr in expressions(name)
                if not numbers(ask_since(prometheus, expr, began))
            }
            assert not empty, f"{name}: {empty}"
        (by_phase,) = [expr for title, expr in expressions(BYTES) if title == "By phase"]
        sent = {row["metric"]["phase"] for row in ask_since(prometheus, by_phase, began)}
        assert sent >= {"scores", "mask", "values"}, "what was sent but once is seen, too"
        assert kinds_of_bytes(prometheus) == kinds, "every series was there from the start"
        assert {name for name, _ in notes["/page"]} == {"SsflRunStalled", "SsflCoordinatorDown"}
