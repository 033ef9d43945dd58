"""What Prometheus is told of a run: the state as it stands, in its own format."""

import asyncio
import socket
import ssl
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from program import pems
from server.conducting import C1, C2, begin, conduct
from ssfl.method.manifest import Manifest
from ssfl.program.exits import ProgramError
from ssfl.server import events
from ssfl.server.conductor import Conductor
from ssfl.server.metrics import MetricsServer, RunCollector
from ssfl.server.tls import TlsFiles


def refusals() -> list[dict[str, object]]:
    return [
        {"client_id": "c1", "reason": "bad_values", "count": 2},
        {"client_id": "c2", "reason": "bad_values", "count": 1},
    ]


def read(port: int) -> dict[tuple[str, str], float]:
    """Ask as Prometheus does; return every sample by name and the value of its one label."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_stalled_run_and_refusals_can_be_seen(tmp_path: Path, manifest: Manifest) -> None:
    async def script(conductor: Conductor) -> None:
        server = MetricsServer(RunCollector(conductor, refusals), "127.0.0.1", 0, None)
        try:
            before = await asyncio.to_thread(read, server.port)
            assert before["ssfl_run_phase", "gathering"] == 1
            await begin(conductor, manifest)
            await conductor.post(events.Lost(C2))
            told = await asyncio.to_thread(read, server.port)
        finally:
            await asyncio.to_thread(server.stop)
        assert told["ssfl_run_phase", "waiting"] == 1 and told["ssfl_run_phase", "gathering"] == 0
        assert told["ssfl_run_stalled", ""] == 1
        assert told["ssfl_run_missing_clients", ""] == 1
        assert told["ssfl_clients", "lost"] == 1 and told["ssfl_clients", "working"] == 1
        assert told["ssfl_refusals_total", "bad_values"] == 3
        assert told["ssfl_disk_full", ""] == 0
        assert C1 in conductor.state.members

    conduct(tmp_path, script)


def test_who_connects_to_tls_and_says_nothing_holds_up_nobody(tmp_path: Path) -> None:
    folder = pems.make(tmp_path / "tls")

    async def script(conductor: Conductor) -> None:
        files = TlsFiles(folder / "coordinator.pem", folder / "coordinator-key.pem", None)
        server = MetricsServer(RunCollector(conductor, refusals), "127.0.0.1", 0, files)
        with socket.create_connection(("127.0.0.1", server.port)):
            trusted = ssl.create_default_context(cafile=str(folder / "ca.pem"))
            url = f"https://localhost:{server.port}/metrics"
            ask = partial(urlopen, url, timeout=30, context=trusted)
            with await asyncio.to_thread(ask) as answer:
                assert b"ssfl_run_phase" in answer.read()
            await asyncio.wait_for(asyncio.to_thread(server.stop), 30)

    conduct(tmp_path, script)


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    async def script(conductor: Conductor) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ProgramError, match=f"cannot listen on 127.0.0.1:{port}"):
                MetricsServer(RunCollector(conductor, refusals), "127.0.0.1", port, None)

    conduct(tmp_path, script)
