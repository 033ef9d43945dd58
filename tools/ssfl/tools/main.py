"""`ssfl`: one command for trying, preparing, running and watching a federation."""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssfl.program.exits import ExitCode, ProgramError, run_program
from ssfl.program.version import ssfl_version


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand; its module is imported only when it is called."""

    group: str
    name: str
    module: str
    text: str


COMMANDS = (
    Command(
        "try",
        "demo",
        "local.demo",
        "run a federation on this machine, sparse and dense, and compare",
    ),
    Command(
        "try",
        "rehearse",
        "local.rehearse",
        "run a federation with your task and shards on this machine",
    ),
    Command(
        "study",
        "simulate",
        "simulate.command",
        "run many seeds and settings without sockets",
    ),
    Command("prepare", "shards", "shards.command", "cut a data set into shards, one per client"),
    Command("prepare", "init", "model.init", "write the initial model of a run, for --init"),
    Command("prepare", "certs", "certs.command", "make a test CA and certificates for TLS"),
    Command(
        "prepare", "check", "check.command", "check that this site can take part, without joining"
    ),
    Command("prepare", "plan", "plan.command", "predict a run's bytes and transfer times"),
    Command("run", "start", "operate.command", "start the run without waiting for more clients"),
    Command("run", "pause", "operate.command", "pause the run after the open step"),
    Command("run", "resume", "operate.command", "continue a paused run"),
    Command("run", "refresh-mask", "operate.command", "let all clients agree on a new mask"),
    Command(
        "run", "stop", "operate.command", "end the run now; the newest model becomes the final one"
    ),
    Command("run", "remove", "operate.command", "exclude a site, or readmit it"),
    Command("watch", "status", "operate.command", "show the progress of a run and its clients"),
    Command("watch", "clients", "operate.command", "show every client, those with problems first"),
    Command(
        "watch", "audit", "report.audit", "recompute a run from its journal and check every file"
    ),
    Command("watch", "report", "report.command", "write the report of a run, or compare two runs"),
    Command("study", "paper", "simulate.paper", "test the paper's claims at a small scale"),
    Command("use", "model", "model.command", "test the final model on a shard, or export it"),
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
    command = next((known for known in COMMANDS if known.name == name), None)
    if command is None:
        names = ", ".join(known.name for known in COMMANDS)
        raise ProgramError(f"no such command; the commands are: {names}", ExitCode.USAGE)
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
        "`ssfl COMMAND --help` describes a command. The two programs of a federation are",
        "ssfl-coordinator and ssfl-client.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
