"""Metrics of a client: its counters, in declared series."""

from pathlib import Path
from urllib.request import urlopen

from client.agent_harness import (
    FINISH,
    GONE,
    MODEL,
    AgentHarness,
    accepted,
    call_of,
    joined,
    train_task,
)
from client.fakes import FakeStub
from ssfl.client.client_stats import ClientStats
from ssfl.client.metrics import SiteCollector, serve_metrics
from ssfl.program.monitor import series
from ssfl.v1 import coordinator_pb2 as pb


def test_a_round_and_a_lost_coordinator_are_counted(tmp_path: Path) -> None:
    stub = FakeStub(
        Join=[GONE, joined(1), joined(2)],
        NextTask=[call_of(train_task(), MODEL), call_of(FINISH, MODEL)],
        SendUpdate=[accepted()],
        Leave=[pb.LeaveResponse()],
    )
    harness = AgentHarness(tmp_path, stub)
    harness.agent.run()
    stats = harness.stats
    assert (stats.retries, stats.joins, stats.connected) == (1, 1, True)
    assert stats.results == {"accepted": 1}
    assert stats.works["train"].buckets()[-1][1] == 1
    assert (stats.steps_done, stats.steps_all, stats.training_loss) == (1, 1, 0.5)
    assert stats.payload_bytes["down"] == 2 * len(MODEL)
    assert stats.payload_bytes["up"] > 0
    assert stats.transfers["down"].buckets()[-1][1] == 2


def test_only_declared_series_are_exported() -> None:
    stats = ClientStats()
    stats.training_loss = 1.0
    shown = {family.name: family for family in SiteCollector(stats).collect()}
    assert set(shown) == {each.name for each in series.CLIENT}
    for each in series.CLIENT:
        assert (shown[each.name].type, shown[each.name].documentation) == (
            each.kind.value,
            each.text,
        )


def test_metrics_and_a_probe_are_served() -> None:
    server = serve_metrics(ClientStats(), "127.0.0.1", 0)
    try:
        for path, part in (("metrics", b"ssfl_site_connected 0.0"), ("healthz", b"alive")):
            with urlopen(f"http://127.0.0.1:{server.port}/{path}", timeout=30) as answer:
                assert part in answer.read()
    finally:
        server.stop()
