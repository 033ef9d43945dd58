"""`ssfl audit`: the same bits from the uploads alone; every change is found and named."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.counted_run import METHODS
from ssfl.datasets.shards.shard_file import Shard
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.server.run import facts
from ssfl.server.storage.journal import Journal, read_journal
from ssfl.study.data import DataSpec, build_shards
from ssfl.tools import main as tools
from tools.report.kept_run import KeptRun

SMALL = RunSettings(
    model="mlp", width=8, rounds=3, clients=3, local_steps=1, sparsity="0.8", reproducible=True,
    evaluate_every=1, scoring_batches=1, seed=3,
)  # fmt: skip
OTHERS = [(name, more) for name, more in METHODS.items() if name not in ("ssfl", "fedavg")]
STEPS = 7  # of SMALL: a score step, then three rounds, each with an evaluation


@pytest.fixture(scope="module")
def shards() -> dict[str, Shard]:
    return build_shards(DataSpec(clients=3), seed=3)


@pytest.fixture(scope="module")
def finished(shards: dict[str, Shard], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished") / "state"
    KeptRun(root, shards, SMALL).finish()
    return root


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, which the test may change."""
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def audit(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], str]:
    code = tools.main(["audit", str(root)])
    output = capsys.readouterr()
    return code, output.out.splitlines(), output.err


def document(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    tools.main(["audit", str(root), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def records(root: Path) -> list[facts.Fact]:
    return [facts.from_json(record) for record in read_journal(root / "journal")[0]]


def rewrite(root: Path, journal_facts: list[facts.Fact]) -> None:
    (root / "journal").unlink()
    journal = Journal(root / "journal")
    journal.append([facts.to_json(fact) for fact in journal_facts])
    journal.close()


def a_file(root: Path, pattern: str) -> Path:
    return sorted(root.glob(pattern))[-1]  # the newest one; the one before is kept for downloads


def flip(path: Path, at: int = 5) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"strategy": "fedavg", "update_weights": "equal", "clients_per_round": 2},
        {"criterion": "client-random", "sparsity": "0.5"},
        {"criterion": "client-random", "sparsity": "0.5", "averaging": "zeros"},
        {"criterion": "random"},
        {"criterion": "grasp", "scores": "exact", "score_weights": "equal"},
        {"refresh_every": 1, "deactivated": "keep"},
        {"refresh_every": 1, "deactivated": "reset", "value_type": "bfloat16"},
        {"refresh_every": 1, "value_type": "grid", "grid_bits": 14},
        {"value_type": "int8"},
        {"strategy": "fedavg", "value_type": "int8", "downloads": "values", "clients_per_round": 2},
        {"refresh_every": 1, "value_type": "bfloat16", "downloads": "values"},
        {"warmup_rounds": 1},
        {"sparsity_schedule": "0:0.9,2:0.8", "refresh_mode": "grow"},
        *({"strategy": name, **more, "local_steps": 0, "local_epochs": 2} for name, more in OTHERS),
    ],
    ids=lambda change: "-".join(str(value) for value in change.values()) or "ssfl",
)
def test_every_strategy_is_recomputed_from_the_first_step(
    shards: dict[str, Shard],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
) -> None:
    digest = KeptRun(tmp_path / "state", shards, replace(SMALL, **change)).finish()
    for stored in (tmp_path / "state").glob("values-*.f32"):
        assert np.fromfile(stored, "<f4").any()
    found = document(tmp_path / "state", capsys)
    assert found["same_model"] is True, found
    assert found["model_digest"] == digest
    assert {step["verdict"] for step in found["steps"]} == {"ok"}
    assert found["problems"] == []


