"""`ssfl demo`: a federation on this machine, sparse and dense, compared."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import shard_names
from ssfl.datasets.shards.write import make_shards
from ssfl.method.density import parse_sparsity
from ssfl.method.errors import DensityError, SettingsError
from ssfl.method.settings import setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, raise_on_sigterm
from ssfl.tools.local import local_run
from ssfl.tools.local.crash import CLIENTS, MAX_SPARSITY, MIN_ROUNDS, ROUNDS, crash, width_for
from ssfl.tools.local.fork_server import shared_client_server
from ssfl.tools.local.processes import LocalFederation
from ssfl.tools.terminal import console

DESCRIPTION = (
    "Runs a federation of processes over gRPC on scikit-learn's digits: first sparse (SSFL), "
    "then dense, and compares them. `ssfl rehearse` does the same with your own data."
)
LEARNING_RATE = "0.2"  # at 0.1, two of six seeds end more than 3 points behind dense


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The size of the demo."""

    clients: int = setting(0, "number of clients; 0: 8, or 4 with --crash")
    rounds: int = setting(0, "training rounds; 0: 30, or 5 with --crash")
    crash: bool = setting(
        False,
        "run the sparse federation twice, undisturbed and with crashes; kills the coordinator "
        "twice and a client in mid-upload; compares the two models",
    )
    sparsity: str = setting("0.9", "share of weights to prune in the sparse run")
    seed: int = setting(0, "seed of data partition and training")
    status_port: int | None = setting(
        None, "port of the status page; 0: a free port; default: no status page", le=65535
    )
    out: Path = setting(
        Path("runs/demo"), "folder for all output; replaces that of an earlier demo"
    )

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        if self.clients == 1:
            raise SettingsError("--clients must be at least 2, got 1")
        try:
            sparsity = parse_sparsity(self.sparsity)
        except DensityError as error:
            raise SettingsError(f"--sparsity: {error}") from error
        if not self.crash:
            return
        if 0 < self.rounds < MIN_ROUNDS:
            raise SettingsError(f"--crash needs at least --rounds {MIN_ROUNDS}")
        if sparsity > parse_sparsity(MAX_SPARSITY):
            raise SettingsError(
                f"--crash: at --sparsity {self.sparsity} an update is too small to be cut in the "
                f"middle; at most {MAX_SPARSITY}"
            )

    @property
    def num_clients(self) -> int:
        return self.clients or (CLIENTS if self.crash else 8)

    @property
    def num_rounds(self) -> int:
        return self.rounds or (ROUNDS if self.crash else 30)


def demo(argv: Sequence[str]) -> int:
    """Run the demo."""
    config = settings.load(DemoConfig, argv, None, "ssfl demo", DESCRIPTION)
    raise_on_sigterm()
    local_run.require_modules("torch", "sklearn", "matplotlib", extra="demo")
    shared_client_server()
    screen = console()
    began_s = time.monotonic()
    local_run.fresh_folder(config.out)
    clients, rounds, shards = config.num_clients, config.num_rounds, config.out / "shards"
    make_shards(shards, digits(), Cut(clients=clients, seed=config.seed, validation=0.0))
    screen.print(
        f"{clients} clients with uneven shares of 1,797 digits (Dirichlet 0.3), one "
        f"coordinator, {rounds} rounds; {1 + clients} processes over gRPC, twice.",
        soft_wrap=True,
    )
    code = (_crash if config.crash else _compare)(config, screen, shards)
    screen.print(f"all done in {time.monotonic() - began_s:.0f} s")
    return int(code)


def _compare(config: DemoConfig, screen: Console, shards: Path) -> ExitCode:
    ssfl = _federate(config, screen, shards, "ssfl", f"{float(config.sparsity):.0%} sparse")
    dense = _federate(config, screen, shards, local_run.DENSE, local_run.DENSE)
    title = "the same federation, dense and sparse"
    local_run.show_results(screen, config.out, [dense, ssfl], title)
    return ExitCode.DONE


def _crash(config: DemoConfig, screen: Console, shards: Path) -> ExitCode:
    width = width_for(config.sparsity)
    screen.print(
        f"An mlp of width {width}, so that an update is sent in several chunks. The first run is "
        "undisturbed; the second has crashes, all by SIGKILL. Both have the same data and seed, "
        "with --reproducible.",
        soft_wrap=True,
    )
    flags = [*_flags(config), "--strategy", "ssfl", "--model", "mlp", "--width", str(width),
             "--learning-rate", "0.05", "--local-steps", "5", "--scoring-batches", "5",
             "--reference-coding", "on", "--keep-uploads"]  # fmt: skip
    return crash(screen, config.out, shards, shard_names(shards), flags)


def _federate(
    config: DemoConfig, screen: Console, shards: Path, name: str, title: str
) -> local_run.LocalRunResult:
    strategy, coding = ("fedavg", "off") if name == local_run.DENSE else ("ssfl", "on")
    flags = [*_flags(config), "--learning-rate", LEARNING_RATE]
    flags += ["--strategy", strategy, "--reference-coding", coding]
    federation = LocalFederation(config.out / name, shards, flags, shard_names(shards))
    return local_run.federate(federation, screen, title)


def _flags(config: DemoConfig) -> list[str]:
    return [
        "--sparsity", config.sparsity, "--seed", str(config.seed), "--reproducible",
        "--clients", str(config.num_clients), "--rounds", str(config.num_rounds),
        *local_run.status_flags(config.status_port),
    ]  # fmt: skip
