"""`ssfl`: one command for trying, preparing, running and watching a federation."""

import importlib
import sys
from collections.abc import Callable, Sequence

from ssfl.datasets.errors import DataError
from ssfl.program.exits import ExitCode, ProgramError, run_program, usage_error
from ssfl.program.version import ssfl_version

# By name: the group in the help, the module below ssfl.tools with the function of that name, and
# the help. A module is imported only when its command is called.
COMMANDS = {
    "demo": (
        "try",
        "local.demo",
        "run a federation on this machine, sparse and dense, and compare",
    ),
    "rehearse": (
        *("try", "local.rehearse"),
        "run a federation with your task and shards on this machine",
    ),
    "simulate": ("study", "simulate.command", "run many seeds and settings without sockets"),
    "shards": ("prepare", "shards.command", "cut a data set into shards, one per client"),
    "init": ("prepare", "model.init", "write the initial model of a run, for --init"),
    "certs": ("prepare", "certs.command", "make a test CA and certificates for TLS"),
    "check": ("prepare", "check.command", "check that this site can take part, without joining"),
    "plan": ("prepare", "plan.command", "predict a run's bytes and transfer times"),
    "start": ("run", "operate.command", "start the run without waiting for more clients"),
    "pause": ("run", "operate.command", "pause the run after the open step"),
    "resume": ("run", "operate.command", "continue a paused run"),
    "refresh-mask": ("run", "operate.command", "let all clients agree on a new mask"),
    "stop": ("run", "operate.command", "end the run now; the newest model becomes the final one"),
    "remove": ("run", "operate.command", "exclude a site, or readmit it"),
    "status": ("watch", "operate.command", "show the progress of a run and its clients"),
    "clients": ("watch", "operate.command", "show every client, those with problems first"),
    "audit": ("watch", "report.audit", "recompute a run from its journal and check every file"),
    "report": ("watch", "report.command", "write the report of a run, or compare two runs"),
    "compare": ("study", "simulate.compare", "compare methods at equal rounds, bytes and updates"),
    "paper": ("study", "simulate.paper", "test the paper's claims at a small scale"),
    "model": ("use", "main", "test the final model on a shard, or export it"),
}
MODEL_COMMANDS = {  # of `ssfl model`: the function of module ssfl.tools.model.NAME, and the help
    "evaluate": "test the model on a shard",
    "export": "write the model as safetensors, ONNX or torch sparse CSR",
}


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


def model(argv: Sequence[str]) -> int:
    """Run a command of `ssfl model`; return its exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        lines = ["usage: ssfl model COMMAND MODEL [flags]", ""]
        lines += ["Uses the final model of a run, such as runs/<run>/coordinator.", ""]
        lines += [f"  {name:<10}{text}" for name, text in MODEL_COMMANDS.items()]
        print("\n".join([*lines, "", "`ssfl model COMMAND --help` describes a command."]))
        if argv:
            raise SystemExit(ExitCode.DONE)
        return int(ExitCode.USAGE)
    name, *arguments = argv
    if name not in MODEL_COMMANDS:
        known = ", ".join(MODEL_COMMANDS)
        raise usage_error(f"no such command {name!r}; the commands are: {known}")
    return run_program(lambda: _call(f"model.{name}", name, arguments), f"ssfl model {name}")


def _run(name: str, arguments: Sequence[str]) -> int | None:
    if name not in COMMANDS:
        raise usage_error(f"no such command; the commands are: {', '.join(COMMANDS)}")
    return _call(COMMANDS[name][1], name, arguments)


def _call(module: str, name: str, arguments: Sequence[str]) -> int | None:
    found = importlib.import_module(f"ssfl.tools.{module}")
    body: Callable[[Sequence[str]], int | None] = getattr(found, name.replace("-", "_"))
    try:
        return body(arguments)
    except DataError as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error


def _help() -> str:
    lines = ["usage: ssfl COMMAND [flags]", "", "Sparse federated learning over gRPC.", ""]
    for wanted in dict.fromkeys(group for group, _, _ in COMMANDS.values()):
        members = [(name, text) for name, (group, _, text) in COMMANDS.items() if group == wanted]
        lines += [f"{wanted}:", *(f"  {name:<14}{text}" for name, text in members)]
    lines += [
        "",
        "`ssfl COMMAND --help` describes a command. The two programs of a federation are",
        "ssfl-coordinator and ssfl-client.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
