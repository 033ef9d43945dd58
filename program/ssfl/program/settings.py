"""A program's settings from flags, SSFL_* variables and a TOML file, in that order of strength.

`load` returns the config or raises ProgramError(USAGE) with a sentence that names what is wrong
and where it was written; `ssfl.program.options` says what a config dataclass may declare.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

from ssfl.method.errors import SettingsError
from ssfl.program.command_line import read_flags
from ssfl.program.exits import usage_error
from ssfl.program.options import Option, Value, nested_of, options_of, setting_names
from ssfl.program.sources import CONFIG_VARIABLE, Given, read_environment, read_file

__all__ = ["describe", "load", "setting_names"]

Config = TypeVar("Config")


def load(
    config_class: type[Config],
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    prog: str,
    description: str,
    epilog: str = "",
    known_elsewhere: Mapping[str, str] | None = None,
) -> Config:
    """Build and validate a config; --help and --version print and raise SystemExit.

    `known_elsewhere` maps settings of other programs to the sentence that says so. Such a flag
    or key is refused with it; such a variable is ignored, as programs may share an environment.
    With `environ` None the program takes no variables, and its --help says so.
    """
    elsewhere = known_elsewhere or {}
    options = tuple(options_of(config_class))
    _check_names(options)
    flags = read_flags(
        options, argv, prog, description, epilog, elsewhere, variables=environ is not None
    )
    environ = environ or {}
    file = flags.pop("config", "") or environ.get(CONFIG_VARIABLE, "")
    given = read_file(Path(file).expanduser(), options, prog, elsewhere) if file else {}
    given |= read_environment(environ, options, prog, elsewhere)
    given |= {
        option.name: Given(flags[option.name], option.shown)
        for option in options
        if option.name in flags
    }
    config = _assemble(config_class, options, given)
    _validate(config, options, given)
    return config


def describe(config: object) -> dict[str, Value]:
    """Return every effective setting by name, flat and in plain types, for the log."""
    flat: dict[str, Value] = {}
    for option in options_of(type(config)):
        holder = getattr(config, option.owner) if option.owner else config
        value = getattr(holder, option.name)
        flat[option.name] = str(value) if isinstance(value, Path) else value
    return flat


def _check_names(options: Iterable[Option]) -> None:
    names = [option.name for option in options]
    if len(set(names)) != len(names) or "config" in names:
        raise TypeError(f"settings must have names of their own, and none may be config: {names}")


def _assemble(
    config_class: type[Config], options: Iterable[Option], given: Mapping[str, Given]
) -> Config:
    nested = nested_of(config_class)
    values: dict[str, dict[str, Any]] = {owner: {} for owner in ["", *nested]}
    for option in options:
        values[option.owner][option.name] = _value(option, given.get(option.name))
    held = {owner: kind(**values[owner]) for owner, kind in nested.items()}
    return config_class(**values[""], **held)


def _value(option: Option, given: Given | None) -> Any:
    if given is not None:
        return option.parse(given.text, given.subject)
    if option.default is MISSING:
        raise usage_error(f"{option.shown} is needed: {option.metadata.get('help', '')}")
    return option.default


def _validate(config: object, options: Sequence[Option], given: Mapping[str, Given]) -> None:
    holders = [getattr(config, owner) for owner in nested_of(type(config))]
    for holder in [*holders, config]:
        check = getattr(holder, "validate", None)
        if check is None:
            continue
        try:
            check()
        except SettingsError as error:
            raise usage_error(f"{error}{_origins(str(error), options, given)}") from error


def _origins(message: str, options: Iterable[Option], given: Mapping[str, Given]) -> str:
    """Say where the flags a message names were set, if not on the command line."""
    named = set(re.findall(r"--[a-z][a-z0-9-]*", message))
    set_elsewhere = {
        option.flag: given[option.name].subject
        for option in options
        if option.flag in named and option.name in given
    }
    notes = [f"{flag} is set by {at}" for flag, at in set_elsewhere.items() if flag != at]
    return f" ({'; '.join(notes)})" if notes else ""
