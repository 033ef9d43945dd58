"""`ssfl simulate`: many runs (settings x seeds) on this machine, without sockets."""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssfl.datasets.shards.partition import KINDS
from ssfl.datasets.wording import plural
from ssfl.learning.errors import DeviceError
from ssfl.method.errors import MethodError
from ssfl.method.settings import RunSettings, setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, Terminated, raise_on_sigterm, usage_error
from ssfl.program.printable import printable
from ssfl.program.settings.options import options_of
from ssfl.study.errors import StudyError
from ssfl.study.estimate import estimate
from ssfl.study.grid import KEYS, Study, read_grid, read_seeds
from ssfl.study.run_spec import CPU, DEVICES, IMAGE, MODES, STUDY_SETTINGS, RunSpec
from ssfl.study.summary import SUMMARY, TABLE, summary_of, write_results
from ssfl.study.sweep import RUNS, RunResult, run_all
from ssfl.tools.local.local_run import require_modules
from ssfl.tools.simulate.view import StudyProgress, estimate_text, study_table
from ssfl.tools.terminal import console

DESCRIPTION = (
    "Runs whole federations in this machine's memory, without sockets: one configuration, or a "
    "sweep from a TOML file, each with several seeds, as many at once as there are cores. Every "
    "finished run is stored at once; a study that is started again resumes where it stopped."
)
EXPLANATION = """\
In mode exact a run ends with the same bits as ssfl-coordinator and its clients. In mode fast the \
clients of small models are computed together: the same method, other rounding. Payload bytes are \
those that the service sends over a network.

The data of a run are cut by its seed. --late-clients join before round --late-round; with \
--late-classes they alone have these classes.

For example: ssfl simulate --clients 8 --rounds 10 --seeds 3

For example: ssfl simulate sweep.toml --out runs/sweep

sweep.toml has seeds = 3, [data], [settings] and [grid] with lists (sparsity = [0.5, 0.9]): all \
combinations are run. Each combination is run once per [[variant]] table, which has a name."""
NOT_HERE = {
    "seed": "is --seeds here: a number (5) or a list (0,1,2; 7, is seed 7 alone)",
    "reproducible": "is not a setting here: a simulated run is always reproducible",
}


@dataclass(frozen=True, slots=True)
class DataFlags:
    """The fields of DataSpec as flags; `data` is its `source`."""

    data: str = setting(
        "digits", "a known data set, or a folder written by `ssfl shards`", metavar="NAME"
    )
    clients: int = setting(8, "number of clients", ge=1, le=100_000)
    partition: str = setting("dirichlet", "how classes are spread over clients", choices=KINDS)
    alpha: float = setting(
        0.3, "Dirichlet parameter; near 0 a client has one class; from 100 all clients are alike",
        positive=True,
    )  # fmt: skip
    classes_per_client: int = setting(
        2, "partition classes: number of classes of each client", ge=1
    )
    samples_per_client: int = setting(
        0, "mean number of training samples of a client; 0: all samples"
    )
    pool: int = setting(1, "shrink the sides of images N times by averaging squares", ge=1)
    late_classes: str = setting(
        "", "classes that only late clients have, such as 8,9", metavar="LIST"
    )
    late_clients: int = setting(0, "number of clients that join late; these are the last ones")
    late_round: int = setting(0, "round before which late clients join")
    validation: float = setting(0.0, "share of each client's training samples kept for validation")


@dataclass(frozen=True, slots=True)
class SimulateConfig:
    """What to simulate, and where to store it; data and run settings are also flags."""

    grid: Path | None = setting(
        None, "file with the settings of a sweep; see below", positional=True, metavar="GRID.toml"
    )
    seeds: str = setting("1", "number of seeds; a list such as 0,1,2 names them", metavar="N|LIST")
    mode: str = setting(
        "exact",
        "arithmetic; exact: the bits of a real run; fast: faster for small models",
        choices=MODES,
    )
    task: str = setting(IMAGE, "task: image, table, a .py file, or an importable module")
    device: str = setting(CPU, "device that clients compute on", choices=DEVICES)
    out: Path | None = setting(
        None, "folder for results; by default runs/simulate, or runs/ and the name of the sweep"
    )
    workers: int = setting(0, "runs at once; 0: one for each CPU core, or one on a GPU", le=1024)
    estimate: bool = setting(False, "only print the hours and the memory that the study takes")
    json: bool = setting(False, "print the summary as JSON instead of a table")


