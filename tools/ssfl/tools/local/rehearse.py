"""`ssfl rehearse`: a federation with your task and shards, on this machine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ssfl.datasets.shards.shard_file import MAKE_SHARDS, shard_names
from ssfl.datasets.wording import plural
from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings, setting
from ssfl.program import settings
from ssfl.program.exits import ExitCode, ProgramError, raise_on_sigterm, usage_error
from ssfl.strategies.registry import check_settings, file_of, strategy_for
from ssfl.tools.local import local_run
from ssfl.tools.local.fork_server import shared_client_server
from ssfl.tools.local.processes import LocalFederation, client_ids
from ssfl.tools.terminal import console

DESCRIPTION = (
    "Runs a whole federation on this machine: a coordinator and one client process for every "
    "shard in a folder, over gRPC, with your task and any setting of a run. What works here "
    "works across machines with the same task file and the same flags."
)
MAX_UNASKED_CLIENTS = 32  # more clients are started only with --clients


@dataclass(frozen=True, slots=True)
class RehearseConfig:
    """What to rehearse; every setting of a run is also a flag."""

    data_root: Path = setting(
        Path("shards"),
        "folder of shards; each shard, or each of the first --clients, gets a client",
    )
    task: str = setting("image", "task: image, table, a .py file, or an importable module")
    init: Path | None = setting(None, "first model, a file written by `ssfl init`")
    dense: bool = setting(False, "also run it dense (FedAvg) and compare")
    device: str = setting("auto", "device to compute on", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = setting(1, "torch threads of each client; 0: every core")
    status_port: int | None = setting(
        None, "port of the status page; 0: a free port; default: no status page", le=65535
    )
    out: Path = setting(
        Path("runs/rehearsal"), "folder for all output; replaces that of an earlier rehearsal"
    )
    run: RunSettings = field(default_factory=RunSettings)

    def validate(self) -> None:
        """Raise SettingsError naming the flag at fault."""
        if self.dense and strategy_for(self.run).is_dense:
            raise SettingsError("--dense compares with the dense run: leave --strategy out")


def rehearse(argv: Sequence[str]) -> None:
    """Run the command."""
    config = settings.load(RehearseConfig, argv, None, "ssfl rehearse", DESCRIPTION)
    raise_on_sigterm()
    local_run.require_modules("torch", extra="client")
    screen = console()
    began_s = time.monotonic()
    _check_inputs(config)
    names = _chosen(config, shard_names(config.data_root))
    run = _run_of(config, len(names))
    shared_client_server()
    local_run.fresh_folder(config.out)
    screen.print(_announcement(config, names), soft_wrap=True)
    results = []
    runs = {run.strategy: run}
    if config.dense:
        runs[local_run.DENSE] = replace(run, strategy="fedavg", bytes_per_round="")
    task = str(Path(config.task).absolute()) if config.task.endswith(".py") else config.task
    own = ["--task", task, "--device", config.device, "--threads", str(config.threads)]
    for kind, name in (("strategy", run.strategy), ("criterion", run.criterion)):
        if (file := file_of(kind, name)) != name:
            own += [f"--{kind}", file]
    for name, wanted in runs.items():
        flags = ["--reference-coding", "off" if strategy_for(wanted).is_dense else "on"]
        flags += [*local_run.status_flags(config.status_port), *_flags(wanted)]
        flags += ["--init", str(config.init.absolute())] if config.init else []
        federation = LocalFederation(config.out / name, config.data_root, flags, names, own)
        results.append(local_run.federate(federation, screen, name))
    title = f"{plural(len(names), 'client')}, {plural(run.rounds, 'round')}"
    local_run.show_results(screen, config.out, results, title)
    screen.print(f"all done in {time.monotonic() - began_s:.0f} s")


def _chosen(config: RehearseConfig, names: list[str]) -> list[str]:
    """Return the shards to use: all, or the first `--clients`."""
    wanted = config.run.clients
    if wanted > len(names):
        shards = plural(len(names), "shard")
        raise usage_error(f"--clients {wanted}: {config.data_root} has {shards}")
    if not wanted and len(names) > MAX_UNASKED_CLIENTS:
        raise usage_error(
            f"{config.data_root} has {len(names)} shards, such as {names[0]}, and each would be a "
            "client process. Limit them with --clients, such as --clients 8. If all of them "
            "belong to one site, name the folder above with --data-root"
        )
    return names[: wanted or None]


def _run_of(config: RehearseConfig, clients: int) -> RunSettings:
    """Return the settings of the run, reproducible and with all shards."""
    min_clients = min(config.run.min_clients, clients)
    run = replace(config.run, clients=clients, min_clients=min_clients, reproducible=True)
    try:
        check_settings(run)
    except SettingsError as error:
        raise usage_error(str(error)) from error
    return run


def _check_inputs(config: RehearseConfig) -> None:
    """Raise ProgramError if an input is missing, or lies in --out, which is replaced."""
    task = Path(config.task) if config.task.endswith(".py") else None
    if task and not task.is_file():
        raise ProgramError(f"there is no task file {task}", ExitCode.BAD_DATA)
    if not config.data_root.is_dir():
        text = f"there is no folder {config.data_root}: name the folder of your shards with"
        raise ProgramError(f"{text} --data-root, or {MAKE_SHARDS}", ExitCode.BAD_DATA)
    inputs = {"--data-root": config.data_root, "--task": task, "--init": config.init}
    for flag, path in inputs.items():
        if path and path.resolve().is_relative_to(config.out.resolve()):
            raise usage_error(
                f"{flag} {path} lies in --out {config.out}, which is replaced: choose another --out"
            )


def _announcement(config: RehearseConfig, names: Sequence[str]) -> str:
    ids = client_ids(names)
    called = [name if name == ids[name] else f"{name} as {ids[name]}" for name in names]
    shown = ", ".join(called[:3]) + (", …" if len(names) > 3 else "")
    text = f"{plural(len(names), 'client')} ({shown}) and a coordinator, task {config.task}"
    if len(names) > MAX_UNASKED_CLIENTS:
        text += f"; {len(names)} processes of torch need about {0.35 * len(names):.0f} GB of memory"
    return text


def _flags(run: RunSettings) -> list[str]:
    flags = []
    for field_ in fields(run):
        value, flag = getattr(run, field_.name), "--" + field_.name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else "--no-" + flag[2:])
        else:
            flags += [flag, file_of(field_.name, str(value))]
    return flags
