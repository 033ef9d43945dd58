"""`ssfl demo`: a real federation on this machine, sparse and dense, side by side."""

import importlib.util
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ssfl.datasets.cut import Cut
from ssfl.datasets.digits import digits
from ssfl.datasets.errors import DataError
from ssfl.datasets.make_shards import make_shards
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError, raise_on_sigterm
from ssfl.tools.federation import Federation
from ssfl.tools.screen import megabytes, status_line, status_view
from ssfl.v1 import admin_pb2

DESCRIPTION = (
    "Runs a federation of processes over gRPC on scikit-learn's digits: first sparse (SSFL), "
    "then the same one dense, and compares them."
)
POLL_S = 0.25
LEARNING_RATE = "0.2"  # at 0.1 two of six seeds end more than 3 points behind dense
STALL_S = 300.0
NEEDED = ("torch", "sklearn", "matplotlib")


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The size of the demo."""

    clients: int = setting(8, "client processes", least=2)
    rounds: int = setting(30, "training rounds", least=1)
    sparsity: str = setting("0.9", "share of weights to prune in the sparse run")
    seed: int = setting(0, "seed of data partition and training")
    out: Path = setting(Path("runs/demo"), "folder for everything the demo makes; replaced")


@dataclass(frozen=True, slots=True)
class Result:
    """What one federation came to."""

    name: str
    status: admin_pb2.GetStatusResponse
    history: dict[str, Any]
    models: Path

    @property
    def accuracy(self) -> float:
        return float(self.history["evaluations"][-1]["pooled"])

    @property
    def seconds_per_round(self) -> float:
        rounds = self.history["rounds"]
        return float(sum(entry["seconds"] for entry in rounds) / len(rounds))


def demo(argv: Sequence[str]) -> int:
    """Run the demo."""
    config = settings.load(DemoConfig, argv, None, "ssfl demo", DESCRIPTION)
    raise_on_sigterm()
    console = Console(highlight=False)
    began_s = time.monotonic()
    shards = _prepare(config)
    console.print(
        f"{config.clients} clients with uneven shares of 1,797 digits (Dirichlet 0.3), one "
        f"coordinator, {config.rounds} rounds; {1 + config.clients} processes over gRPC, twice.",
        soft_wrap=True,
    )
    ssfl = _federate(config, console, shards, "ssfl", f"{float(config.sparsity):.0%} sparse")
    dense = _federate(config, console, shards, "dense", "dense")
    console.print(_table([dense, ssfl]))
    _plots(config.out, [dense, ssfl])
    _say_where(console, config, ssfl, time.monotonic() - began_s)
    return int(ExitCode.DONE)


def _prepare(config: DemoConfig) -> Path:
    """Make the shards in a fresh folder."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ProgramError(
            f"the demo needs {', '.join(missing)}: pip install 'ssfl[demo]'", ExitCode.USAGE
        )
    marker = config.out / ".ssfl-demo"
    if config.out.exists() and any(config.out.iterdir()) and not marker.exists():
        raise ProgramError(
            f"{config.out} holds something that is not a demo: choose another folder with --out",
            ExitCode.USAGE,
        )
    shutil.rmtree(config.out, ignore_errors=True)
    config.out.mkdir(parents=True)
    marker.touch()
    try:
        cut = Cut(config.clients, "dirichlet", 0.3, validation=0, seed=config.seed)
        make_shards(config.out / "shards", digits(), cut)
    except DataError as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error
    return config.out / "shards"


def _federate(config: DemoConfig, console: Console, shards: Path, name: str, title: str) -> Result:
    """Run one federation to its end, showing its progress."""
    names = sorted(path.stem for path in shards.glob("*.npz"))
    flags = [
        "--strategy", "ssfl" if name == "ssfl" else "fedavg",
        "--sparsity", config.sparsity,
        "--clients", str(config.clients), "--rounds", str(config.rounds),
        "--learning-rate", LEARNING_RATE, "--seed", str(config.seed), "--reproducible",
        "--reference-coding", "on" if name == "ssfl" else "off",
    ]  # fmt: skip
    with Federation(config.out / name, shards, flags, names) as federation:
        status = _watch(federation, console, title)
        history = json.loads(federation.admin.history_json())
        federation.admin.close()
    models = Path(status.out_dir)
    (models / "history.json").write_text(json.dumps(history, indent=1))
    return Result(name, status, history, models)


def _watch(federation: Federation, console: Console, title: str) -> admin_pb2.GetStatusResponse:
    """Show the run until every site has the final model; return the last status."""
    seen, moved_s = "", time.monotonic()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            federation.check()
            status = federation.admin.status()
            if status.delivered:
                break
            if console.is_terminal:
                live.update(status_view(status, title), refresh=True)
            now = f"{status.phase} {status.rounds_done}"
            if now != seen:
                seen, moved_s = now, time.monotonic()
                if not console.is_terminal:
                    console.print(status_line(status, title), soft_wrap=True)
            if time.monotonic() - moved_s > STALL_S:
                raise ProgramError(
                    f"no progress for {STALL_S:g} s, waiting for {status.waiting_for}; "
                    f"the logs are in {federation.folder}",
                    ExitCode.BUG,
                )
            time.sleep(POLL_S)
    console.print(f"{title}: done, {status.rounds_done} rounds, {100 * status.accuracy:.1f} %")
    return status


def _table(results: Sequence[Result]) -> Table:
    table = Table(title="the same federation, dense and sparse", title_justify="left")
    table.add_column("")
    for column in ("accuracy", "MB up", "MB down", "one-off MB", "s/round", "server MB"):
        table.add_column(column, justify="right")
    for result in results:
        status = result.status
        table.add_row(
            result.name,
            f"{100 * result.accuracy:.1f} %",
            f"{megabytes(status, 'up', one_off=False):.2f}",
            f"{megabytes(status, 'down', one_off=False):.2f}",
            f"{megabytes(status, one_off=True):.2f}",
            f"{result.seconds_per_round:.2f}",
            f"{status.peak_memory_bytes / 1e6:.0f}",
        )
    table.caption = (
        "dense: float32 values, as other systems send them; "
        "ssfl: kept values, coded without loss against the base, as over a network"
    )
    table.caption_justify = "left"
    return table


def _plots(out: Path, results: Sequence[Result]) -> None:
    from ssfl.tools.plots import plot_accuracy, plot_densities, plot_layers, plot_timeline

    histories = {result.name: result.history for result in results}
    plot_accuracy(histories, out / "accuracy.png")
    plot_layers(histories["ssfl"], out / "layers.png")
    plot_timeline(histories["ssfl"], out / "timeline.png")
    plot_densities(histories["ssfl"], out / "densities.png")


def _say_where(console: Console, config: DemoConfig, ssfl: Result, seconds: float) -> None:
    digest = ssfl.status.model_digest.hex()
    console.print(f"model digest  {digest}")
    console.print("(the same on every run with this seed on this kind of machine)")
    for what, where in (
        ("final model", ssfl.models / "model.safetensors"),
        ("mask", ssfl.models / "mask.bin"),
        ("manifest", ssfl.models / "manifest.json"),
        ("history", ssfl.models / "history.json"),
        ("plots", f"{config.out}/accuracy.png, layers.png, timeline.png, densities.png"),
        ("logs", f"{config.out}/ssfl/*.log"),
    ):
        shown = where
        if isinstance(where, Path) and where.is_relative_to(Path.cwd()):
            shown = where.relative_to(Path.cwd())
        console.print(f"{what:<12}  {shown}", soft_wrap=True)
    console.print(f"all done in {seconds:.0f} s")