OPTIONS = (
    *options_of(SimulateConfig),
    *options_of(DataFlags),
    *(option for option in options_of(RunSettings) if option.name not in STUDY_SETTINGS),
)


def simulate(argv: Sequence[str]) -> int:
    """Run the command."""
    given = settings.read_given(
        OPTIONS, argv, None, "ssfl simulate", DESCRIPTION, EXPLANATION, NOT_HERE
    )
    raise_on_sigterm()
    require_modules("torch", extra="client")
    values: dict[str, Any] = {
        option.name: option.parse(given[option.name].text, given[option.name].subject)
        for option in OPTIONS
        if option.name in given
    }
    grid = values.get("grid")
    out = values.get("out") or Path("runs", grid.stem if grid else "simulate")
    try:
        specs = _study(values).specs()
        on_gpu = _need_devices({spec.device for spec in specs})
        workers = values.get("workers") or int(on_gpu)
        if values.get("estimate"):
            print(estimate_text(estimate(specs, workers)))
            return int(ExitCode.DONE)
        results = _results(specs, out, workers)
    except (DeviceError, MethodError, StudyError) as error:
        raise usage_error(str(error)) from error
    write_results(out, results)
    if values.get("json"):
        print(json.dumps(summary_of(results), indent=1))
    else:
        _print_results(results, out)
    if failed := [result for result in results if result.error]:
        return int(ExitCode.BUG if any(run.is_bug for run in failed) else ExitCode.BAD_DATA)
    return int(ExitCode.DONE)


def _study(values: Mapping[str, Any]) -> Study:
    """Return the study of the file, if there is one, with the values of the flags."""
    grid, seeds = values.get("grid"), values.get("seeds")
    study = read_grid(grid) if grid else Study()
    fixed = {"source" if key == "data" else key: value for key, value in values.items()}
    study = study.with_base({key: value for key, value in fixed.items() if key in KEYS})
    return study if seeds is None else replace(study, seeds=read_seeds(seeds, "--seeds"))


def _need_devices(names: Set[str]) -> bool:
    """Raise DeviceError if a device is missing; return True if one is a GPU."""
    if names <= {CPU}:
        return False
    from ssfl.learning.device import choose_device

    found = [choose_device(name) for name in sorted(names)]
    return any(device.type != CPU for device in found)


def _results(specs: Sequence[RunSpec], out: Path, workers: int) -> list[RunResult]:
    names, seeds = {spec.name for spec in specs}, {spec.seed for spec in specs}
    parts = f"{plural(len(names), 'configuration')} x {plural(len(seeds), 'seed')}"
    title = f"{plural(len(specs), 'run')} ({parts}), results in {out}"
    with StudyProgress(title, workers=workers) as progress:
        try:
            return run_all(specs, out, workers, progress)
        except (KeyboardInterrupt, Terminated):
            progress.print_line(
                f"stopped after {plural(progress.done, 'new run')}; the same command resumes"
            )
            raise


def _print_results(results: Sequence[RunResult], out: Path) -> None:
    screen = console()
    screen.print(study_table(results, screen.width))
    failed = [result for result in results if result.error]
    for result in failed:
        text = printable(f"{result.spec.label}: {result.error}")
        screen.print(f"failed: {text}", soft_wrap=True)
    if failed:
        screen.print("the same command runs the failed ones again")
    if len(results) == 1 and not failed:
        screen.print(f"model digest  {results[0].outcome['model_digest']}")
    files = f"{SUMMARY}, {TABLE}, tables.md, tables.tex, curves-*.png and {RUNS}/"
    screen.print(f"results       {out}/{files}", soft_wrap=True)
