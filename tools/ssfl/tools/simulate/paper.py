"""`ssfl paper`: tests the paper's claims on this machine, in minutes or, on CIFAR-10, in hours."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ssfl.datasets.errors import OptionError
from ssfl.datasets.source import SourceOptions, read_source
from ssfl.datasets.wording import plural
from ssfl.durable.files import write_atomic
from ssfl.learning.errors import DeviceError
from ssfl.method.errors import MethodError
from ssfl.method.settings import choice, setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, raise_on_sigterm, usage_error
from ssfl.program.printable import printable
from ssfl.program.version import ssfl_version
from ssfl.study.errors import StudyError
from ssfl.study.intervals import interval_text
from ssfl.study.run_spec import CPU, DEVICES
from ssfl.tools.local.local_run import require_modules
from ssfl.tools.shards.view import ProgressView
from ssfl.tools.terminal import console, right

if TYPE_CHECKING:  # they need torch and matplotlib, whose absence is explained first
    from ssfl.experiments import Experiment
    from ssfl.experiments.recipe import Recipe
    from ssfl.study.sweep import RunResult, RunSpec

DESCRIPTION = (
    "Tests the paper's claims at a small scale, or on CIFAR-10. Every experiment prints the claim "
    "and the result, draws a chart and stores the numbers. All runs are simulated in mode fast, "
    "shared between experiments and stored one by one; after a stop, the same command resumes."
)
EXPLANATION = """\
Experiments: overview, overview-others, sparsity, controls, layers, methods, \
methods-pathological, sparse-methods, larger-network, costs, newcomers, refresh, detection, \
mask-error, few-clients, saliency, privacy, warm-up, partitions, dirichlet, clients, \
client-weights, class-mix, convergence, convergence-all, profiles.

--scale cifar is ResNet-8 on CIFAR-10: overview, and with --full overview-others, too.

--scale paper is ResNet-18 on CIFAR, for the experiments without runs: mask-error, saliency, \
privacy and dirichlet. The runs of the others are sweeps of `ssfl simulate` there: benchmarks/paper.

--pack writes the results of a folder, of this command or of `ssfl simulate`, to one file. --check \
compares such a file with itself: digests, settings, and the summary and conclusions, which are \
computed again from its runs.

For example: ssfl paper --only sparsity,controls

For example: ssfl paper --scale cifar --seeds 3 --download --out runs/paper-cifar

