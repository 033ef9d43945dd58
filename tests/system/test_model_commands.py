"""`ssfl model` on the models of a real federation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ssfl import api
from ssfl.program.exits import ExitCode
from ssfl.tools import main as tools
from system.federation import SHARDS, FinishedRun, run_federation
from system.programs import Programs

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


def evaluated(
    model: Path, data: str, shards: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """Return what `ssfl model evaluate` prints about a model."""
    where = ["--data", data, "--data-root", str(shards)]
    capsys.readouterr()
    assert tools.main(["model", "evaluate", str(model), *where, "--json"]) == ExitCode.DONE
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize("strategy", ["sparsyfed", "fedpm"])
def test_every_model_has_plain_weights_if_others_were_trained(
    sites: Programs, shards: Path, capsys: pytest.CaptureFixture[str], strategy: str
) -> None:
    """A network without the strategy computes what the clients reported."""
    real = run_federation(sites, f"--strategy={strategy}", "--personalize-epochs=1")
    folder = real.folder / "runs" / real.run_id
    out = folder / "exported.safetensors"
    flags = ["--format", "safetensors", "--out", str(out)]
    assert tools.main(["model", "export", str(folder / "coordinator"), *flags]) == ExitCode.DONE
    (last,) = real.history["evaluations"]
    for model in (folder / "coordinator", folder / "coordinator" / "best", folder / SHARDS[1], out):
        found = evaluated(model, "all", shards, capsys)
        assert {word: found[word] for word in WORDS} == {word: last[word] for word in WORDS}, model

    weights = api.load_model(folder / SHARDS[0]).state_dict()
    simulated = api.simulate(
        api.read_shards(shards), strategy=strategy, personalize_epochs=1, local_steps=2, rounds=3,
        model="mlp", sparsity="0.9", seed=7, evaluate_every=0,
    )  # fmt: skip
    for name, tensor in simulated.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    kept = sum(int(tensor.count_nonzero()) for tensor in weights.values() if tensor.dim() > 1)
    assert kept == simulated.mask.num_kept == real.history["mask"]["num_kept"]

    for row in real.history["personal"]["clients"]:
        own = evaluated(folder / row["client"] / "personal", row["client"], shards, capsys)
        assert own["pooled"] == row["personal"]
