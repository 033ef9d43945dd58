"""`ssfl audit` next to real processes: of a run in progress, killed or moved."""

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from failpoint_names import KEEP_POINTS
from ssfl.program.exits import ExitCode
from system.programs import Coordinator, Program, Programs, until
from system.raw_client import RUN, expected_values, take_part_with_rejoins
from system.raw_run import RawRun

pytestmark = pytest.mark.system

KEEP = (*RUN, "--keep-uploads", "--exit-when-done")


def audit(programs: Programs, state_dir: Path) -> tuple[int, list[str]]:
    done: Program = programs.run("ssfl", "audit", str(state_dir))
    return done.ends(), done.out.splitlines()


def kept(coordinator: Coordinator) -> list[str]:
    files = (coordinator.state_dir / "accepted").glob("*/*.bin")
    return sorted(f"{file.parent.name}/{file.name.partition('.')[0]}" for file in files)


def test_a_run_can_be_audited_while_it_runs_and_after_a_kill(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*KEEP))
    state_dir = raw.coordinator.state_dir
    got = raw.training()
    raw.ann.answer(got)
    code, lines = audit(programs, state_dir)  # the coordinator holds the lock and writes
    assert code == ExitCode.DONE
    assert [line.split()[-1] for line in lines[1:3]] == ["ok", "open"]
    assert "1 client" in lines[2]
    assert lines[-1] == "same model: yes"
    raw.coordinator.kill()
    assert audit(programs, state_dir) == (code, lines)
    shutil.move(state_dir, programs.folder / "elsewhere")
    assert audit(programs, programs.folder / "elsewhere") == (code, lines)
    raw.close()


def test_kept_uploads_survive_kill_9_before_and_after_the_move(programs: Programs) -> None:
    """The next start moves the uploads of a committed step out of the spool."""
    armed = iter(f"{point}=kill@2" for point in KEEP_POINTS)
    coordinator = programs.coordinator(*KEEP, FAILPOINTS=next(armed))
    raw = RawRun(programs, coordinator)
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(take_part_with_rejoins, client) for client in (raw.ann, raw.bob)]
        assert coordinator.ends() == -signal.SIGKILL
        assert kept(coordinator) == ["1/ann", "1/bob"]
        again = programs.try_coordinator(*KEEP, port=coordinator.port, FAILPOINTS=next(armed))
        assert again.ends() == -signal.SIGKILL
        assert kept(coordinator) == ["1/ann", "1/bob", "2/ann", "2/bob", "3/ann", "3/bob"]
        last = programs.coordinator(*KEEP, port=coordinator.port)
        expected = expected_values((raw.ann, raw.bob))
        assert all(np.array_equal(end.result(), expected) for end in ends)
    raw.close()
    assert last.ends() == 0
    assert kept(last) == ["1/ann", "1/bob", "2/ann", "2/bob", "3/ann", "3/bob"]
    code, lines = audit(programs, last.state_dir)
    assert (code, lines[-1]) == (ExitCode.DONE, "same model: yes")
    assert [line.split()[-1] for line in lines[1:-1]] == ["ok"] * len(lines[1:-1])


def test_without_keep_uploads_the_audit_reports_missing_uploads(programs: Programs) -> None:
    raw = RawRun(programs, programs.coordinator(*RUN))
    raw.training()
    raw.finish_honestly()
    state_dir = raw.coordinator.state_dir
    until(lambda: not list((state_dir / "spool").iterdir()), "the spool is empty")
    assert not (state_dir / "accepted").exists()
    code, lines = audit(programs, state_dir)
    assert code == ExitCode.DONE
    assert lines[-1].startswith("same model: not known: uploads of 3 of 3 steps were not kept")
    raw.close()
