"""A program's settings: flags override SSFL_* variables, which override a TOML file.

A setting with `presets` in its metadata (the run's `profile`) chooses defaults for other settings.
They override the plain defaults, and any given value overrides them.

`load` returns the config, or raises ProgramError(USAGE) naming the setting, its origin and the
problem. `ssfl.program.settings.options` lists what a config dataclass may declare.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

from ssfl.method.errors import SettingsError
from ssfl.method.profiles import preset_defaults
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ProgramError, usage_error
from ssfl.program.settings.command_line import HelpText, closest, read_flags
from ssfl.program.settings.options import Option, Value, nested_of, options_of, setting_names
from ssfl.program.settings.sources import CONFIG_VARIABLE, RawSetting, read_environment, read_file
from ssfl.strategies.registry import check_settings

__all__ = ["changed", "describe", "load", "read_given", "setting_names", "values_by_name"]

Config = TypeVar("Config")
Setting = str | float | bool  # a number may be given where a flag would be text: sparsity=0.9


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

    `known_elsewhere` maps settings of other programs to a reason. A flag or key of that name is
    refused with the reason; a variable is ignored, because programs may share an environment.
    With `environ` None the program reads no variables, and its --help says so.
    """
    options = tuple(options_of(config_class))
    given = read_given(options, argv, environ, prog, description, epilog, known_elsewhere)
    given = _presets(options, given) | given
    config = _assemble(config_class, options, given)
    _validate(config, options, given)
    return config


def read_given(
    options: Sequence[Option],
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    prog: str,
    description: str,
    epilog: str = "",
    known_elsewhere: Mapping[str, str] | None = None,
) -> dict[str, RawSetting]:
    """Return the given value and origin of each setting, without defaults; see `load`."""
    elsewhere = known_elsewhere or {}
    names = [option.name for option in options]
    if len(set(names)) != len(names) or "config" in names:
        raise TypeError(f"names of settings must be unique, and none may be config: {names}")
    presets = "\n\n".join(_preset_lines(options))
    text = HelpText(prog, description, epilog, presets, variables=environ is not None)
    flags = read_flags(options, argv, text, elsewhere)
    environ = environ or {}
    file = flags.pop("config", "") or environ.get(CONFIG_VARIABLE, "")
    given = read_file(Path(file).expanduser(), options, prog, elsewhere) if file else {}
    given |= read_environment(environ, options, prog, elsewhere)
    return given | {
        option.name: RawSetting(flags[option.name], option.shown)
        for option in options
        if option.name in flags
    }


def values_by_name(config_class: type, given: Mapping[str, Setting], what: str) -> dict[str, Value]:
    """Return settings given by name, each parsed as its flag would be.

    Raise TypeError if a name is not a setting of `what`, SettingsError if a value is wrong.
    """
    options = {option.name: option for option in options_of(config_class)}
    for name in given:
        if name not in options:
            raise TypeError(f"{name} is not a setting of {what}{closest(name, options)}")
    try:
        return {name: options[name].parse(str(value), name) for name, value in given.items()}
    except ProgramError as error:
        raise SettingsError(str(error)) from None


def describe(config: object) -> dict[str, Value]:
    """Return every effective setting by name, flat and in plain types, for the log."""
    holders = {"": config} | {owner: getattr(config, owner) for owner in nested_of(type(config))}
    return {
        option.name: _flat(getattr(holders[option.owner], option.name))
        for option in options_of(type(config))
    }


def _flat(value: Value) -> Value:
    return str(value) if isinstance(value, Path) else value


def changed(config: object) -> dict[str, Value]:
    """Return the effective settings that differ from their defaults, in plain types."""
    defaults = {option.name: option.default for option in options_of(type(config))}
    return {
        name: value for name, value in describe(config).items() if value != _flat(defaults[name])
    }


def _presets(options: Sequence[Option], given: Mapping[str, RawSetting]) -> dict[str, RawSetting]:
    """Return the defaults that the chosen presets set for settings that are not given."""
    found = {}
    names = {option.name for option in options}
    for option in _with_presets(options):
        chosen = _value(option, given.get(option.name))
        for name, value in preset_defaults(option.metadata["presets"][chosen], given).items():
            if name in names:
                found[name] = RawSetting(str(value), f"{option.shown} {chosen}")
    return found


def _preset_lines(options: Sequence[Option]) -> list[str]:
    """Return the paragraphs of --help about presets."""
    lines = []
    for option in _with_presets(options):
        lines.append(
            f"{option.shown} sets other defaults. A value given by a flag, a variable or a file "
            "overrides them."
        )
        plain = {each.name: each.default for each in options}
        for name, preset in option.metadata["presets"].items():
            changes = {key: value for key, value in preset.items() if key in plain}
            others = [f"{key} {value}" for key, value in changes.items() if value != plain[key]]
            lines.append(f"{option.shown} {name}: {', '.join(others) or 'the plain defaults'}")
    return lines


def _with_presets(options: Sequence[Option]) -> list[Option]:
    return [option for option in options if "presets" in option.metadata]


def _assemble(
    config_class: type[Config], options: Iterable[Option], given: Mapping[str, RawSetting]
) -> Config:
    nested = nested_of(config_class)
    values: dict[str, dict[str, Any]] = {owner: {} for owner in ["", *nested]}
    for option in options:
        values[option.owner][option.name] = _value(option, given.get(option.name))
    held = {owner: kind(**values[owner]) for owner, kind in nested.items()}
    return config_class(**values[""], **held)


def _value(option: Option, given: RawSetting | None) -> Any:
    if given is not None:
        return option.parse(given.text, given.subject)
    if option.default is MISSING:
        raise usage_error(f"{option.shown} is required: {option.metadata.get('help', '')}")
    return option.default


def _validate(config: object, options: Sequence[Option], given: Mapping[str, RawSetting]) -> None:
    holders = [getattr(config, owner) for owner in nested_of(type(config))]
    for holder in [*holders, config]:
        check = getattr(holder, "validate", None)
        if check is None:
            continue
        try:
            if isinstance(holder, RunSettings):
                check_settings(holder)
            else:
                check()
        except SettingsError as error:
            raise usage_error(f"{error}{_origins(str(error), options, given)}") from error


def _origins(message: str, options: Iterable[Option], given: Mapping[str, RawSetting]) -> str:
    """Return where the flags named in a message were set, if not on the command line."""
    named = set(re.findall(r"--[a-z][a-z0-9-]*", message))
    set_elsewhere = {
        option.flag: given[option.name].subject
        for option in options
        if option.flag in named and option.name in given
    }
    notes = [f"{flag} is set by {at}" for flag, at in set_elsewhere.items() if flag != at]
    return f" ({'; '.join(notes)})" if notes else ""
