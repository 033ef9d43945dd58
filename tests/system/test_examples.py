"""Every example works: the commands of its docstring run in an empty folder."""

import ast
import csv
import json
import math
import shlex
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ssfl import api
from ssfl.datasets.shards.shard_file import read_shard
from ssfl.program.exits import ExitCode
from system.programs import Program, Programs

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CHANCE_ERROR = 66.0  # of diabetes.py: the mean error of the constant prediction 152.1


def commands(example: str) -> list[list[str]]:
    """Return the commands in an example's docstring, as words."""
    text = ast.get_docstring(ast.parse((EXAMPLES / example).read_text("utf-8"))) or ""
    indented = [line for line in text.splitlines() if line.startswith("    ")]
    whole = textwrap.dedent("\n".join(indented)).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in whole.splitlines()]


def run(programs: Programs, words: list[str], *more: str) -> Program:
    """Run one command; it must exit with 0."""
    done = programs.run(*words, *more)
    assert done.ends() == ExitCode.DONE, done.err
    return done


def runs_left_by(programs: Programs, out: str = "runs/rehearsal") -> dict[str, Path]:
    """Return the result folder of each run of a rehearsal, by name."""
    found = programs.folder.glob(f"{out}/*/models/*/coordinator")
    return {folder.relative_to(programs.folder / out).parts[0]: folder for folder in found}


def history(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "history.json").read_text("utf-8"))
    assert document["finished"] and not document["stopped"]
    return document


@pytest.fixture
def copied(programs: Programs) -> Programs:
    """A folder with only the examples in it."""
    for file in EXAMPLES.glob("*.py"):
        shutil.copy(file, programs.folder)
    return programs


def test_every_example_is_tested_and_has_a_line_in_the_readme() -> None:
    readme = (EXAMPLES / "README.md").read_text("utf-8")
    mine = Path(__file__).read_text("utf-8")
    for file in EXAMPLES.glob("*.py"):
        assert file.name in readme and f'commands("{file.name}")' in mine
        assert commands(file.name)[0] == ["python", file.name]


def test_diabetes_predicts_better_than_the_mean_both_sparse_and_dense(copied: Programs) -> None:
    make, rehearse = commands("diabetes.py")
    run(copied, make)
    rehearsal = run(copied, rehearse)
    assert "absolute_error" in rehearsal.out
    for folder in runs_left_by(copied).values():
        last = history(folder)["evaluations"][-1]
        assert last["pooled"] is None and last["loss"] < 0.6
        assert last["metrics"]["absolute_error"] < 0.75 * CHANCE_ERROR
    sent = {name: sum(payloads(folder).values()) for name, folder in runs_left_by(copied).items()}
    assert sent["ssfl"] < 0.4 * sent["dense"]


def test_code_or_prose_classifies_far_above_chance(copied: Programs) -> None:
    make, rehearse = commands("code_or_prose.py")
    run(copied, make)
    run(copied, rehearse, "--rounds=4")
    last = history(runs_left_by(copied)["ssfl"])["evaluations"][-1]
    assert last["pooled"] > 0.8
    assert 0.3 < last["metrics"]["called_prose"] < 0.7


def test_fine_tuning_beats_random_weights_and_sends_the_weights_once(copied: Programs) -> None:
    make, init, rehearse = commands("fine_tuning.py")
    run(copied, make)
    assert "2 start from the seed: head.weight, head.bias" in run(copied, init).out
    run(copied, rehearse)
    tuned = runs_left_by(copied)["ssfl"]
    after = history(tuned)
    sites = {f"site_{n}": read_shard(copied.folder / "sites" / f"site_{n}.npz") for n in range(4)}
    from_seed = api.simulate(sites, task=copied.folder / "fine_tuning.py", **after["settings"])
    assert after["evaluations"][-1]["pooled"] > max(0.7, from_seed.history.accuracy[-1] + 0.05)
    manifest = json.loads((tuned / "manifest.json").read_text("utf-8"))
    size = sum(math.prod(tensor["shape"]) for tensor in manifest["tensors"])
    assert payloads(tuned, "initial") == {f"site_{n}": 4 * size for n in range(4)}


def payloads(folder: Path, phase: str = "") -> dict[str, int]:
    """Return each client's payload bytes in a phase, or in all, from the ledger."""
    sums: dict[str, int] = {}
    with (folder / "ledger.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["phase"] == phase or not phase:
                sums[row["client"]] = sums.get(row["client"], 0) + int(row["payload_bytes"])
    return sums
