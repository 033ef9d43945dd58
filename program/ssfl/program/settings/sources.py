"""Settings from SSFL_* variables and from a TOML file."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from ssfl.program.exits import usage_error
from ssfl.program.settings.command_line import OPTIONS, closest
from ssfl.program.settings.options import Option

CONFIG_VARIABLE = "SSFL_CONFIG"
_PREFIX = "SSFL_"


@dataclass(frozen=True, slots=True)
class RawSetting:
    """A value as written, and its origin: `--rounds`, `SSFL_ROUNDS` or `rounds in run.toml`."""

    text: str
    subject: str


def read_environment(
    environ: Mapping[str, str],
    options: Sequence[Option],
    prog: str,
    known_elsewhere: Mapping[str, str],
) -> dict[str, RawSetting]:
    """Return the settings in variables; ignore empty variables, refuse unknown ones."""
    ours = {option.variable: option.name for option in options}
    ignored = {_PREFIX + name.upper() for name in known_elsewhere} | {CONFIG_VARIABLE}
    given = {}
    for variable in sorted(name for name in environ if name.startswith(_PREFIX)):
        if variable in ours:
            if environ[variable]:
                given[ours[variable]] = RawSetting(environ[variable], variable)
        elif variable not in ignored:
            hint = closest(variable, [*ours, CONFIG_VARIABLE])
            raise usage_error(f"the variable {variable} is not a setting of {prog}{hint}")
    return given


def read_file(
    file: Path, options: Sequence[Option], prog: str, known_elsewhere: Mapping[str, str]
) -> dict[str, RawSetting]:
    """Return the settings in a TOML file; keys may have dashes or underscores."""
    ours = {option.name for option in options}
    given: dict[str, RawSetting] = {}
    for key, value in _load_toml(file).items():
        name = key.replace("-", "_")
        subject = f"{key} in {file}"
        if name in given:
            raise usage_error(f"{subject} is given twice, with a dash and with an underscore")
        if name not in ours and name in known_elsewhere:
            raise usage_error(f"{subject} {known_elsewhere[name]}")
        if name not in ours:
            raise usage_error(f"{subject} is not a setting of {prog}{closest(name, ours)}")
        if name == "strategy" and isinstance(value, dict) and OPTIONS in ours:
            given |= _strategy_table(value, subject)
        else:
            given[name] = RawSetting(_as_text(value, subject), subject)
    return given


def _strategy_table(table: Mapping[str, Any], subject: str) -> dict[str, RawSetting]:
    """Return the strategy and its own settings from a table such as [strategy.ditto]."""
    if len(table) != 1 or not isinstance(next(iter(table.values())), dict):
        raise usage_error(f"{subject} must hold one table, named as the strategy: [strategy.NAME]")
    ((name, own),) = table.items()
    pairs = [f"{name}.{key.replace('-', '_')}={_as_text(own[key], subject)}" for key in own]
    return {
        "strategy": RawSetting(name, subject),
        OPTIONS: RawSetting(",".join(pairs), subject),
    }


def _load_toml(file: Path) -> dict[str, Any]:
    try:
        # Decimal keeps 0.90 as written: sparsity is computed in exact decimal arithmetic.
        return tomllib.loads(file.read_text("utf-8"), parse_float=Decimal)
    except OSError as error:
        raise usage_error(f"the settings file {file} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise usage_error(f"the settings file {file} is not valid TOML: {error}") from None


def _as_text(value: object, subject: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | Decimal):
        return str(value)
    wrong = "a table" if isinstance(value, dict) else f"{value}"
    raise usage_error(f"{subject} must be a plain value at the top level, got {wrong}")
