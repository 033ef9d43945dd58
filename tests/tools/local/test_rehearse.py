"""`ssfl rehearse` before processes start: refused flags and client ids."""

from pathlib import Path

import pytest

from ssfl.durable.lock import DirectoryLock
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.tools import main as tools
from ssfl.tools.local.local_run import MARKER, fresh_folder
from ssfl.tools.local.processes import client_ids
from ssfl.tools.local.rehearse import RehearseConfig, _chosen

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shards").mkdir()
    for name in ("a", "b"):
        Path("shards", f"{name}.npz").touch()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--clients=3"], ExitCode.USAGE, "--clients 3: shards has 2 shards"),
        (["--data-root=many"], ExitCode.USAGE, "many has 40 shards, such as rec_00.csv, and each"),
        (["--dense", "--strategy=fedavg"], ExitCode.USAGE, "leave --strategy out"),
        (["--sparsity=2"], ExitCode.USAGE, "--sparsity: sparsity must lie strictly"),
        (["--rounds=0"], ExitCode.USAGE, "--rounds must be at least 1, got 0"),
        (["--clients-per-round=1"], ExitCode.USAGE, "is below --min-clients 2"),
        (["--task=no.py"], ExitCode.BAD_DATA, "there is no task file no.py"),
        (["--data-root=no"], ExitCode.BAD_DATA, "there is no folder no: name the folder of your"),
        (["--data-root=empty"], ExitCode.BAD_DATA, "the folder empty holds no shards; make some"),
        (["--out=."], ExitCode.USAGE, "--data-root shards lies in --out ., which is replaced"),
        (["--init=runs/rehearsal/m.safetensors"], ExitCode.USAGE, "lies in --out runs/rehearsal"),
        (
            ["--out=thesis"],
            ExitCode.USAGE,
            "thesis is not an output folder of ssfl: choose another",
        ),
        (["--out=file"], ExitCode.USAGE, "file is not an output folder of ssfl: choose another"),
    ],
)
def test_invalid_flags_are_refused_before_a_process_is_started(
    flags: list[str], code: ExitCode, message: str, capsys: Captured
) -> None:
    for folder in ("empty", "thesis", "many"):
        Path(folder).mkdir()
    for number in range(40):
        Path("many", f"rec_{number:02}.csv").touch()
    Path("thesis/chapter.tex").touch()
    Path("file").touch()
    assert tools.main(["rehearse", *flags]) == code
    assert message in " ".join(capsys.readouterr().err.split())
    assert Path("thesis/chapter.tex").exists() and Path("shards/a.npz").exists()
    assert not Path("runs").exists()


def test_an_unknown_flag_is_named(capsys: Captured) -> None:
    assert tools.main(["rehearse", "--sparcity=0.9"]) == ExitCode.USAGE
    assert "--sparcity" in capsys.readouterr().err


def test_only_the_output_folder_of_an_earlier_run_is_emptied() -> None:
    Path("runs/other").mkdir(parents=True)
    fresh_folder(Path("runs/mine"))
    Path("runs/mine/old.log").touch()
    fresh_folder(Path("runs/mine"))
    assert [entry.name for entry in Path("runs/mine").iterdir()] == [MARKER]
    assert Path("runs/other").is_dir()


def test_the_folder_of_a_running_rehearsal_is_refused(capsys: Captured) -> None:
    fresh_folder(Path("runs/rehearsal"))
    with DirectoryLock(Path("runs/rehearsal/ssfl/state")):
        assert tools.main(["rehearse"]) == ExitCode.STATE
    assert "runs/rehearsal/ssfl/state is in use by process" in capsys.readouterr().err
    assert Path("runs/rehearsal/ssfl/state").is_dir()


def test_the_client_id_is_the_name_of_the_shard_if_possible() -> None:
    assert client_ids(["shard_00", "old.csv", "x" * 64]) == {
        "shard_00": "shard_00", "old.csv": "old.csv", "x" * 64: "x" * 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["Klinik Süd", "病院", "two words", "-flag", "x" * 65, "coordinator", "a\nb", "ſ"]
)
def test_a_shard_name_that_cannot_be_an_id_gets_a_number(name: str) -> None:
    assert client_ids(["first", name]) == {"first": "first", name: "client_01"}


def test_a_number_that_a_shard_already_has_is_not_used_again() -> None:
    ids = client_ids(["Süd", "client_00", "client_00_", "client_03", "Ost"])
    assert len(set(ids.values())) == 5
    assert ids["client_00"] == "client_00" and ids["Süd"] == "client_00__"


def test_clients_limits_the_shards_to_the_first_ones() -> None:
    config = RehearseConfig(run=RunSettings(clients=3))
    assert _chosen(config, [f"s{number}" for number in range(500)]) == ["s0", "s1", "s2"]
    assert _chosen(RehearseConfig(), ["a", "b"]) == ["a", "b"]
