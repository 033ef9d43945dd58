"""The coordinator's own report: there when a run is over; a run does not depend on it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.run_loop_harness import begin, conduct
from ssfl.durable import failpoints
from ssfl.method.manifest import Manifest
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.report.outputs import Accounts
from ssfl.server.run import events


def stopped(state: Path, out: Path, manifest: Manifest) -> Path:
    """Begin a run, stop it, and return the folder of its results."""
    accounts = Accounts(out)

    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        await coordinator.run.post(events.Signal.STOP)
        await coordinator.run.model_written.wait()
        accounts.report(coordinator)
        accounts.report(coordinator)  # no news, or a failure just now: nothing happens

    state.mkdir()
    conduct(state, script, write_model=accounts.write_outputs)
    (folder,) = out.glob("*/coordinator")
    return folder


def test_a_run_that_was_stopped_leaves_a_report(tmp_path: Path, manifest: Manifest) -> None:
    folder = stopped(tmp_path / "state", tmp_path / "out", manifest)
    found = json.loads((folder / "report.json").read_text("utf-8"))
    assert found["verdict"]["text"] == "stopped by an operator after 0 of 2 rounds"
    assert [row["client"] for row in found["clients"]] == ["c1", "c2"]
    assert (folder / "report.html").exists()


def test_a_damaged_ledger_costs_the_report_only_the_bytes_by_client(
    tmp_path: Path, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    state, accounts = tmp_path / "state", Accounts(tmp_path / "out")
    state.mkdir()

    async def script(coordinator: Coordinator) -> None:
        await begin(coordinator, manifest)
        await coordinator.run.post(events.Signal.STOP)
        await coordinator.run.model_written.wait()
        (folder,) = (tmp_path / "out").glob("*/coordinator")
        (folder / "ledger.csv").write_text("client,payload_bytes,message_bytes\nc1,1,none\n")
        accounts.report(coordinator)

    conduct(state, script, write_model=accounts.write_outputs)
    (folder,) = (tmp_path / "out").glob("*/coordinator")
    found = json.loads((folder / "report.json").read_text("utf-8"))
    assert [row["up_bytes"] for row in found["clients"]] == [None, None]
    assert "the report lacks the bytes by client: " in caplog.text
    assert "ledger.csv: line 2 is damaged" in caplog.text


def full_for_reports(name: str) -> None:
    if name == "report.written":
        failpoints.trigger("full", name)


@pytest.fixture
def no_room_for_reports() -> Iterator[None]:
    failpoints.install_hook(full_for_reports)
    yield
    failpoints.install_hook(None)


@pytest.mark.usefixtures("no_room_for_reports")
def test_a_report_that_cannot_be_written_is_a_warning(
    tmp_path: Path, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stopped(tmp_path / "state", tmp_path / "out", manifest)
    (record,) = [one for one in caplog.records if "report" in one.getMessage()]
    assert record.levelname == "WARNING" and "No space left on device" in record.getMessage()
    assert record.__dict__["to_try_again"] == f"ssfl report {folder}"
    assert (folder / "history.json").exists() and not (folder / "report.html").exists()
    assert not list(folder.glob(".*"))
