"""A sweep in a TOML file: the settings that all runs share, and those that vary.

docs/simulate.md has an example. [data] has fields of DataSpec, [settings] settings of a run. Every
combination of the lists in [grid] is run, once per [[variant]]; a key that a variant sets does not
vary for it. Keys of [grid] and of variants are settings, fields of the data, `mode`, `task`,
`device`, `tests_apart` or `round_tests`.
"""

import itertools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from ssfl.method.settings import RunSettings
from ssfl.program.exits import ProgramError
from ssfl.program.settings.command_line import closest
from ssfl.program.settings.options import Option, Value, options_of
from ssfl.study.data import DataSpec
from ssfl.study.errors import StudyError
from ssfl.study.run_spec import CPU, DEVICES, IMAGE, MODES, STUDY_SETTINGS, RunSpec

UNNAMED = "run"  # name of the only configuration of a study
MAX_RUNS = 100_000
_TOP_LEVEL_KEYS = (
    *("data", "settings", "seeds", "mode", "task", "device", "tests_apart", "round_tests"),
    *("grid", "variant"),
)


@dataclass(frozen=True, slots=True)
class _SpecFields:
    """The fields of RunSpec that may vary, other than data and settings."""

    mode: str = field(default="exact", metadata={"choices": MODES})
    task: str = IMAGE
    device: str = field(default=CPU, metadata={"choices": DEVICES})
    tests_apart: bool = False
    round_tests: bool = True


DATA = {option.name: option for option in options_of(DataSpec)}
SETTINGS = {
    option.name: option for option in options_of(RunSettings) if option.name not in STUDY_SETTINGS
}
SPEC_FIELDS = {option.name: option for option in options_of(_SpecFields)}
KEYS: dict[str, Option] = {**SETTINGS, **DATA, **SPEC_FIELDS}


@dataclass(frozen=True, slots=True)
class Study:
    """The values that all runs share, the values that vary, and the seeds.

    All combinations of `grid` are run. The variants, by name, override `base` and `grid`.
    """

    base: Mapping[str, Value] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    seeds: Sequence[int] = (0,)

    def with_base(self, given: Mapping[str, Value]) -> "Study":
        """Return the study with other values that all runs share.

        Raises StudyError for a key that varies.
        """
        for key in given:
            if key in self.grid or any(key in variant for variant in self.variants.values()):
                raise StudyError(f"{key} varies in this study: it cannot be fixed for all runs")
        return replace(self, base={**self.base, **given})

    def specs(self) -> list[RunSpec]:
        """Return every run, configuration by configuration."""
        return [
            _spec(name, values, seed)
            for name, values in self._configurations()
            for seed in self.seeds
        ]

    def _configurations(self) -> list[tuple[str, dict[str, Value]]]:
        found: list[tuple[str, dict[str, Value]]] = []
        for variant, fixed in (self.variants or {"": {}}).items():
            varying = {key: values for key, values in self.grid.items() if key not in fixed}
            runs = math.prod(map(len, varying.values())) * len(self.seeds)
            if runs + len(found) * len(self.seeds) > MAX_RUNS:
                raise StudyError(f"this study has more than {MAX_RUNS:,} runs")
            for chosen in itertools.product(*varying.values()):
                point = dict(zip(varying, chosen, strict=True))
                words = [f"{key}={value}" for key, value in point.items()]
                name = " ".join([variant, *words] if variant else words) or UNNAMED
                found.append((name, {**self.base, **point, **fixed}))
        return found


def _spec(name: str, values: Mapping[str, Any], seed: int) -> RunSpec:
    data, settings, other = (
        {key: value for key, value in values.items() if key in known}
        for known in (DATA, SETTINGS, SPEC_FIELDS)
    )
    return RunSpec(name, DataSpec(**data), settings, seed, **other)


def read_grid(file: Path) -> Study:
    """Return the study that a TOML file describes.

    Raises StudyError with the file and the key; for an unknown key, also the closest known one.
    """
    return study_of(read_table(file), file)


def study_of(document: Mapping[str, Any], file: Path) -> Study:
    """Return the study of a document that `read_table` has read from a file."""
    for key in document:
        if key not in _TOP_LEVEL_KEYS:
            section = "data" if key in DATA else "settings" if key in SETTINGS else ""
            hint = f": it belongs under [{section}]" if section else closest(key, _TOP_LEVEL_KEYS)
            raise StudyError(f"{key} in {file} is not a key of a study{hint}")
    top = {key: document[key] for key in SPEC_FIELDS if key in document}
    base = {
        **_values(_table(document, "data", file), DATA, "data", file),
        **_values(_table(document, "settings", file), SETTINGS, "settings", file),
        **_values(top, SPEC_FIELDS, "", file),
    }
    seeds = _checked_seeds(document.get("seeds", 1), f"seeds in {file}")
    return Study(base, _grid(document, file), _variants(document, file), seeds)


