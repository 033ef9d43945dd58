"""`ssfl report` of damaged runs and other folders: errors that name the fault."""

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from ssfl.method.settings import RunSettings
from ssfl.server.errors import StateError
from ssfl.server.run import facts
from ssfl.server.storage.journal import Journal, records_of
from tools.report.report_fixtures import document, refused


def damaged(text: str) -> list[tuple[str, str, str]]:
    lines = text.splitlines(keepends=True)
    return [
        ("cut in the middle of a line", text[: len(text) // 2], "is damaged"),
        ("cut at the end of a line", "".join(lines[:4]), "ends in the middle"),
        ("not JSON", "hello\n", "is damaged"),
        ("a list", "[]", "not an object"),
        ("another file", "{}", "holds no 'run_id'"),
        ("another format", text.replace('"format": 1', '"format": 9', 1), "has format 9"),
        ("an entry that is none", lines[0] + lines[1] + "7],\n", "is damaged"),
        ("a round without clients", text.replace('"clients": [', '"others": ['), "cannot read"),
        ("deep", "[" * 100_000, "is damaged"),
    ]


@pytest.mark.parametrize("case", range(9))
def test_a_damaged_history_is_named(
    case: int, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "coordinator" / "history.json"
    _, text, expected = damaged(file.read_text())[case]
    file.write_text(text)
    output = refused(capsys, run)
    assert expected in output


def test_other_damaged_files_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run / "coordinator"
    mask = (folder / "mask.bin").read_bytes()
    (folder / "mask.bin").write_bytes(mask[:-1])
    assert "mask.bin" in refused(capsys, run)
    (folder / "mask.bin").write_bytes(bytes(len(mask)))
    assert "is not the mask" in refused(capsys, run)
    (folder / "mask.bin").write_bytes(mask)
    head = "client,direction,payload_bytes,message_bytes"
    (folder / "ledger.csv").write_text(f"{head}\na,up,1,2\na,up,1,none\n")
    output = refused(capsys, run)
    assert "ledger.csv: line 3 is damaged: message_bytes is 'none'; restore the file" in output


def test_a_folder_that_is_not_a_run_is_refused_with_a_hint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no folder nowhere" in refused(capsys, "nowhere")
    (tmp_path / "empty").mkdir()
    assert "is not a run: it has neither" in refused(capsys, tmp_path / "empty")
    shutil.copytree(run, tmp_path / "both" / "r1")
    shutil.copytree(run, tmp_path / "both" / "r2")
    output = refused(capsys, tmp_path / "both")
    assert "several runs" in output and str(tmp_path / "both" / "r2" / "coordinator") in output
    (tmp_path / "empty" / "journal").write_bytes(b"nonsense")
    assert "not a journal" in refused(capsys, tmp_path / "empty")
    assert "RUN" in refused(capsys)


def test_a_file_that_cannot_be_written_is_a_plain_error(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "must end in .html" in refused(capsys, run, "--out", "report.pdf")
    missing = (
        "cannot write no/such/folder/report.html: No such file or directory (there is no folder"
    )
    assert missing in refused(capsys, run, "--out", "no/such/folder/report.html")
    Path("there.html").mkdir()  # a file cannot replace a folder
    assert "cannot write there.html: Is a directory;" in refused(capsys, run, "--out", "there.html")


def test_a_run_id_that_is_no_folder_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be part of the path of the report."""
    opened = facts.RunOpened("../../x\n", asdict(RunSettings()), "0.1", "")
    journal = Journal(tmp_path / "journal")
    journal.append([facts.to_json(opened)])
    journal.close()
    output = refused(capsys, tmp_path)
    assert "journal is damaged: its run id is '../../x\\n', not 1 to 64 letters" in output


def test_a_torn_journal_is_reported_up_to_its_last_record(
    reported_state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = Path(shutil.copytree(reported_state, tmp_path / "state"))
    journal = (state / "journal").read_bytes()
    (state / "journal").write_bytes(journal[:-5])
    found = document(capsys, state)
    assert found["verdict"]["word"] == "not finished" and found["rounds_done"] == 3
    (state / "journal").write_bytes(journal[:-5] + b"?" * 500)
    with pytest.raises(StateError):
        list(records_of(state / "journal"))
    assert "is damaged at byte" in refused(capsys, state)
