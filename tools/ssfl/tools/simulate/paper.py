"""`ssfl paper`: tests the paper's claims on this machine in minutes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ssfl.durable.files import write_atomic
from ssfl.method.errors import MethodError
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import raise_on_sigterm, usage_error
from ssfl.program.version import ssfl_version
from ssfl.study.errors import StudyError
from ssfl.tools.local.local_run import require_modules
from ssfl.tools.terminal import console, right

DESCRIPTION = (
    "Tests the paper's claims at a small scale. Every experiment prints the claim and the result, "
    "draws a chart and stores the numbers. All runs are simulated in mode fast, shared between "
    "experiments and stored one by one; after a stop, the same command resumes."
)
EXPLANATION = (
    "Experiments: sparsity, controls, layers, newcomers, mask-error, warm-up, partitions, "
    "clients, convergence, profiles.\n\nFor example: ssfl paper --only sparsity,controls"
)
SEEDS = 5
SOURCES = ("fashion-mnist", "mnist", "cifar10", "digits")


@dataclass(frozen=True, slots=True)
class PaperConfig:
    """Which experiments, on which data, and where to store them."""

    only: str = setting("", "names of experiments, separated by commas; default: all")
    seeds: int = setting(SEEDS, "number of seeds; use at least 5 for a useful interval",
                         ge=1, le=1000)  # fmt: skip
    data: str = setting(
        "", "fashion-mnist, mnist, cifar10 or digits; default: fashion-mnist, or digits without it"
    )
    out: Path = setting(Path("runs/paper"), "folder for the results")
    workers: int = setting(0, "runs at once; 0: one per core", le=1024)


def paper(argv: Sequence[str]) -> None:
    """Run the command."""
    config = settings.load(PaperConfig, argv, None, "ssfl paper", DESCRIPTION, EXPLANATION)
    raise_on_sigterm()
    require_modules("torch", extra="client")
    require_modules("matplotlib", extra="data")
    try:
        _run(config)
    except (MethodError, StudyError) as error:
        raise usage_error(str(error)) from error


def _run(config: PaperConfig) -> None:
    from ssfl.experiments import EXPERIMENTS
    from ssfl.experiments.contract import Runs
    from ssfl.experiments.recipe import Recipe
    from ssfl.study.sweep import RunSpec, run_all
    from ssfl.tools.simulate.view import StudyProgress

    names = [name.strip() for name in config.only.split(",") if name.strip()] or list(EXPERIMENTS)
    known = ", ".join(EXPERIMENTS)
    for name in names:
        if name not in EXPERIMENTS:
            text = f"--only: there is no experiment {name}; the experiments are: {known}"
            raise usage_error(text)
    if config.data and config.data not in SOURCES:
        raise usage_error(f"--data must be one of {', '.join(SOURCES)}, got {config.data!r}")
    chosen = [EXPERIMENTS[name] for name in names]
    recipe = Recipe.quick(tuple(range(config.seeds)), config.data)
    specs: dict[tuple[str, int], RunSpec] = {}
    for spec in (spec for experiment in chosen for spec in experiment.specs(recipe)):
        assert specs.setdefault((spec.name, spec.seed), spec) == spec, "one name, one configuration"
    with StudyProgress(f"{len(specs)} runs of {recipe.title}, results in {config.out}") as progress:
        results = run_all(list(specs.values()), config.out, config.workers, progress)
    if failed := [result for result in results if result.error]:
        raise StudyError(f"{len(failed)} runs failed; the first: {failed[0].error}")
    runs, screen = Runs(results), console()
    screen.print(f"accuracies and differences in points; {recipe.title}")
    documents = []
    for experiment in chosen:
        result = experiment.conclude(recipe, runs)
        document = {
            "experiment": experiment.name,
            "title": experiment.title,
            "paper": experiment.claim,
            "data": recipe.data.source,
            "clients": recipe.data.clients,
            "seeds": list(recipe.seeds),
            "software": ssfl_version(),
            **result,
        }
        documents.append(document)
        text = json.dumps(_rounded(document), indent=1, allow_nan=False)
        write_atomic(config.out / f"{experiment.name}.json", text.encode())
        experiment.draw(document, config.out / f"{experiment.name}.png")
        _print_experiment(document, screen)
    cpu = sum(result.outcome["cpu_seconds"] for result in results)
    screen.print(
        f"results: {config.out}/*.json and *.png; {len(results)} runs, {cpu:.0f} CPU seconds"
    )
    rows = (row for document in documents for row in document["rows"])
    if missed := [row["label"] for row in rows if row.get("met") is False]:
        screen.print(f"not reached: {'; '.join(missed)}")


def _print_experiment(document: dict[str, Any], screen: Console) -> None:
    screen.print()
    screen.print(Text(f"{document['title']} ({document['experiment']}.png)", style="bold"))
    screen.print(f"the paper: {document['paper']}", highlight=False)
    if document["rows"]:
        numbers = map(right, ("mean", "95 % interval", "at least"))
        table = Table("here", *numbers, "", box=box.SIMPLE_HEAD, pad_edge=False)
        for row in document["rows"]:
            table.add_row(*_cells(row))
        screen.print(table)
    for sentence in document.get("found", []):
        screen.print(sentence, highlight=False)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    interval = f"{100 * row['low']:+.1f} … {100 * row['high']:+.1f}"
    bar = f"{100 * row['bar']:+.2f}" if "bar" in row else ""
    verdict = {True: "reached", False: "NOT REACHED", None: ""}[row.get("met")]
    return row["label"], f"{100 * row['mean']:+.1f}", interval, bar, verdict


def _rounded(value: Any) -> Any:
    """Return the value with numbers rounded to six digits after the point."""
    if isinstance(value, float):
        return round(value, 6) if value == value else None  # nan: the interval of a single seed
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
