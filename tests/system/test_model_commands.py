"""`ssfl model` on the models of a real federation."""

import json
from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode
from ssfl.tools import main as tools
from system.federation import SHARDS, FinishedRun

pytestmark = pytest.mark.system
WORDS = ("pooled", "mean", "loss", "metrics")


@pytest.mark.parametrize("place", ["coordinator", *SHARDS])
def test_every_copy_of_the_model_evaluates_as_in_the_history(
    place: str, undisturbed: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    (last,) = undisturbed.history["evaluations"]
    model = undisturbed.folder / "runs" / undisturbed.run_id / place
    where = ["--data", "all", "--data-root", str(undisturbed.folder / "shards")]
    assert tools.main(["model", "evaluate", str(model), *where, "--json"]) == ExitCode.DONE
    document = json.loads(capsys.readouterr().out)
    assert document["model_digest"] == undisturbed.digest
    assert {word: document[word] for word in WORDS} == {word: last[word] for word in WORDS}
    reported = {row["client"]: row["evaluation"] for row in last["clients"]}
    assert {row["shard"]: row["evaluation"] for row in document["shards"]} == reported


def test_an_exported_model_evaluates_as_in_the_history(
    tmp_path: Path, undisturbed: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    model = undisturbed.folder / "runs" / undisturbed.run_id / SHARDS[0]
    out = tmp_path / "exported.safetensors"
    flags = ["--format", "safetensors", "--out", str(out)]
    assert tools.main(["model", "export", str(model), *flags]) == ExitCode.DONE
    where = ["--data", ",".join(SHARDS), "--data-root", str(undisturbed.folder / "shards")]
    capsys.readouterr()
    assert tools.main(["model", "evaluate", str(out), *where, "--json"]) == ExitCode.DONE
    document = json.loads(capsys.readouterr().out)
    (last,) = undisturbed.history["evaluations"]
    assert {word: document[word] for word in WORDS} == {word: last[word] for word in WORDS}
