"""Short versions of two benchmarks: a coordinator that runs for long, and a bad link."""

from pathlib import Path

import pytest
from benchmarks.soak import BAR_MB_OF_A_SHORT_RUN

from ssfl.codec.chunks import MIN_CHUNK_BYTES
from system.run_benchmark import run_benchmark

pytestmark = pytest.mark.system

WITHIN_S = 500  # only to catch a hang
BYTES_IN_FLIGHT = 300_000  # 5 Mbit/s over a round trip of 200 ms, with a full queue


def test_a_coordinator_does_not_grow_in_200_rounds(tmp_path: Path) -> None:
    result, _ = run_benchmark("soak", tmp_path, "--rounds=200", within_s=WITHIN_S)
    assert result["clients"] == 20
    assert all(more <= 0 for more in result["growth"].values()), result["growth"]
    assert result["heap_mb_over_second_half"] <= BAR_MB_OF_A_SHORT_RUN
    assert result["digests_of_clients"] == [result["model_digest"]]


def test_each_connection_lost_on_a_bad_link_costs_at_most_one_chunk(tmp_path: Path) -> None:
    """5 Mbit/s, 200 ms, 2 % loss; connections drop silently during the scores and the update."""
    at = ["--cut-at", "500000", "2500000"]
    size = ["--masked=1500000", "--cuts=forget", "--cut-every-s=0"]
    result, output = run_benchmark("bad_link", tmp_path, *size, *at, within_s=WITHIN_S)
    if not result:
        pytest.skip(output.strip())
    (run,) = result["runs"]
    up = run["up"]
    assert run["congestion_control"] == "bbr"
    assert run["connections"] >= 3
    assert run["trained"] == 1
    assert abs(up["ledger_bytes"] - up["needed_bytes"]) <= MIN_CHUNK_BYTES, "a chunk came twice"
    # Each cut loses the chunk in transit (half a second) and the bytes in flight.
    lost = up["distinct"] - up["needed_bytes"]
    assert lost <= 2 * (5e6 / 8 * 0.5 + BYTES_IN_FLIGHT)
