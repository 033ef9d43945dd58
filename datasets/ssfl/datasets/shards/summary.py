"""What was written, for a table, a picture and a program: `shards.json`."""

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
    """How many samples of which class each shard holds."""

    name: str  # of the data set
    notes: tuple[str, ...]
    columns: tuple[dict[str, Any], ...]  # of a table: how new rows are prepared
    cut: Cut
    paths: tuple[Path, ...]
    input_shape: tuple[int, ...]
    input_type: str
    num_classes: int  # 0: the targets are numbers
    group_names: tuple[str, ...]  # classes; or intervals, if the targets are numbers
    train_counts: Counts  # (clients, groups), as the two below
    val_counts: Counts
    test_counts: Counts
    # Least, mean and largest training target of each client; no rows if the targets are classes.
    target_ranges: npt.NDArray[np.float64]


def summarize(assignment: Assignment, cut: Cut, paths: tuple[Path, ...]) -> ShardSummary:
    """Return the summary of an assignment whose shards lie at `paths`."""
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
    """Return `shards.json`: everything that decided the shards, and what each holds."""
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
        "versions": {
            "ssfl": ssfl_version(),
            "numpy": np.__version__,
            "shard_format": FORMAT,
        },
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
    shards = ",\n  ".join(json.dumps(row) for row in rows)  # a shard is a line
    return "\n".join(["{", *lines, f' "shards": [\n  {shards}\n ]', "}\n"])


def _range(summary: ShardSummary, client: int) -> dict[str, float]:
    if summary.num_classes:
        return {}
    names = ("target_min", "target_mean", "target_max")
    return dict(zip(names, summary.target_ranges[client].tolist(), strict=True))


def _notes(assignment: Assignment) -> list[str]:
    num_test = sum(map(len, assignment.test))
    if assignment.test_set_aside:
        total = num_test + sum(map(len, assignment.train)) + sum(map(len, assignment.val))
        return [f"it has no test samples: {num_test:,} of its {total:,} are set aside for testing"]
    return [] if num_test else ["there are no test samples"]