For example: ssfl paper --pack results.zip --out runs/cifar10"""
SEEDS = 5
SMALL, CIFAR, FULL = "small", "cifar", "paper"
SOURCES = {
    SMALL: ("fashion-mnist", "mnist", "cifar10", "digits"),
    CIFAR: ("cifar10",),
    FULL: ("cifar10", "cifar100", "tiny-imagenet"),
}


@dataclass(frozen=True, slots=True)
class PaperConfig:
    """Which experiments, on which data, and where to store them."""

    only: str = setting(
        "", "names of experiments, separated by commas; default: all, with --scale cifar overview"
    )
    seeds: int = setting(SEEDS, "number of seeds; use at least 5 for a useful interval",
                         ge=1, le=1000)  # fmt: skip
    scale: str = choice("size of data and network", SMALL, CIFAR, FULL)
    full: bool = setting(False, "with --scale cifar: overview-others, too")
    data: str = setting(
        "", "fashion-mnist, mnist, cifar10 or digits; default: fashion-mnist, or digits without "
        "it; --scale paper: cifar10 (default), cifar100 or tiny-imagenet",
    )  # fmt: skip
    download: bool = setting(False, "download missing files of the data set")
    device: str = setting(CPU, "device that clients compute on", choices=DEVICES)
    out: Path = setting(Path("runs/paper"), "folder for the results")
    workers: int = setting(0, "runs at once; 0: one per core", le=1024)
    pack: Path | None = setting(None, "write the results in --out to this file; run nothing")
    check: Path | None = setting(None, "check a file that --pack wrote; run nothing")


def paper(argv: Sequence[str]) -> int:
    """Run the command."""
    config = settings.load(PaperConfig, argv, None, "ssfl paper", DESCRIPTION, EXPLANATION)
    raise_on_sigterm()
    if config.pack and config.check:
        raise usage_error("--pack writes a file and --check reads one: give one of them")
    require_modules("torch", extra="client")
    require_modules("matplotlib", extra="data")
    try:
        if config.pack:
            return _pack(config.out, config.pack)
        if config.check:
            return _check(config.check)
        _run(config)
    except (DeviceError, MethodError, StudyError) as error:
        raise usage_error(str(error)) from error
    return int(ExitCode.DONE)


def _pack(folder: Path, file: Path) -> int:
    from ssfl.experiments.bundle import pack

    packed = pack(folder, file)
    print(f"{file}: {plural(packed.runs, 'run')}, {packed.files} files, {packed.size / 1e6:.1f} MB")
    return int(ExitCode.DONE)


def _check(file: Path) -> int:
    from ssfl.experiments.bundle import check

    checked = check(file)
    for problem in checked.problems:
        print(f"ssfl paper: {printable(problem)}", file=sys.stderr)
    if checked.problems:
        return int(ExitCode.BAD_DATA)
    made = f"ssfl {checked.software}, torch {checked.torch}"
    print(f"{file}: {plural(checked.runs, 'run')}, packed by {made}")
    print("All digests and the settings of all runs agree; summaries follow from the runs.")
    if checked.concluded:
        print(f"Computed again from their runs: {', '.join(checked.concluded)}.")
    if checked.not_concluded:
        print(f"Not computed again (needs the data): {', '.join(checked.not_concluded)}.")
    return int(ExitCode.DONE)


def _run(config: PaperConfig) -> None:
    from ssfl.experiments import EXPERIMENTS
    from ssfl.experiments.contract import Runs
    from ssfl.study.sweep import RunSpec, run_all
    from ssfl.tools.simulate.view import StudyProgress

    recipe = _recipe(config)
    if config.full and config.scale != CIFAR:
        raise usage_error("--full is for --scale cifar: the small scale runs everything by default")
    if config.download:
        _download(recipe.data.source)
    names = [name.strip() for name in config.only.split(",") if name.strip()]
    for name in names:
        if name not in EXPERIMENTS:
            known = ", ".join(EXPERIMENTS)
            text = f"--only: there is no experiment {name}; the experiments are: {known}"
            raise usage_error(text)
    if config.scale == CIFAR:
        names = [*(names or ["overview"]), *(["overview-others"] if config.full else [])]
    chosen = [EXPERIMENTS[name] for name in dict.fromkeys(names)] or list(EXPERIMENTS.values())
    if config.scale == FULL:
        chosen = _without_runs(chosen, named=bool(names))
    if config.device != CPU:
        from ssfl.learning.device import choose_device

        choose_device(config.device)
    specs: dict[tuple[str, int], RunSpec] = {}
    for spec in (spec for experiment in chosen for spec in experiment.specs(recipe)):
        assert specs.setdefault(spec_key(spec), spec) == spec, "one name, one configuration"
    title = f"{len(specs)} runs of {recipe.title}, results in {config.out}"
    with StudyProgress(title, workers=config.workers) as progress:
        results = run_all(list(specs.values()), config.out, config.workers, progress)
    if failed := [result for result in results if result.error]:
        raise StudyError(f"{len(failed)} runs failed; the first: {failed[0].error}")
    runs, screen = Runs(results), console()
    screen.print(f"accuracies and differences in points; {recipe.title}")
    files = {spec_key(result.spec): _run_file(result) for result in results}
    documents = []
    for experiment in chosen:
        used = [files[spec_key(spec)] for spec in experiment.specs(recipe)]
        document = {
            **experiment.document(recipe, runs),
            "scale": config.scale,
            "software": ssfl_version(),
            "runs": used,
        }
        documents.append(document)
        text = json.dumps(document, indent=1, allow_nan=False)
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


def spec_key(spec: "RunSpec") -> tuple[str, int]:
    return spec.name, spec.seed


def _run_file(result: "RunResult") -> str:
    return f"{result.path.parent.name}/{result.path.name}"


def _recipe(config: PaperConfig) -> "Recipe":
    from ssfl.experiments.recipe import Recipe

    known = SOURCES[config.scale]
    if config.data and config.data not in known:
        raise usage_error(f"--data must be one of {', '.join(known)}, got {config.data!r}")
    seeds = tuple(range(config.seeds))
    data = config.data or (known[0] if config.download else "")
    if config.scale == FULL:
        return Recipe.paper(seeds, data, config.device)
    recipe = Recipe.cifar(seeds) if config.scale == CIFAR else Recipe.quick(seeds, data)
    return replace(recipe, device=config.device)


def _download(source: str) -> None:
    """Download the missing files of a data set."""
    try:
        with ProgressView() as progress:
            read_source(SourceOptions(source=source, download=True), progress.show)
    except OptionError as error:
        raise usage_error(str(error)) from error


def _without_runs(chosen: Sequence["Experiment"], *, named: bool) -> list["Experiment"]:
    """Return the experiments without runs; raise if another one was named."""
    found = [one for one in chosen if one.is_measured]
    if named and len(found) < len(chosen):
        other = next(one.name for one in chosen if one not in found)
        raise usage_error(
            f"--scale paper: {other} needs runs, which are a sweep at this scale; "
            "benchmarks/paper/README.md names the file for `ssfl simulate`"
        )
    return found


def _print_experiment(document: dict[str, Any], screen: Console) -> None:
    screen.print()
    screen.print(Text(f"{document['title']} ({document['experiment']}.png)", style="bold"))
    screen.print(f"the paper: {document['paper']}", highlight=False)
    if "table" in document:
        columns = document["table"]["columns"]
        table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
        for cells in document["table"]["rows"]:
            table.add_row(*cells)
        screen.print(table)
    if document["rows"]:
        numbers = map(right, ("mean", "95 % interval", "at least"))
        table = Table("here", *numbers, "", box=box.SIMPLE_HEAD, pad_edge=False)
        for row in document["rows"]:
            table.add_row(*_cells(row))
        screen.print(table)
    for sentence in document.get("found", []):
        screen.print(sentence, highlight=False)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    bar = f"{100 * row['bar']:+.2f}" if "bar" in row else ""
    verdict = {True: "reached", False: "NOT REACHED", None: ""}[row.get("met")]
    mean, interval = f"{100 * row['mean']:+.1f}", interval_text(row["low"], row["high"])
    return row["label"], mean, interval, bar, verdict
