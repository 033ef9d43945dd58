"""`ssfl shards`: cut a data set into shards, one per client."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ssfl.datasets.cut import Cut
from ssfl.datasets.digits import digits
from ssfl.datasets.errors import DataError
from ssfl.datasets.make_shards import ShardSummary, make_shards
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError

DESCRIPTION = "Cuts scikit-learn's digits (1,797 images, no download) into shards."


@dataclass(frozen=True, slots=True)
class ShardsConfig:
    """What to cut and how."""

    clients: int = setting(8, "how many shards", least=1)
    partition: str = setting(
        "dirichlet", "how classes are spread over clients", choices=("dirichlet", "iid")
    )
    alpha: float = setting(0.3, "Dirichlet concentration: small is uneven", positive=True)
    seed: int = setting(0, "seed of the partition")
    out: Path = setting(Path("shards"), "folder to write to")
    overwrite: bool = setting(False, "replace the shards that are there")


def shards(argv: Sequence[str]) -> int:
    """Run the command."""
    config = settings.load(ShardsConfig, argv, None, "ssfl shards", DESCRIPTION)
    try:
        summary = make_shards(
            config.out,
            digits(),
            Cut(config.clients, config.partition, config.alpha, seed=config.seed),
            overwrite=config.overwrite,
        )
    except DataError as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error
    Console().print(summary_table(summary))
    print(f"{len(summary.paths)} shards in {config.out}/")
    return int(ExitCode.DONE)


def summary_table(summary: ShardSummary) -> Table:
    """Return samples per shard and class."""
    num_classes = summary.train_counts.shape[1]
    table = Table(title="training samples per class", title_justify="left")
    table.add_column("shard")
    for number in range(num_classes):
        table.add_column(str(number), justify="right")
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    for path, train, test in zip(
        summary.paths, summary.train_counts, summary.test_counts, strict=True
    ):
        cells = [str(count) if count else "·" for count in train]
        table.add_row(path.stem, *cells, str(train.sum()), str(test.sum()))
    return table