def test_the_output_has_one_line_per_step_and_a_verdict(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    code, lines, _ = audit(root, capsys)
    assert code == ExitCode.DONE
    assert lines[0].startswith("run r1, started with ssfl 0.1.0")
    assert [line.split()[-1] for line in lines[1:-1]] == ["ok"] * STEPS
    assert lines[1].split() == [
        *("step", "1", "score", "round", "0", "3", "clients", "mask"),
        lines[1].split()[8], "ok",
    ]  # fmt: skip
    assert lines[-1] == "same model: yes"
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before, "it reads only"


def test_without_kept_uploads_the_verdict_is_not_known(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(root / "accepted")
    code, lines, _ = audit(root, capsys)
    assert code == ExitCode.DONE
    assert sum(line.endswith("not kept") for line in lines) == 4
    assert lines[-1].startswith("same model: not known: uploads of 4 of 4 steps were not kept")
    assert document(root, capsys)["same_model"] is None


def test_steps_are_recomputed_from_the_first_kept_upload_on(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In float32, the result of a round does not depend on the values it started from."""
    shutil.rmtree(root / "accepted" / "1")
    shutil.rmtree(root / "accepted" / "2")
    verdicts = [step["verdict"] for step in document(root, capsys)["steps"]]
    assert verdicts == ["not kept", "not kept", "ok", "ok", "ok", "ok", "ok"]


def test_a_lossy_run_is_recomputed_only_from_a_known_model(
    shards: dict[str, Shard], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "state"
    KeptRun(root, shards, replace(SMALL, value_type="int8")).finish()
    shutil.rmtree(root / "accepted" / "2")
    steps = document(root, capsys)["steps"]
    trained = [step["verdict"] for step in steps if step["work"] == "train"]
    assert trained == ["not kept", "not kept", "ok"], "the last begins with values that are there"


CHANGED: dict[str, tuple[str, str]] = {
    "accepted/1/*.bin": ("differs", "is damaged"),
    "accepted/4/*.bin": ("differs", "is damaged"),
    "mask-1.bin": ("", "mask-1.bin does not match the journal"),
    "values-*.f32": ("", "does not match the journal"),
    "manifest-*.json": ("", "does not match the journal"),
}


@pytest.mark.parametrize("pattern", CHANGED)
def test_a_changed_file_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    changed = a_file(root, pattern)
    flip(changed)
    code, lines, _ = audit(root, capsys)
    verdict, what = CHANGED[pattern]
    assert code == ExitCode.BAD_DATA
    assert lines[-1] == "same model: no"
    (line,) = [line for line in lines if str(changed) in line]
    assert what in line and verdict in line


@pytest.mark.parametrize("pattern", [*CHANGED, "accepted/6/*.bin"])
def test_a_missing_file_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    missing = a_file(root, pattern)
    missing.unlink()
    code, lines, _ = audit(root, capsys)
    assert (code, lines[-1]) == (ExitCode.BAD_DATA, "same model: no")
    assert [line for line in lines if f"{missing} is missing" in line]


def test_the_best_model_is_checked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(a_file(root, "best-*.f32"))
    code, lines, _ = audit(root, capsys)
    assert (code, lines[-1]) == (ExitCode.BAD_DATA, "same model: no")
    assert re.search(r"wrong: .*/best-\d+.f32 does not match the journal", lines[-2])


def test_a_truncated_upload_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = a_file(root, "accepted/2/*.bin")
    path.write_bytes(path.read_bytes()[:-4])
    code, lines, _ = audit(root, capsys)
    assert code == ExitCode.BAD_DATA
    (line,) = [line for line in lines if str(path) in line]
    assert f"has {path.stat().st_size} bytes, its step needs {path.stat().st_size + 4}" in line


def test_a_forged_journal_is_detected(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checksums are right, but the accepted set or the result is another."""
    journal_facts = records(root)
    closed = next(
        fact for fact in journal_facts if isinstance(fact, facts.StepClosed) and fact.step == 2
    )
    at = journal_facts.index(closed)
    rewrite(
        root,
        [
            *journal_facts[:at],
            replace(closed, accepted=closed.accepted[1:]),
            *journal_facts[at + 1 :],
        ],
    )
    code, lines, _ = audit(root, capsys)
    assert code == ExitCode.BAD_DATA
    (line,) = [line for line in lines if "differs" in line]
    assert line.startswith("step    2  train") and "base_digest is" in line
    made = next(
        fact for fact in journal_facts if isinstance(fact, facts.StepCommitted) and fact.step == 1
    )
    at = journal_facts.index(made)
    rewrite(
        root, [*journal_facts[:at], replace(made, mask_digest="ab" * 32), *journal_facts[at + 1 :]]
    )
    code, lines, _ = audit(root, capsys)
    assert code == ExitCode.BAD_DATA
    assert f"the journal has {'ab' * 32}" in next(line for line in lines if "differs" in line)


def cut(root: Path, keep: Callable[[facts.Fact], bool]) -> None:
    """Cut the journal before the first fact that `keep` rejects."""
    journal_facts = records(root)
    stop = next(number for number, fact in enumerate(journal_facts) if not keep(fact))
    rewrite(root, journal_facts[:stop])


def test_a_crash_between_close_and_commit_is_computed_but_not_compared(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal_facts = records(root)
    committed = next(f for f in journal_facts if isinstance(f, facts.StepCommitted) and f.step == 2)
    cut(root, lambda fact: fact != committed)
    for path in root.glob("[vb]*-*.f32"):
        path.unlink()
    found = document(root, capsys)
    assert found["steps"][-1]["verdict"] == "closed"
    assert found["steps"][-1]["base_digest"] == committed.base_digest
    (problem,) = found["problems"]
    assert "values-1.f32 is missing" in problem


def test_a_void_step_does_not_count(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(root, lambda fact: not (isinstance(fact, facts.StepClosed) and fact.step == 1))
    for path in root.glob("*-[0-9]*.[fb]*"):
        path.unlink()
    shutil.rmtree(root / "accepted")
    rewrite(root, [*records(root), facts.StepVoided(1, "3 of at least 4 reported")])
    code, lines, _ = audit(root, capsys)
    assert code == ExitCode.DONE
    assert lines[1].endswith("void: 3 of at least 4 reported")
    assert lines[-1] == "same model: not known: no step is committed yet"


def test_an_acknowledged_upload_of_an_open_step_must_exist(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut(root, lambda fact: not (isinstance(fact, facts.StepClosed) and fact.step == 1))
    for path in root.glob("*-[0-9]*.[fb]*"):
        path.unlink()
    (root / "accepted" / "1").rename(root / "spool" / "1")
    found = document(root, capsys)
    assert (found["steps"][-1]["verdict"], found["steps"][-1]["clients"]) == ("open", 3)
    assert (found["same_model"], found["problems"]) == (None, [])
    lost = a_file(root, "spool/1/*.bin")
    lost.unlink()
    code, lines, _ = audit(root, capsys)
    assert code == ExitCode.BAD_DATA
    assert f"missing: {lost} is missing" in lines[-2]


def test_a_torn_tail_is_reported_and_not_changed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = root / "journal"
    journal.write_bytes(journal.read_bytes() + b"\x40\0\0")
    code, lines, _ = audit(root, capsys)
    assert (code, lines[-1]) == (ExitCode.DONE, "same model: yes")
    assert lines[-2].startswith("3 bytes after the last record are an incomplete record")
    assert journal.read_bytes().endswith(b"\x40\0\0")


def test_an_unreadable_state_directory_is_refused_with_the_reason(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(folder: Path) -> str:
        code, _, output = audit(folder, capsys)
        assert code == ExitCode.STATE
        return output

    assert "there is no folder" in error(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "is not the state directory of a coordinator" in error(tmp_path / "empty")
    (tmp_path / "empty" / "history.json").touch()
    assert "holds the results of a run" in error(tmp_path / "empty")
    data = (root / "journal").read_bytes()
    flip(root / "journal", 200)
    assert "journal is damaged at byte 8" in error(root)
    (root / "journal").write_bytes(b"SSFLJRN9" + data[8:])
    assert "is not a journal of this version" in error(root)
    (root / "journal").unlink()
    assert "holds the files of a run but no journal" in error(root)
    rewritten = Journal(root / "journal")
    rewritten.append([b'{"fact":"RunBegun"}'])
    rewritten.close()
    assert "record 1 cannot be read: unknown record: 'RunBegun'" in error(root)


def test_an_unknown_setting_and_an_impossible_journal_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened, *rest = records(root)
    assert isinstance(opened, facts.RunOpened)
    rewrite(root, [replace(opened, settings={**opened.settings, "magic": 1}), *rest])
    code, _, output = audit(root, capsys)
    assert code == ExitCode.STATE
    assert "settings this version does not know: magic" in output
    rewrite(root, [opened, *(fact for fact in rest if not isinstance(fact, facts.StepStarted))])
    code, _, output = audit(root, capsys)
    assert code == ExitCode.STATE
    assert "the journal cannot be replayed: UploadAccepted" in output


def test_a_run_that_has_not_started_is_not_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(tmp_path / "journal").close()
    code, lines, _ = audit(tmp_path, capsys)
    assert (code, lines) == (
        ExitCode.DONE, ["same model: not known: no step is committed yet"],
    )  # fmt: skip
