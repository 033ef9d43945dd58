import csv
from pathlib import Path
from typing import Any

import pytest

from ssfl.server.accounting.ledger import Direction, Ledger
from ssfl.server.accounting.ledger_file import COLUMNS, LedgerFile, copy_ledger, ledger_problem
from ssfl.strategies.contract import ClientId

ANN = ClientId("ann")


def rows_of(num_bytes: int) -> list[dict[str, Any]]:
    """Return the rows of one message and one sample of a connection."""
    ledger = Ledger()
    ledger.count("values", Direction.UP, num_bytes, 4, client=ANN, encoding="values_only")
    ledger.carry(ANN, Direction.UP, num_bytes + 1)
    return ledger.take()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def written(path: Path, *appended: int) -> list[int]:
    """Append rows of the given bytes as steps 1, 2, ...; return the file length after each."""
    file = LedgerFile(path, 0)
    lengths = [file.append(rows_of(n), "run", 0, step) for step, n in enumerate(appended, 1)]
    file.close()
    return lengths


def test_rows_follow_a_header_and_name_run_round_and_step(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    lengths = written(path, 10, 20)
    assert path.stat().st_size == lengths[-1]
    assert path.read_text().splitlines() == [
        ",".join(COLUMNS),
        "run,0,1,ann,values,up,values_only,4,10,",
        "run,0,1,ann,connection,up,,0,0,11",
        "run,0,2,ann,values,up,values_only,4,20,",
        "run,0,2,ann,connection,up,,0,0,21",
    ]


def test_outside_steps_round_and_step_are_empty(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "ledger.csv", 0)
    file.append(rows_of(10), "run", "", "")
    file.close()
    assert {(row["round"], row["step"]) for row in read(file.path)} == {("", "")}


@pytest.mark.parametrize("torn", [0, 1, 17, 60])
def test_rows_beyond_the_journalled_length_are_truncated(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "ledger.csv"
    lengths = written(path, 10, 20)
    with path.open("r+b") as file:  # the power failed during the second append
        file.truncate(lengths[1] - torn)
    again = LedgerFile(path, lengths[0])
    assert path.stat().st_size == lengths[0]
    assert again.append(rows_of(30), "run", 0, 2) == path.stat().st_size
    again.close()
    assert [row["message_bytes"] for row in read(path)] == ["10", "0", "30", "0"]


def test_a_file_without_committed_rows_starts_again_with_a_header(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    written(path, 10)
    written(path, 20)
    assert [row["message_bytes"] for row in read(path)] == ["20", "0"]


def test_a_file_that_lost_its_end_continues_after_the_last_complete_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.csv"
    lengths = written(path, 10, 20)
    with path.open("r+b") as file:
        file.truncate(lengths[0] + 5)
    again = LedgerFile(path, lengths[1])
    assert "rows of earlier steps are missing" in caplog.text
    again.append(rows_of(30), "run", 0, 3)
    again.close()
    assert [row["message_bytes"] for row in read(path)] == ["10", "0", "30", "0"]


def test_a_copy_has_the_given_length_while_rows_are_appended(tmp_path: Path) -> None:
    path, copy = tmp_path / "ledger.csv", tmp_path / "out.csv"
    lengths = written(path, 10, 20)
    copy_ledger(path, copy, lengths[0])
    assert copy.read_bytes() == path.read_bytes()[: lengths[0]]
    copy_ledger(path, copy, lengths[1])
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("line", "damaged", "why"),
    [
        (3, b"run,0,1,ann,connection,up,,x,0,11", "payload_bytes is 'x'"),
        (4, b"run,0,2,ann,values,up,values_only,4,-2,", "message_bytes is '-2'"),
        (4, b"run,0,2,ann,values,up,values_only,4", "more or fewer columns than line 1"),
        (5, b"run,0,2,ann,connection,up,,0,0,21,9", "more or fewer columns than line 1"),
        (5, b"run,0,2,a\xffn,connection,up,,0,0,21", "can't decode byte 0xff"),
    ],
)
def test_a_damaged_line_is_named_with_the_remedy(
    tmp_path: Path, line: int, damaged: bytes, why: str
) -> None:
    path = tmp_path / "ledger.csv"
    written(path, 10, 20)
    lines = path.read_bytes().splitlines()
    lines[line - 1] = damaged
    path.write_bytes(b"\n".join(lines) + b"\n")
    problem = ledger_problem(path, [], path.stat().st_size)
    assert problem.startswith(f"{path}: line {line} is damaged: ")
    assert why in problem and problem.endswith("; restore the file from a backup")


def test_a_sound_ledger_adds_up_and_a_changed_count_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    totals = Ledger()
    totals.count("values", Direction.UP, 30, 8, client=ANN, encoding="values_only")
    totals.carry(ANN, Direction.UP, 32)
    (num_bytes,) = written(path, 10, 20)[1:]
    assert ledger_problem(path, totals.rows(), num_bytes) == ""
    path.write_bytes(path.read_bytes().replace(b",4,10,", b",4,11,"))
    assert "does not add up" in ledger_problem(path, totals.rows(), num_bytes)
    path.write_bytes(path.read_bytes().replace(b"phase", b"Phase"))
    assert "line 1 does not name the columns" in ledger_problem(path, totals.rows(), num_bytes)
