"""Settings as options: flag, variable, key in a file, and range check.

A config is a frozen dataclass. The `metadata` of a field may have:

help        text for --help, which starts a new line after each "; "
choices     allowed values
ge, le      smallest and largest allowed number; the default of `ge` is 0
positive    the number must be above 0
unit        shown after the default: "s", "MB"
duration    a number of seconds, which may be written as 90s, 15m, 24h or 2d
metavar     placeholder of the value in --help
presets     for each allowed value, defaults of other settings
positional  given without its flag, as in `ssfl plan MODEL`
several     positional, any number of words; the value is the words joined by spaces

A field whose type is a dataclass is nested: its fields become settings on the same level.
"""

import math
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ssfl.method.errors import SettingsError
from ssfl.method.settings import setting
from ssfl.program.exits import usage_error
from ssfl.strategies.registry import use_criterion, use_strategy

Value = str | int | float | bool | Path | None
_METAVARS: dict[type, str] = {str: "TEXT", int: "N", float: "X", Path: "PATH", bool: ""}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _use_file(use: typing.Callable[[str], str], text: str) -> str:
    if text and not text.endswith(".py"):
        raise SettingsError(
            f"{text!r} is not a .py file. The run already has its strategy and criterion: "
            "leave this out, unless the run's own is neither built in nor installed: give its file"
        )
    return use(text)


# For each value of the metadata `names`: the function that turns a name or a file into the name.
NAMED: typing.Mapping[str, typing.Callable[[str], str]] = {
    "strategies": use_strategy,
    "criteria": use_criterion,
    "strategy files": partial(_use_file, use_strategy),
    "criterion files": partial(_use_file, use_criterion),
}


def _named(use: typing.Callable[[str], str], text: str, subject: str) -> str:
    try:
        return use(text)
    except SettingsError as error:
        raise usage_error(f"{subject}: {error}") from error


def source_file(kind: str) -> Any:
    """Return a setting for the file of the run's strategy or criterion."""
    text = f"file of the run's {kind}, if it is neither built in nor installed"
    return setting("", text, names=f"{kind} files")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a program; `owner` names the nested field that holds it, or is empty."""

    name: str
    kind: type
    default: Any
    owner: str
    metadata: typing.Mapping[str, Any]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "SSFL_" + self.name.upper()

    @property
    def positional(self) -> bool:
        return bool(self.metadata.get("positional"))

    @property
    def shown(self) -> str:
        """The name on the command line: the flag, or the placeholder of a positional."""
        return self.metavar if self.positional else self.flag

    @property
    def metavar(self) -> str:
        if self.positional:
            return str(self.metadata.get("metavar", self.name.upper()))
        usual = "NAME" if self.metadata.get("choices") else _METAVARS[self.kind]
        usual = "TIME" if self.metadata.get("duration") else usual
        return str(self.metadata.get("metavar", usual))

    def parse(self, text: str, subject: str) -> Value:
        """Return the value written as `text`; `subject` names its origin in an error."""
        if use := NAMED.get(self.metadata.get("names", "")):
            return _named(use, text, subject)
        value = self._convert(text, subject)
        choices = self.metadata.get("choices")
        if choices and value not in choices:
            raise usage_error(
                f"{subject} must be one of {', '.join(map(str, choices))}, got {text!r}"
            )
        if not isinstance(value, bool | str | Path):
            self._check_range(value, subject)
        return value

    def _convert(self, text: str, subject: str) -> str | int | float | bool | Path:
        try:
            if self.kind is bool:
                return _WORDS[text.strip().lower()]
            if self.kind is Path:
                return Path(text).expanduser()
            if self.metadata.get("duration") and text[-1:] in _SECONDS:
                return float(text[:-1]) * _SECONDS[text[-1]]
            return self.kind(text)  # type: ignore[no-any-return]  # str, int or float
        except (ValueError, KeyError):
            wanted = {bool: "true or false", int: "a whole number"}.get(self.kind, "a number")
            if self.metadata.get("duration"):
                wanted = "a time such as 90s, 15m, 24h or 2d"
            raise usage_error(f"{subject} must be {wanted}, got {text!r}") from None

    def _check_range(self, value: float, subject: str) -> None:
        lowest, highest = self.metadata.get("ge", 0), self.metadata.get("le", math.inf)
        rules = {
            "a finite number": math.isfinite(value),
            "above 0": value > 0 or not self.metadata.get("positive"),
            f"at least {lowest}": value >= lowest,
            f"at most {highest}": value <= highest,
        }
        for rule, holds in rules.items():
            if not holds:
                raise usage_error(f"{subject} must be {rule}, got {value}")


def format_duration(seconds: float) -> str:
    """Return a duration in hours, minutes or seconds, the largest of them that is whole.

    >>> format_duration(86400.0), format_duration(90.0), format_duration(900.0)
    ('24h', '90s', '15m')
    """
    units = {"h": 3600, "m": 60}
    name = next((unit for unit, size in units.items() if seconds % size == 0 and seconds), "s")
    return f"{seconds / units.get(name, 1):g}{name}"


def options_of(config_class: type, owner: str = "") -> Iterator[Option]:
    """Yield the settings of a config dataclass, nested ones in the place of their field."""
    hints = typing.get_type_hints(config_class)
    for field in fields(config_class):
        if is_dataclass(hints[field.name]):
            yield from options_of(hints[field.name], field.name)
        else:
            kind = _plain_type(field.name, hints[field.name])
            factory = field.default_factory
            default = field.default if factory is MISSING else factory()
            yield Option(field.name, kind, default, owner, field.metadata)


def nested_of(config_class: type) -> dict[str, type]:
    """Return the fields that hold nested settings, with their dataclasses."""
    hints = typing.get_type_hints(config_class)
    names = [field.name for field in fields(config_class) if is_dataclass(hints[field.name])]
    return {name: hints[name] for name in names}


def setting_names(config_class: type) -> tuple[str, ...]:
    """Return the names of all settings of a config dataclass, nested ones included."""
    return tuple(option.name for option in options_of(config_class))


def _plain_type(name: str, hint: Any) -> type:
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    if hint not in _METAVARS:
        raise TypeError(f"setting {name} has type {hint}, which no flag can carry")
    return typing.cast(type, hint)
