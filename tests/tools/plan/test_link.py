"""Times by hand: at 12 Mbit/s a packet of 1500 bytes, 1448 of them payload, takes 1 ms."""

import pytest

from ssfl.method.errors import SettingsError
from ssfl.tools.plan.link import FIRST_WINDOW_BYTES, Link, parse_link, parse_rate, parse_time

MILLISECOND_BYTES = 1448


def test_a_link_without_delay_takes_the_time_of_its_packets() -> None:
    link = Link(12e6, 24e6, rtt_s=0.0)
    frame_headers = 100 * 9  # HTTP/2 frames of 16 KiB
    num_bytes = 100 * 16384
    seconds = (num_bytes + frame_headers) / MILLISECOND_BYTES / 1000
    assert link.up_s(num_bytes) == pytest.approx(seconds)
    assert link.down_s(num_bytes) == pytest.approx(seconds / 2)


def test_a_delay_adds_half_a_round_trip_and_the_doublings_of_the_window() -> None:
    # The link holds 80 segments in 80 ms. The window of 10 doubles three times to cover them,
    # and has sent 10 + 20 + 40 segments by then.
    link = Link(12e6, 12e6, rtt_s=0.080)
    num_bytes = 1000 * MILLISECOND_BYTES
    headers = -(-num_bytes // 16384) * 9
    rest_s = (num_bytes + headers) / MILLISECOND_BYTES / 1000 - 0.070
    assert link.up_s(num_bytes) == pytest.approx(0.040 + 3 * 0.080 + rest_s)


def test_bytes_within_the_first_window_do_not_wait_for_an_answer() -> None:
    link = Link(12e6, 12e6, rtt_s=0.080)
    packets_s = (5 * MILLISECOND_BYTES + 9) / MILLISECOND_BYTES / 1000
    assert link.down_s(5 * MILLISECOND_BYTES) == pytest.approx(0.040 + packets_s)


def test_a_transfer_that_ends_during_slow_start_takes_whole_round_trips() -> None:
    link = Link(12e6, 12e6, rtt_s=0.800)  # the link holds 800 segments
    num_bytes = 50 * MILLISECOND_BYTES - 5 * 9  # 10, then 20, then 20 of 40
    assert link.up_s(num_bytes) == pytest.approx(0.400 + 2 * 0.800 + 0.020)


def test_more_bytes_never_take_less_time() -> None:
    link = Link(20e6, 20e6, 0.05)
    seconds = [link.up_s(size) for size in range(1, 40 * FIRST_WINDOW_BYTES, 997)]
    assert seconds == sorted(seconds)


def test_the_coordinators_link_is_shared_evenly_and_limits_only_faster_rates() -> None:
    shared = Link(5e6, 50e6, 0.05).shared(100e6, num_clients=10)
    assert shared == Link(5e6, 10e6, 0.05)


def test_rates_times_and_links_are_parsed() -> None:
    assert parse_rate("20mbit") == parse_rate("20 Mbit") == parse_rate("0.02gbit") == 20e6
    assert parse_time("50ms") == parse_time("0.05s") == 0.05
    assert parse_link("20mbit/50ms") == Link(20e6, 20e6, 0.05)


@pytest.mark.parametrize(
    "text", ["", "20", "20mb", "mbit", "-1mbit", "0mbit", "1e3mbit", "nanmbit"]
)
def test_an_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["20mbit", "20mbit/50", "50ms/20mbit", "20mbit/50ms/1"])
def test_an_invalid_link_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_link(text)
