"""Damaged or unusable state directories, folders and limits."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from grpc import StatusCode

from ssfl.program.exits import ExitCode
from system.programs import Coordinator, Program, Programs, environment
from system.raw_client import RUN, chunks_of, take_part_together
from system.raw_run import RawRun, refused

pytestmark = pytest.mark.system

EVALUATED = ("--clients=2", "--rounds=3", "--sparsity=0.75", "--evaluate-every=1")


def finished(programs: Programs, *flags: str) -> Coordinator:
    """Run a federation to its end, kill its coordinator and return it."""
    coordinator = programs.coordinator(*EVALUATED, *flags)
    run = RawRun(programs, coordinator)
    run.ann.join()
    run.bob.join()
    take_part_together(run.ann, run.bob)
    coordinator.says("results written")
    coordinator.kill()
    run.close()
    return coordinator


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def scribble(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:200] + b"#" * 100 + data[300:])


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flip, Path.unlink, replace_by_folder])
def test_a_damaged_best_model_is_reported_at_the_start_and_sites_still_get_the_final_one(
    programs: Programs, damage: Callable[[Path], object]
) -> None:
    before = finished(programs)
    (best,) = before.state_dir.glob("best-*.f32")
    damage(best)
    again = programs.coordinator(*EVALUATED)
    assert best.name in again.says("the best model will not be written at the end")
    again.says("results written")
    run = RawRun(programs, again)
    run.ann.join()
    assert run.ann.next_task().kind == "finish"
    run.close()


def test_a_folder_in_place_of_the_newest_and_best_model_does_not_end_the_coordinator(
    programs: Programs,
) -> None:
    before = finished(programs, "--rounds=1")
    (best,) = before.state_dir.glob("best-*.f32")
    replace_by_folder(best)
    again = programs.coordinator(*EVALUATED, "--rounds=1")
    assert best.name in again.says("the best model is not kept")
    again.says("results written")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (scribble, "the bytes by round and client are wrong"),
        (halve, "rows of earlier steps are missing"),
    ],
)
def test_a_damaged_ledger_is_reported_at_the_start_and_sites_still_get_the_final_model(
    programs: Programs, damage: Callable[[Path], object], words: str
) -> None:
    before = finished(programs)
    totals = [fact["report"]["ledger"] for fact in before.facts("BytesCounted")][-1]
    damage(before.state_dir / "ledger.csv")
    again = programs.coordinator(*EVALUATED)
    assert "ledger.csv" in again.says(words)
    again.says("results written")
    assert again.history()["ledger"] == totals
    run = RawRun(programs, again)
    run.ann.join()
    assert run.ann.next_task().kind == "finish"
    run.close()


def test_a_state_directory_that_was_deleted_is_reported_as_gone(raw: RawRun) -> None:
    raw.training()
    shutil.rmtree(raw.coordinator.state_dir)
    assert raw.coordinator.ends() == ExitCode.STATE
    assert "the state directory .ssfl/coordinator is gone" in raw.coordinator.err
    assert "restore the directory from a backup" in raw.coordinator.err
    assert "another coordinator" not in raw.coordinator.err


def test_status_reports_a_full_state_disk_while_uploads_are_refused(programs: Programs) -> None:
    coordinator = programs.coordinator(*RUN, FAILPOINTS="spool.chunk=full")
    run = RawRun(programs, coordinator)
    got = run.scoring()
    assert "room on the disk" not in coordinator.status().waiting_for
    data = run.ann.scores().tobytes()
    header = run.ann.scores_header(got, data)
    with refused(StatusCode.UNAVAILABLE, "disk_full"):
        run.ann.upload(header, chunks_of(data))
    waiting_for = coordinator.status().waiting_for
    assert "room on the disk of --state-dir" in waiting_for, waiting_for
    run.ann.upload(header, chunks_of(data))
    assert "room on the disk" not in coordinator.status().waiting_for
    run.close()


def test_an_out_dir_that_cannot_be_used_is_refused_at_the_start(programs: Programs) -> None:
    (programs.folder / "taken").touch()
    coordinator = programs.try_coordinator(*RUN, "--out-dir=taken/runs")
    assert coordinator.ends() == ExitCode.USAGE
    assert "error: --out-dir: cannot write to taken/runs" in coordinator.err
    (programs.folder / "shards").mkdir()
    client = programs.client("s", "localhost:1", "--out-dir=taken")
    assert client.ends() == ExitCode.USAGE
    assert "error: --out-dir: cannot write to taken: it is not a directory" in client.err


def test_too_few_open_files_are_refused_at_the_start_with_the_number(programs: Programs) -> None:
    script = programs.scripts / "ssfl-coordinator"
    command = f"ulimit -n 64; exec {script} --port=0 --admin-port=0 --clients=2"
    coordinator = Program("few", ["bash", "-c", command], programs.folder, environment())
    programs.started.append(coordinator)
    assert coordinator.ends() == ExitCode.USAGE
    assert "2 clients need 258 open files, and the system allows 64" in coordinator.err
