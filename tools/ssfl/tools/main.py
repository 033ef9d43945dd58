"""`ssfl`: one command for trying, preparing, running and watching a federation."""

import importlib
import sys
from collections.abc import Callable, Sequence

from ssfl.datasets.errors import DataError
from ssfl.program.exits import ExitCode, ProgramError, run_program, usage_error
from ssfl.program.version import ssfl_version

# By group and name: the module below ssfl.tools with the function of that name, and the help. A
# module is imported only when its command is called.
COMMANDS = {
    "try": {
        "demo": ("local.demo", "run a federation on this machine, sparse and dense, and compare"),
        "rehearse": (
            "local.rehearse",
            "run a federation with your task and shards on this machine",
        ),
    },
    "study": {
        "simulate": ("simulate.command", "run many seeds and settings without sockets"),
        "paper": ("simulate.paper", "test the paper's claims at a small scale"),
    },
    "prepare": {
        "shards": ("shards.command", "cut a data set into shards, one per client"),
        "init": ("model.init", "write the initial model of a run, for --init"),
        "certs": ("certs.command", "make a test CA and certificates for TLS"),
        "check": ("check.command", "check that this site can take part, without joining"),
        "plan": ("plan.command", "predict a run's bytes and transfer times"),
    },
    "run": {
        "start": ("operate.command", "start the run without waiting for more clients"),
        "pause": ("operate.command", "pause the run after the open step"),
        "resume": ("operate.command", "continue a paused run"),
        "refresh-mask": ("operate.command", "let all clients agree on a new mask"),
        "stop": ("operate.command", "end the run now; the newest model becomes the final one"),
        "remove": ("operate.command", "exclude a site, or readmit it"),
    },
    "watch": {
        "status": ("operate.command", "show the progress of a run and its clients"),
        "clients": ("operate.command", "show every client, those with problems first"),
        "audit": ("report.audit", "recompute a run from its journal and check every file"),
        "report": ("report.command", "write the report of a run, or compare two runs"),
    },
    "use": {"model": ("main", "test the final model on a shard, or export it")},
}
MODEL_COMMANDS = {  # of `ssfl model`, likewise
    "evaluate": ("model.evaluate", "test the model on a shard"),
    "export": ("model.export", "write the model as safetensors, ONNX or torch sparse CSR"),
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
        lines += [f"  {name:<10}{text}" for name, (_, text) in MODEL_COMMANDS.items()]
        print("\n".join([*lines, "", "`ssfl model COMMAND --help` describes a command."]))
        return int(ExitCode.DONE if argv else ExitCode.USAGE)
    name, *arguments = argv
    if name not in MODEL_COMMANDS:
        known = ", ".join(MODEL_COMMANDS)
        raise usage_error(f"no such command {name!r}; the commands are: {known}")
    module = MODEL_COMMANDS[name][0]
    return run_program(lambda: _call(module, name, arguments), f"ssfl model {name}")


def _run(name: str, arguments: Sequence[str]) -> int | None:
    modules = {known: module for group in COMMANDS.values() for known, (module, _) in group.items()}
    if name not in modules:
        raise usage_error(f"no such command; the commands are: {', '.join(modules)}")
    return _call(modules[name], name, arguments)


def _call(module: str, name: str, arguments: Sequence[str]) -> int | None:
    found = importlib.import_module(f"ssfl.tools.{module}")
    body: Callable[[Sequence[str]], int | None] = getattr(found, name.replace("-", "_"))
    try:
        return body(arguments)
    except DataError as error:
        raise ProgramError(str(error), ExitCode.BAD_DATA) from error


def _help() -> str:
    lines = ["usage: ssfl COMMAND [flags]", "", "Sparse federated learning over gRPC.", ""]
    for group, commands in COMMANDS.items():
        lines += [f"{group}:", *(f"  {name:<14}{text}" for name, (_, text) in commands.items())]
    lines += [
        "",
        "`ssfl COMMAND --help` describes a command. The two programs of a federation are",
        "ssfl-coordinator and ssfl-client.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
