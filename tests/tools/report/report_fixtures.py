"""Files of a small run, made by a simulation, and `ssfl report` of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode
from ssfl.server.history.history_file import history_blocks
from ssfl.server.report.from_state_dir import open_state
from ssfl.server.run import facts
from ssfl.server.storage.journal import JournalFile
from ssfl.simulator.federation import SimulatedFederation
from ssfl.study.data import DataSpec, build_shards
from ssfl.tools import main as tools
from tools.report.kept_run import KeptRun

SMALL = RunSettings(
    model="mlp", width=8, rounds=3, clients=3, local_steps=1, sparsity="0.8", reproducible=True,
    evaluate_every=2, scoring_batches=1, seed=3,
)  # fmt: skip
MASKED, VALUES = 64 * 8 + 8 * 8 + 8 * 10, 64 * 8 + 8 * 8 + 8 * 10 + 8 + 8 + 10


class AccountedRun(KeptRun):
    """Writes the totals of bytes into its journal, as a coordinator does."""

    def _with_accounting(self, fact: facts.Fact) -> facts.Fact:
        accounted = SimulatedFederation._with_accounting(self, fact)
        self._write(accounted)
        return accounted


def make_state(folder: Path, **changes: Any) -> Path:
    """Run a simulation of SMALL that leaves a state directory."""
    shards = build_shards(DataSpec(clients=3), seed=3)
    AccountedRun(folder, shards, replace(SMALL, **changes)).finish()
    return folder


def make_results(state: Path, folder: Path) -> None:
    """Write the result files of a coordinator from its state directory."""
    source = open_state(state)
    assert source.model is not None
    folder.mkdir(parents=True)
    blocks = history_blocks(JournalFile(state / "journal"), 1 << 40, source.summary)
    (folder / "history.json").write_bytes(b"".join(blocks))
    (folder / "manifest.json").write_bytes(source.model[0].json)
    (folder / "mask.bin").write_bytes(source.model[1].bits)


def history_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "coordinator" / "history.json").read_text())
    return found


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    history = history_of(run)
    change(history)
    lists = {name: history.pop(name) for name in ("rounds", "masks", "evaluations")}
    lines = [json.dumps(history)[:-1] + ","]
    for name, entries in lists.items():
        lines.append(f'"{name}": [')
        lines += [json.dumps(entry) + "," for entry in entries]
        lines[-1] = lines[-1].rstrip(",") + ("]}" if name == "evaluations" else "],")
    (run / "coordinator" / "history.json").write_text("\n".join(lines) + "\n")


def document(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert tools.main(["report", *map(str, arguments), "--json"]) == ExitCode.DONE
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert tools.main(["report", *map(str, arguments)]) in (ExitCode.BAD_DATA, ExitCode.USAGE)
    output = capsys.readouterr().err
    assert output.startswith("ssfl report: error: ") and "Traceback" not in output
    return output
