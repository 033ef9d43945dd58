"""`ssfl model`: commands for the final model of a run."""

import importlib
from collections.abc import Callable, Sequence

from ssfl.program.exits import ExitCode, run_program, usage_error

COMMANDS = {
    "evaluate": "test the model on a shard",
    "export": "write the model as safetensors, ONNX or torch sparse CSR",
}


def model(argv: Sequence[str]) -> int:
    """Run a command of `ssfl model`: the function NAME of `ssfl.tools.model.NAME`."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        if argv:
            raise SystemExit(ExitCode.DONE)
        return int(ExitCode.USAGE)
    name, *arguments = argv
    if name not in COMMANDS:
        raise usage_error(f"no such command {name!r}; the commands are: {', '.join(COMMANDS)}")
    module = importlib.import_module(f"ssfl.tools.model.{name}")
    body: Callable[[Sequence[str]], int | None] = getattr(module, name)
    return run_program(lambda: body(arguments), f"ssfl model {name}")


def _help() -> str:
    lines = ["usage: ssfl model COMMAND MODEL [flags]", ""]
    lines += ["Uses the final model of a run, such as runs/<run>/coordinator.", ""]
    lines += [f"  {name:<10}{text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "`ssfl model COMMAND --help` describes a command."])
