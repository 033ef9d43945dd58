"""A setting seen from outside: its flag, its variable, its key in a file, and its check.

A config is a frozen dataclass. Its fields may carry in `metadata`:

help        its meaning for --help, which begins a new line after each "; "
choices     the values allowed
least, most the smallest and largest number allowed; without `least` that is 0
positive    the number must be above 0
unit        shown after the default: "s", "MB"
duration    the number is of seconds, and may be written as 90s, 15m, 24h or 2d
metavar     what --help shows for the value
presets     by each of the values allowed: other defaults for other settings
positional  given without its flag's name, as in `ssfl plan MODEL`
several     positional, any number of them: the value is all words with a blank between

A field whose type is itself a dataclass is nested: its fields become settings on the same level.
"""

import math
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from ssfl.program.exits import usage_error

Value = str | int | float | bool | Path | None
_METAVARS: dict[type, str] = {str: "TEXT", int: "N", float: "X", Path: "PATH", bool: ""}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a program; `owner` is the nested field that holds it, or empty."""

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
        """What the command line calls it: its flag, or the word for its place."""
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
        least, most = self.metadata.get("least", 0), self.metadata.get("most", math.inf)
        if not math.isfinite(value):
            raise usage_error(f"{subject} must be a finite number, got {value}")
        if self.metadata.get("positive") and not value > 0:
            raise usage_error(f"{subject} must be above 0, got {value}")
        if value < least:
            raise usage_error(f"{subject} must be at least {least}, got {value}")
        if value > most:
            raise usage_error(f"{subject} must be at most {most}, got {value}")


def format_duration(seconds: float) -> str:
    """Return a time in its largest whole unit.

    >>> format_duration(86400.0), format_duration(90.0), format_duration(900.0)
    ('24h', '90s', '15m')
    """
    units = {"h": 3600, "m": 60}
    name = next((one for one, size in units.items() if seconds % size == 0 and seconds), "s")
    return f"{seconds / units.get(name, 1):g}{name}"


def options_of(config_class: type, owner: str = "") -> Iterator[Option]:
    """Yield the settings of a config dataclass, nested ones in the place of their holder."""
    hints = typing.get_type_hints(config_class)
    for one in fields(config_class):
        if is_dataclass(hints[one.name]):
            yield from options_of(hints[one.name], one.name)
        else:
            kind = _plain_type(one.name, hints[one.name])
            yield Option(one.name, kind, _default(one), owner, one.metadata)


def nested_of(config_class: type) -> dict[str, type]:
    """Return the fields that hold nested settings, with their dataclasses."""
    hints = typing.get_type_hints(config_class)
    return {
        one.name: hints[one.name] for one in fields(config_class) if is_dataclass(hints[one.name])
    }


def setting_names(config_class: type) -> tuple[str, ...]:
    """Return the names of all settings of a config dataclass, nested ones included."""
    return tuple(option.name for option in options_of(config_class))


def _plain_type(name: str, hint: Any) -> type:
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    if hint not in _METAVARS:
        raise TypeError(f"setting {name} has type {hint}, which no flag can carry")
    return typing.cast(type, hint)


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()
