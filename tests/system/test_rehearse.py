"""`ssfl rehearse` with a user's own task and data: results, messages and files."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from ssfl.datasets.shards.shard_file import Shard, write_shard
from ssfl.method.streams import Stream
from ssfl.program.exits import ExitCode
from system.programs import Program, Programs, until

pytestmark = pytest.mark.system

TASK = """
from torch import nn
from torch.nn import functional

from ssfl.datasets.shards.shard_file import read_shard


def load_shard(path):
    return read_shard(path)


def build_model(settings, shard):
    return nn.Sequential(nn.Linear(shard.input_shape[0], 8), nn.ReLU(), nn.Linear(8, 2))


def loss(model, x, y):
    return functional.cross_entropy(model(x), y)


def metrics(model, x, y):
    return {"accuracy": (model(x).argmax(dim=1) == y).float().mean()}
"""
SMALL = ("--rounds=2", "--local-steps=2")


def rows(seed: int, train: int = 24, test: int = 8) -> Shard:
    """Return points in a plane; the class is the side of a line."""
    x = Stream(seed, "rows").uniform(2 * (train + test)).reshape(-1, 2).astype(np.float32)
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    return Shard(x[:train], y[:train], x[train:], y[train:], num_classes=2)


@pytest.fixture(autouse=True)
def data(programs: Programs) -> Path:
    """One shard, which is enough to rehearse with, and a task next to it."""
    folder = programs.folder / "shards"
    folder.mkdir()
    write_shard(folder / "north.npz", rows(0))
    (programs.folder / "task.py").write_text(TASK)
    return folder


def rehearse(programs: Programs, *flags: str) -> Program:
    return programs.run("ssfl", "rehearse", *SMALL, *flags)


def history(programs: Programs, out: str = "runs/rehearsal") -> dict[str, list[dict[str, object]]]:
    (file,) = programs.folder.glob(f"{out}/ssfl/models/*/coordinator/history.json")
    document: dict[str, list[dict[str, object]]] = json.loads(file.read_text())
    return document


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (
            "nn.Linear(8, 2))",
            "nn.Linear(9, 2))",
            [
                "return functional.cross_entropy(model(x), y)",
                "x float32 16x2 from ",
                "that is: a linear layer was built for 9 inputs and got 8 for each of 16 rows",
            ],
        ),
        ("loss(model, x, y):", "loss(model, x, y:", ["raised SyntaxError", 'task.py", line 16']),
    ],
)
def test_a_bug_in_the_task_shows_only_lines_of_the_task(
    old: str, new: str, shown: list[str], programs: Programs
) -> None:
    (programs.folder / "task.py").write_text(TASK.replace(old, new))
    ended = rehearse(programs, "--task=task.py")
    assert ended.ends() == ExitCode.BAD_DATA
    for text in shown:
        assert text in ended.err
    assert "site-packages" not in ended.err and "ssfl/learning" not in ended.err
    assert ended.err.startswith("ssfl rehearse: error: ")
    assert "configuration" not in ended.err  # log lines stay in the log


def test_a_second_rehearsal_replaces_the_first_and_nothing_else(programs: Programs) -> None:
    (programs.folder / "runs" / "thesis").mkdir(parents=True)
    digests = []
    for _ in range(2):
        ended = rehearse(programs, "--task=task.py")
        assert ended.ends() == ExitCode.DONE
        digests.append(history(programs)["model_digest"])  # there is one run
    assert digests[0] == digests[1]
    assert {folder.name for folder in (programs.folder / "runs").iterdir()} == {
        "rehearsal",
        "thesis",
    }


def test_names_and_folders_may_have_any_letters_and_one_shard_is_enough(
    programs: Programs,
) -> None:
    clinics = programs.folder / "Kliniken im Süden"
    clinics.mkdir()
    write_shard(clinics / "Herz & Lunge 病院.npz", rows(3))
    (programs.folder / "mein modell.py").write_text(TASK)
    out = "läufe/erster versuch"
    ended = rehearse(
        programs, f"--data-root={clinics.name}", "--task=mein modell.py", f"--out={out}"
    )
    assert ended.ends() == ExitCode.DONE
    assert "1 client (Herz & Lunge 病院 as client_00) and a coordinator" in ended.out
    assert "1 client, 2 rounds" in ended.out
    assert history(programs, out)["finished"]


def test_sites_without_test_samples_train_and_nothing_is_tested(
    programs: Programs, data: Path
) -> None:
    write_shard(data / "north.npz", rows(0, test=0))
    ended = rehearse(programs, "--task=task.py")
    assert ended.ends() == ExitCode.DONE
    assert "done, 2 rounds, not tested: no test samples" in ended.out
    (table,) = [line for line in ended.out.splitlines() if "MB up" in line]
    assert "accuracy" not in table and "loss" not in table


def test_sites_with_one_sample_or_one_class_can_train(programs: Programs, data: Path) -> None:
    lone = rows(5, train=1)
    write_shard(data / "north.npz", lone)
    one_sided = rows(6)
    write_shard(
        data / "south.npz",
        Shard(one_sided.train_x, 0 * one_sided.train_y, lone.test_x, lone.test_y, num_classes=2),
    )
    ended = rehearse(programs, "--task=table")
    assert ended.ends() == ExitCode.DONE
    assert history(programs)["finished"]


def test_invalid_samples_are_reported_with_file_and_position(
    programs: Programs, data: Path
) -> None:
    shard = rows(0)
    shard.train_x[7, 1] = np.nan  # after the checks of Shard, as in a file written elsewhere
    write_shard(data / "north.npz", shard)
    ended = rehearse(programs, "--task=table")
    assert ended.ends() == ExitCode.BAD_DATA
    assert "shards/north.npz: train_x holds NaN or infinity, first in sample 7" in ended.err


def test_sites_that_disagree_about_the_classes_see_both_counts(
    programs: Programs, data: Path
) -> None:
    other = rows(1)
    write_shard(
        data / "south.npz",
        Shard(other.train_x, other.train_y, other.test_x, other.test_y, num_classes=3),
    )
    ended = rehearse(programs, "--task=table")
    assert ended.ends() == ExitCode.REFUSED
    assert re.search(
        r"built another model: (3 classes here, 2|2 classes here, 3) in the run\.", ended.err
    )


def test_ctrl_c_ends_every_process(programs: Programs) -> None:
    rehearsal = programs.start("ssfl", "rehearse", "--task=task.py", "--rounds=5000")
    me = psutil.Process(rehearsal.process.pid)
    until(
        lambda: rehearsal.running and len(me.children(recursive=True)) == 3, "three processes run"
    )
    until(lambda: "train" in rehearsal.out, "the first round is on the screen")
    children = me.children(recursive=True)
    rehearsal.signal(signal.SIGINT)
    assert rehearsal.ends() == ExitCode.INTERRUPTED
    assert rehearsal.err == "ssfl rehearse: interrupted\n"
    assert [child for child in children if child.is_running()] == []
