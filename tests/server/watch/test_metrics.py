"""Prometheus metrics of a run: the current state in Prometheus's format."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from server.run_loop_harness import C1, C2, SETTINGS, begin, conduct
from server.step_harness import receiver_of
from ssfl.method.manifest import Manifest
from ssfl.program.monitor import series
from ssfl.program.monitor.metrics import metrics_route
from ssfl.program.monitor.web import Request
from ssfl.server.accounting.ledger import CARRIED, Direction
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.run import events
from ssfl.server.run.state import Stall
from ssfl.server.storage.disk_full import disks
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.server.watch.metrics import RunCollector
from ssfl.strategies.contract import ClientId
from ssfl.v1 import transfer_pb2

Samples = dict[tuple[str, str], float]


def asking(coordinator: Coordinator) -> Callable[[], Samples]:
    """Return a function that scrapes like Prometheus: samples by name and label values."""
    uploads = receiver_of(coordinator)
    route = metrics_route(RunCollector(coordinator, uploads, Path("runs")))

    def ask() -> Samples:
        text = route(Request("/metrics")).body.decode()
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    return ask


def test_a_stalled_run_and_refusals_can_be_seen(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        ask = asking(coordinator)
        assert ask()["ssfl_run_phase", "gathering"] == 1
        await begin(coordinator, manifest)
        await coordinator.run.post(events.Lost(C2))
        for client in ("c1", "c1", "c2"):
            coordinator.refusals.count(client, "bad_values", "no")
        samples = await asyncio.to_thread(ask)
        assert (
            samples["ssfl_run_phase", "waiting"] == 1
            and samples["ssfl_run_phase", "gathering"] == 0
        )
        assert samples["ssfl_run_stalled", ""] == 1
        assert samples["ssfl_run_missing_clients", ""] == 1
        assert samples["ssfl_clients", "lost"] == 1 and samples["ssfl_clients", "working"] == 1
        assert (
            samples["ssfl_client_pending", "c1"] == 1 and samples["ssfl_client_pending", "c2"] == 1
        )
        assert ("ssfl_client_last_seen_seconds", "c2") in samples
        assert samples["ssfl_client_up", "c1"] == 1 and samples["ssfl_client_up", "c2"] == 0
        assert samples["ssfl_refusals_total", "bad_values"] == 3
        assert samples["ssfl_disk_full", ""] == 0
        assert samples["ssfl_clients_joined_total", "no"] == 2
        assert samples["ssfl_clients_selected_total", "score"] == 2
        assert C1 in coordinator.run.state.members

    conduct(tmp_path, script)


def test_possible_series_start_at_zero(tmp_path: Path) -> None:
    """`increase` misses the first value of a series, and scores are sent only once."""

    async def script(coordinator: Coordinator) -> None:
        samples = asking(coordinator)()
        assert samples["ssfl_payload_bytes_total", "up,scores,scores"] == 0
        assert (
            samples["ssfl_refusals_total", "bad_values"]
            == samples["ssfl_refusals_total", "internal"]
        )
        assert samples["ssfl_clients_selected_total", "personalize"] == 0
        coordinator.ledger.count("scores", Direction.UP, 50, 40, encoding="scores")
        assert asking(coordinator)()["ssfl_payload_bytes_total", "up,scores,scores"] == 40

    conduct(tmp_path, script)


def test_tensor_encodings_have_their_wire_names() -> None:
    names = transfer_pb2.Encoding.keys()
    words = {name.removeprefix("ENCODING_").lower() for name in names}
    assert {word for encodings in CARRIED.values() for word in encodings} < words


def test_a_disk_is_shown_once(tmp_path: Path) -> None:
    assert disks(StateDirectory(tmp_path), tmp_path / "not" / "made" / "yet") == {"state": tmp_path}
    assert disks(StateDirectory(tmp_path / "state"), Path("/proc/runs")) == {
        "state": tmp_path,
        "out": Path("/proc"),
    }


def test_only_declared_series_are_shown(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        uploads = receiver_of(coordinator)
        shown = list(RunCollector(coordinator, uploads, Path("runs")).collect())
        declared = {one.name: one for one in series.COORDINATOR}
        assert len({family.name for family in shown}) == len(shown)
        for family in shown:
            one = declared.pop(family.name)
            assert (family.type, family.documentation) == (one.kind.value, one.text)
        # These need a round that is done, or are absent where they are not known.
        assert set(declared) <= {
            "ssfl_run_seconds_left", "ssfl_model_accuracy_ratio", "ssfl_model_loss",
            "ssfl_mask_info", "ssfl_mask_density_ratio", "ssfl_heap_bytes",
        }  # fmt: skip

    conduct(tmp_path, script)


def test_with_very_many_clients_the_slowest_and_most_silent_are_shown(
    tmp_path: Path, manifest: Manifest
) -> None:
    settings = SETTINGS.__class__(clients=500, rounds=2, sparsity="0.5", seed=5)

    async def script(coordinator: Coordinator) -> None:
        for number in range(500):
            name = ClientId(f"c{number:03}")
            digest = manifest.digest.hex()
            await coordinator.run.post(events.Joined(name, "t", 10, digest, "cpu"))
            coordinator.counters.results[name] = {
                "sent_s": 0.0, "work_s": 1.0, "upload_s": 0.5, "received_s": float(number),
                "upload_bytes": 100,
            }  # fmt: skip
        samples = asking(coordinator)()
        shown = {label for name, label in samples if name == "ssfl_client_samples"}
        assert len(shown) <= 2 * series.SLOWEST_SHOWN
        assert {f"c{number:03}" for number in range(480, 500)} <= shown
        assert samples["ssfl_client_upload_bytes_per_second", "c499"] == 200.0
        # The quickest of all is the one that everybody waits for, and another never ended.
        stall = Stall("too few clients", (ClientId("c003"),), "1 more client", 0.0)
        coordinator.run.state = replace(coordinator.run.state, stall=stall)
        del coordinator.counters.results[ClientId("c007")]
        samples = asking(coordinator)()
        shown = {label for name, label in samples if name == "ssfl_client_samples"}
        assert len(shown) <= 2 * series.SLOWEST_SHOWN and {"c003", "c007"} <= shown
        assert samples["ssfl_client_pending", "c003"] == 1

    conduct(tmp_path, script, settings)
