"""The summary of a cut: what each shard holds, as written to `shards.json`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.shards.assign import Assignment
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import FORMAT
from ssfl.program.version import ssfl_version

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ShardSummary:
    """The data set, the cut, and the number of samples per shard and class."""

    name: str  # of the data set
    notes: tuple[str, ...]
    columns: tuple[dict[str, Any], ...]  # table: how to prepare new rows
    cut: Cut
    paths: tuple[Path, ...]
    input_shape: tuple[int, ...]
    input_type: str
    num_classes: int  # 0 if the targets are numbers
    group_names: tuple[str, ...]  # classes, or intervals if the targets are numbers
    train_counts: Counts  # all counts are (clients, groups)
    val_counts: Counts
    test_counts: Counts
    # Minimum, mean and maximum training target of each client; no rows for classes.
    target_ranges: npt.NDArray[np.float64]


def summarize(assignment: Assignment, cut: Cut, paths: tuple[Path, ...]) -> ShardSummary:
    """Return the summary of an assignment whose shards are written to `paths`."""
    data = assignment.data
    ranges = []
    if not data.num_classes:
        for part in assignment.train:
            targets = data.train_y[part].reshape(len(part), -1)[:, 0].astype(np.float64)
            ranges.append([targets.min(), targets.mean(), targets.max()])
    return ShardSummary(
        data.name,
        (*data.notes, *_notes(assignment)),
        data.columns,
        cut,
        paths,
        data.input_shape,
        str(data.train_x.dtype),
        data.num_classes,
        assignment.group_names,
        assignment.train_counts,
        assignment.val_counts,
        assignment.test_counts,
        np.array(ranges).reshape(-1, 3),
    )


def summary_json(summary: ShardSummary) -> str:
    """Return the text of `shards.json`: all inputs of the cut, and what each shard holds."""
    head: dict[str, Any] = {
        "format": 1,
        "source": summary.name,
        "notes": list(summary.notes),
        **asdict(summary.cut),
        "input_shape": list(summary.input_shape),
        "input_type": summary.input_type,
        "num_classes": summary.num_classes,
        "classes" if summary.num_classes else "intervals": list(summary.group_names),
        **({"columns": list(summary.columns)} if summary.columns else {}),
        "versions": {"ssfl": ssfl_version(), "numpy": np.__version__, "shard_format": FORMAT},
    }
    rows = (
        {
            "file": path.name,
            "train": summary.train_counts[client].tolist(),
            "validation": summary.val_counts[client].tolist(),
            "test": summary.test_counts[client].tolist(),
            **_range(summary, client),
        }
        for client, path in enumerate(summary.paths)
    )
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    shards = ",\n  ".join(json.dumps(row) for row in rows)  # one line per shard
    return "\n".join(["{", *lines, f' "shards": [\n  {shards}\n ]', "}\n"])


def _range(summary: ShardSummary, client: int) -> dict[str, float]:
    if summary.num_classes:
        return {}
    low, mean, high = summary.target_ranges[client].tolist()
    return {"target_min": low, "target_mean": mean, "target_max": high}


def _notes(assignment: Assignment) -> list[str]:
    num_test = sum(map(len, assignment.test))
    if assignment.test_set_aside:
        total = num_test + sum(map(len, assignment.train)) + sum(map(len, assignment.val))
        aside = f"{num_test:,} of {total:,} are set aside for testing"
        return [f"no test samples in the source: {aside}"]
    return [] if num_test else ["there are no test samples"]