def read_seeds(text: str, subject: str) -> list[int]:
    """Return the seeds that a flag names: `5` is 0 to 4, `0,3,7` are these, `7,` is 7 alone.

    Examples:
        >>> read_seeds("3", "--seeds"), read_seeds("1,2", "--seeds"), read_seeds("7,", "--seeds")
        ([0, 1, 2], [1, 2], [7])
    """
    if not re.fullmatch(r"\d+(\s*,\s*\d+)*,?", text.strip()):
        raise StudyError(
            f"{subject} must be a number of seeds such as 5, or a list such as 0,1,2; got {text!r}"
        )
    numbers = [int(word) for word in text.split(",") if word.strip()]
    return _checked_seeds(numbers if "," in text else numbers[0], subject)


def _checked_seeds(given: object, subject: str) -> list[int]:
    if type(given) is int and 1 <= given <= MAX_RUNS:
        return list(range(given))
    if isinstance(given, list) and given and all(type(seed) is int for seed in given):
        if len(set(given)) < len(given):
            raise StudyError(f"{subject} names a seed twice")
        return given
    raise StudyError(
        f"{subject} must be the number of seeds, 1 to {MAX_RUNS}, or a list of seeds; got {given}"
    )


def _grid(document: Mapping[str, Any], file: Path) -> dict[str, list[Value]]:
    grid: dict[str, list[Value]] = {}
    for key, listed in _table(document, "grid", file).items():
        subject = f"{key} in [grid] of {file}"
        if not isinstance(listed, list) or not listed:
            raise StudyError(f"{subject} must be a list of values, such as [0.5, 0.9]")
        values = [_values({key: value}, KEYS, "grid", file) for value in listed]
        grid |= {name: [entry[name] for entry in values] for name in values[0]}
        if len({str(value) for value in listed}) < len(listed):
            raise StudyError(f"{subject} has a value twice")
    return grid


def _variants(document: Mapping[str, Any], file: Path) -> dict[str, dict[str, Value]]:
    listed = document.get("variant", [])
    if not isinstance(listed, list) or not all(isinstance(table, dict) for table in listed):
        raise StudyError(f"variant in {file} must be tables: [[variant]] in double brackets")
    variants: dict[str, dict[str, Value]] = {}
    for number, table in enumerate(listed, start=1):
        name = table.get("name")
        if not isinstance(name, str) or not name.strip():
            raise StudyError(f"[[variant]] number {number} in {file} needs a name")
        if name in variants:
            raise StudyError(f"two variants in {file} are called {name!r}")
        rest = {key: value for key, value in table.items() if key != "name"}
        variants[name] = _values(rest, KEYS, f"variant {name}", file)
    return variants


def _values(
    table: Mapping[str, Any], known: Mapping[str, Option], section: str, file: Path
) -> dict[str, Value]:
    """Return the values of a table, parsed like those of flags."""
    values: dict[str, Value] = {}
    for key, written in table.items():
        name = key.replace("-", "_")
        subject = f"{key} in [{section}] of {file}" if section else f"{key} in {file}"
        if name in values:
            raise StudyError(f"{subject} is given twice, with a dash and with an underscore")
        if name not in known:
            raise StudyError(f"{subject} is {_why_unknown(name, known)}")
        if not isinstance(written, bool | str | int | Decimal):
            raise StudyError(f"{subject} must be one plain value, got {written}")
        try:
            values[name] = known[name].parse(str(written), subject)
        except ProgramError as error:
            raise StudyError(str(error)) from None
    return values


def _why_unknown(name: str, known: Mapping[str, Option]) -> str:
    if name in SPEC_FIELDS:
        return "not known there: it belongs at the top of the file"
    if name in KEYS:
        return f"not known there: it belongs under [{'data' if name in DATA else 'settings'}]"
    if name in STUDY_SETTINGS and name not in DATA:
        return f"not a setting of a study: {STUDY_SETTINGS[name]}"
    return f"not a setting of a study{closest(name, known)}"


def _table(document: Mapping[str, Any], name: str, file: Path) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise StudyError(f"{name} in {file} must be a table: write [{name}] on its own line")
    return table


def read_table(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise StudyError naming it."""
    try:
        # Decimal keeps 0.90 as written; sparsity is exact decimal arithmetic.
        return tomllib.loads(file.read_text("utf-8"), parse_float=Decimal)
    except OSError as error:
        raise StudyError(f"the study {file} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise StudyError(f"the study {file} is not valid TOML: {error}") from None
