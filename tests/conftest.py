"""Order of all tests, strict mode, and a table of durations.

REQUIRE_ALL_PARTS=1 (CI) turns every skipped test into a failure, and makes Hypothesis draw the same
examples each time.

SAMPLE=1 (`make check`) draws fewer seeds and examples in the tests that draw many.
"""

import gc
import importlib
import os
import signal
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

STRICT = bool(os.environ.get("REQUIRE_ALL_PARTS"))
SECONDS: dict[str, float] = defaultdict(float)

# Seconds of the longest files of system tests: they run first, so that both workers end together.
LONG = {
    "tests/docs/test_pages.py": 650,
    "tests/study/test_presets.py": 100,
    "tests/system/test_long_and_bad.py": 110,
    "tests/system/test_rehearse.py": 110,
    "tests/deploy/test_pods.py": 90,
    "tests/system/test_monitoring.py": 85,
    "tests/system/test_status_page.py": 80,
    "tests/system/test_wheel.py": 80,
    "tests/system/test_examples.py": 75,
    "tests/experiments/test_experiments.py": 45,
    "tests/system/test_failpoints.py": 40,
    "tests/system/test_report_page.py": 40,
    "tests/system/test_network.py": 40,
    "tests/system/test_demo_crash.py": 35,
    "tests/system/test_stored_state.py": 30,
    "tests/system/test_demo.py": 30,
    "tests/system/test_many_clients.py": 25,
}
# Files whose tests share nothing, so that both workers can run them.
APART = {
    "tests/deploy/test_images.py",
    "tests/docs/test_pages.py",
    "tests/fuzz/test_fuzz.py",
    "tests/system/test_examples.py",
    "tests/system/test_failpoints.py",
    "tests/system/test_rehearse.py",
    "tests/tools/simulate/test_command.py",
}

for name in ("COLUMNS", "LINES"):  # set in a worker; programs would wrap their lines
    os.environ.pop(name, None)

# No deadline for an example: it would measure the load of the machine.
settings.register_profile("ssfl", deadline=None, derandomize=STRICT)
settings.register_profile("sample", settings.get_profile("ssfl"), max_examples=20)
settings.load_profile("sample" if os.environ.get("SAMPLE") else "ssfl")


@pytest.fixture(scope="session", autouse=True)
def _sigint_is_handled() -> None:
    """Restore SIGINT, which background jobs of a shell ignore, and their children, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def onnx_functions() -> Iterator[None]:
    """Let torch list its ONNX functions once. It would for each export, which takes a second."""
    registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "from_torchlib", staticmethod(cache(registry.from_torchlib)))
        yield


def pytest_collection_finish() -> None:
    """Spare garbage collections the modules and tests, which stay until the end."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests without processes first, then the others (`system`), the longest files first."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, float]:
    is_system = item.get_closest_marker("system") is not None
    file = item.nodeid.partition("::")[0]
    return is_system, -LONG.get(file, 0) if is_system else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each file to one worker, so that its fixtures are made once; split files in APART."""
    scheduling = importlib.import_module("xdist.scheduler").LoadScopeScheduling
    by_file = type("ByFile", (scheduling,), {"_split_scope": lambda _self, nodeid: _unit(nodeid)})
    return by_file(config, log)


def _unit(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return nodeid if file in APART else file


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A worker cannot send lone surrogates, which some tests log on purpose.
    report.sections = [(name, _encodable(text)) for name, text in report.sections]
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL_PARTS is set, but this was skipped: {_reason(report)}"
    return report


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Sum the seconds of each folder over all workers."""
    SECONDS[_folder(report.nodeid)] += report.duration


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if STRICT and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"REQUIRE_ALL_PARTS is set, but this was skipped: {_reason(report)}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if len(SECONDS) < 2:
        return
    terminalreporter.section("seconds per folder")
    for folder, total in sorted(SECONDS.items(), key=lambda pair: -pair[1]):
        terminalreporter.write_line(f"{total:8.1f}  {folder}")


def _folder(nodeid: str) -> str:
    """Return tests/codec for tests/codec/deep/test_x.py, and tests for tests/test_x.py."""
    where = Path(nodeid.partition("::")[0]).parent
    return "/".join(where.parts[:2])


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
