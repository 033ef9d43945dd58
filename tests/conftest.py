"""Order, strictness and a time table for all tests.

REQUIRE_ALL_PARTS=1 (CI) fails every skipped test: where all parts are meant to be present, a test
that quietly did not run is a hole. It also makes Hypothesis draw the same examples each time.
"""

import os
import signal
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

STRICT = bool(os.environ.get("REQUIRE_ALL_PARTS"))
SECONDS = pytest.StashKey[dict[str, float]]()

# No deadline per example: it measures the load of the machine, not our code.
settings.register_profile("ssfl", deadline=None, derandomize=STRICT)
settings.load_profile("ssfl")


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell starts its background jobs deaf to SIGINT, and their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SECONDS] = defaultdict(float)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick answers first: whatever starts real processes (`system`) comes last."""
    items.sort(key=lambda item: item.get_closest_marker("system") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.config.stash[SECONDS][_folder(item)] += call.duration
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL_PARTS is set, but this was skipped: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if STRICT and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL_PARTS is set, but this was skipped: {_reason(report)}"
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seconds = config.stash[SECONDS]
    if len(seconds) < 2:
        return
    terminalreporter.section("seconds per folder")
    for folder, total in sorted(seconds.items(), key=lambda pair: -pair[1]):
        terminalreporter.write_line(f"{total:8.1f}  {folder}")


def _folder(item: pytest.Item) -> str:
    """Return tests/codec for tests/codec/deep/test_x.py, and tests for tests/test_x.py."""
    where = Path(item.nodeid.partition("::")[0]).parent
    return "/".join(where.parts[:2])


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
