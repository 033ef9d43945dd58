"""`ssfl`: one command for trying, preparing, running and watching a federation."""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssfl.program.exits import ExitCode, ProgramError, run_program
from ssfl.program.version import ssfl_version


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: where it lives is imported only when it is called."""

    group: str
    name: str
    module: str
    text: str


COMMANDS = (
    Command(
        "try", "demo", "local.demo", "a real federation on this machine, sparse and dense, compared"
    ),
    Command("try", "rehearse", "local.rehearse", "your task and shards, all on this machine"),
    Command(
        "study",
        "simulate",
        "simulate.command",
        "many runs without sockets: seeds and sweeps, stored",
    ),
    Command("prepare", "shards", "shards.command", "cut a data set into shards, one per client"),
    Command("prepare", "init", "model.init", "write the model a run begins with, for --init"),
    Command("prepare", "certs", "certs.command", "a test CA and certificates, for TLS"),
    Command("prepare", "check", "check.command", "can this site take part? Tried without joining"),
    Command("prepare", "plan", "plan.command", "predict a run's bytes and transfer times"),
    Command("run", "start", "operate.command", "stop waiting for more clients and begin"),
    Command("run", "pause", "operate.command", "finish what is under way, then begin nothing new"),
    Command("run", "resume", "operate.command", "let a paused run go on"),
    Command("run", "refresh-mask", "operate.command", "let all clients agree on a new mask"),
    Command(
        "run", "stop", "operate.command", "end the run now; the last model becomes the final one"
    ),
    Command("run", "remove", "operate.command", "refuse a site from now on, or take that back"),
    Command(
        "watch", "status", "operate.command", "what the run is doing, who takes part, how far it is"
    ),
    Command("watch", "clients", "operate.command", "every client, those in trouble first"),
    Command(
        "watch", "audit", "report.audit", "compute a run again from its journal, check every file"
    ),
    Command(
        "watch", "report", "report.command", "a run as one page: curves, bytes, times, mask; or two"
    ),
    Command("study", "paper", "simulate.paper", "the paper's claims, tried at a small scale"),
    Command("use", "model", "model.command", "test the final model on any shard, or export it"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return int(ExitCode.DONE if arguments else ExitCode.USAGE)
    if arguments[0] == "--version":
        print(f"ssfl {ssfl_version()}")
        return int(ExitCode.DONE)
    name = arguments[0]
    return run_program(lambda: _run(name, arguments[1:]), f"ssfl {name}")


def _run(name: str, arguments: Sequence[str]) -> int:
    command = next((one for one in COMMANDS if one.name == name), None)
    if command is None:
        names = ", ".join(one.name for one in COMMANDS)
        raise ProgramError(f"no such command; there are: {names}", ExitCode.USAGE)
    module = importlib.import_module(f"ssfl.tools.{command.module}")
    body: Callable[[Sequence[str]], int] = getattr(module, name.replace("-", "_"))
    return body(arguments)


def _help() -> str:
    lines = ["usage: ssfl COMMAND [flags]", "", "Sparse federated learning over gRPC.", ""]
    for group in dict.fromkeys(command.group for command in COMMANDS):
        lines.append(f"{group}:")
        members = [command for command in COMMANDS if command.group == group]
        lines += [f"  {command.name:<14}{command.text}" for command in members]
    lines += [
        "",
        "`ssfl COMMAND --help` explains one. The two programs of a federation are",
        "ssfl-coordinator and ssfl-client.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
