"""`ssfl model evaluate`: tests a model on one or several shards."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from ssfl.datasets.errors import ShardError
from ssfl.datasets.shards.shard_file import find_shard, shard_names
from ssfl.method.errors import SettingsError
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.model_io.stored_model import StoredModel
from ssfl.server.run.quality import accuracies
from ssfl.tools.model.build import learning_errors
from ssfl.tools.model.folder import read_model
from ssfl.tools.model.network import build_network, task_of
from ssfl.tools.terminal import console, right

SPLITS = {"test": "test", "validation": "val", "train": "train"}  # by flag: the name in a Shard
ALL = "all"
UNKNOWN = "–"

DESCRIPTION = (
    "Tests a model on shards, as the clients of a run do. MODEL is a result folder of a run, "
    "such as runs/<run>/coordinator, or a safetensors file."
)


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """Which model, on which data."""

    model: Path = setting(
        MISSING, "a result folder of a run, or a safetensors file", positional=True
    )
    data: str = setting(
        MISSING, "names of shards or paths, such as a,b; all: every shard of --data-root"
    )
    data_root: Path = setting(Path("shards"), "folder that holds the shards")
    task: str = setting("", "the task's .py file or module, unless it is built in")
    split: str = setting("test", "which samples", choices=tuple(SPLITS))
    device: str = setting("auto", "where to compute", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = setting(1, "torch threads, which affect the last bits; 0: every core")
    json: bool = setting(False, "print JSON with the names of history.json")

    def validate(self) -> None:
        """Raise SettingsError if a flag is invalid."""
        if not all(self.names()):
            raise SettingsError(f"--data must be names of shards, such as a,b; got {self.data!r}")

    def names(self) -> list[str]:
        return [name.strip() for name in self.data.split(",")]

    def shards(self) -> list[Path]:
        """Return the paths of the shards."""
        names = shard_names(self.data_root) if self.data == ALL else self.names()
        return [find_shard(name, self.data_root) for name in names]


def evaluate(argv: Sequence[str]) -> None:
    """Run the command."""
    config = settings.load(EvaluateConfig, argv, None, "ssfl model evaluate", DESCRIPTION)
    final = read_model(config.model)
    with learning_errors("testing a model"):
        rows = _test(config, final)
    summary = accuracies(row["evaluation"] for row in rows)
    if config.json:
        model = {"model": str(final.path), "model_digest": final.digests["model_digest"]}
        print(json.dumps({**model, "split": config.split, **summary, "shards": rows}, indent=1))
    else:
        console().print(_table(config.split, rows, summary))


def _test(config: EvaluateConfig, final: StoredModel) -> list[dict[str, Any]]:
    """Return the evaluation on every shard; one shard is in memory at a time."""
    from ssfl.learning.device import choose_device, prepare_torch, working_on
    from ssfl.learning.evaluate import evaluate as test

    paths = config.shards()
    task = task_of(final, config.task)
    prepare_torch(config.threads)
    device = choose_device(config.device)
    rows: list[dict[str, Any]] = []
    for path in paths:
        shard = task.load_shard(path)
        model = build_network(final, task, shard, device)
        x, y = (getattr(shard, f"{SPLITS[config.split]}_{part}") for part in "xy")
        with working_on(device):
            tested = test(model, task, replace(shard, test_x=x, test_y=y))
        rows.append({"shard": path.name.removesuffix(".npz"), "evaluation": asdict(tested)})
    if not any(row["evaluation"]["total"] for row in rows):
        raise ShardError(
            f"there are no {config.split} samples in {', '.join(str(path) for path in paths)}; "
            f"--split is one of {', '.join(SPLITS)}"
        )
    return rows


def _table(split: str, rows: Sequence[dict[str, Any]], summary: dict[str, Any]) -> Table:
    metrics = list(summary["metrics"])
    numbers = (f"{split} samples", "accuracy", "loss", *metrics)
    table = Table("shard", *map(right, numbers))
    for row in rows:
        tested = row["evaluation"]
        single = accuracies([tested])
        table.add_row(row["shard"], *_cells(tested["total"], single["pooled"], single, metrics))
    if len(rows) > 1:
        total = sum(row["evaluation"]["total"] for row in rows)
        table.add_section()
        table.add_row("pooled", *_cells(total, summary["pooled"], summary, metrics))
        table.add_row("mean", "", _percent(summary["mean"]))
    return table


def _cells(
    total: int, accuracy: float | None, summary: dict[str, Any], metrics: Sequence[str]
) -> list[str]:
    numbers = [summary["loss"], *(summary["metrics"].get(name) for name in metrics)]
    shown = [UNKNOWN if number is None else f"{number:.4g}" for number in numbers]
    return [f"{total:,}", _percent(accuracy), *shown]


def _percent(accuracy: float | None) -> str:
    return UNKNOWN if accuracy is None else f"{100 * accuracy:.2f} %"
