"""The runs of a comparison, and the choice of each method's learning rate.

A comparison is a study (ssfl.study.grid) whose variants are methods; methods.toml is the built-in
one. Runs of one seed share data, partition, initial weights and sampled clients. `[choose]` has the
learning rates to try and the seeds of these trials:

    [choose]
    rates = [0.03, 0.1, 0.3]
    seeds = [100, 101]

Every method gets the same trials. The rate with the largest accuracy of the global model on
validation samples, as a mean over the seeds of the trials, is chosen. Seeds that choose do not
report.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ssfl.program.settings.command_line import closest
from ssfl.study.errors import StudyError
from ssfl.study.grid import Study, read_table, study_of
from ssfl.study.intervals import mean_and_sd
from ssfl.study.outcome import final
from ssfl.study.run_spec import RunSpec
from ssfl.study.sweep import RunResult

METHODS = Path(__file__).with_name("methods.toml")
BUDGETS = [METHODS.with_name(f"budget-{name}.toml") for name in ("sampled", "all")]
RATE = "learning_rate"
MEASURE = "validation_mean"  # at the end of a trial
FORMAT = 1
_CHOOSE = ("rates", "seeds")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The methods as a study, and the trials that choose a learning rate."""

    study: Study
    rates: Sequence[float] = ()  # to try
    choosing_seeds: Sequence[int] = ()

    def only(self, names: Sequence[str]) -> "Comparison":
        """Return the comparison of some of the methods."""
        known = self.study.variants
        for name in names:
            if name not in known:
                raise StudyError(
                    f"--only names an unknown method, {name!r}{closest(name, known)}; the methods "
                    f"are: {', '.join(known)}"
                )
        chosen = {name: known[name] for name in names}
        return replace(self, study=replace(self.study, variants=chosen))

    def with_rounds(self, rounds: int) -> "Comparison":
        """Return the comparison with other rounds; a method with fewer of its own keeps them."""
        variants = {
            name: {**values, "rounds": min(own, rounds)}
            if isinstance(own := values.get("rounds"), int)
            else values
            for name, values in self.study.variants.items()
        }
        base = {**self.study.base, "rounds": rounds}
        return replace(self, study=replace(self.study, base=base, variants=variants))

    def with_seeds(self, seeds: Sequence[int]) -> "Comparison":
        return replace(self, study=replace(self.study, seeds=seeds))

    def trials(self) -> list[RunSpec]:
        """Return the runs that choose the learning rates.

        Raises StudyError if rates, seeds or validation samples are missing.
        """
        if not self.rates or not self.choosing_seeds:
            raise StudyError(
                "--grid needs [choose] in the file, with `rates` and `seeds` of the trials"
            )
        self._check_seeds(self.choosing_seeds)
        if fixed := [name for name, values in self.study.variants.items() if RATE in values]:
            raise StudyError(
                f"--grid chooses the learning rate, and the method {fixed[0]!r} sets it: leave it "
                "out there, or name other methods with --only"
            )
        grid = replace(self.study, grid={RATE: self.rates}, seeds=self.choosing_seeds)
        if not self.study.base.get("validation"):
            raise StudyError(
                "--grid chooses by validation samples: set `validation` in [data], such as 0.1"
            )
        return grid.specs()

    def chosen(self, results: Sequence[RunResult]) -> dict[str, Any]:
        """Return the document of rates.json from the results of `trials`."""
        found: dict[str, dict[str, list[float | None]]] = {}
        for result in results:
            name, rate = _method_and_rate(result.spec)
            trials = found.setdefault(name, {}).setdefault(rate, [])
            trials.append(None if result.error else final(result.outcome, MEASURE))
        methods = {name: _choice(trials) for name, trials in found.items()}
        return {
            "format": FORMAT, "software": version("ssfl"), "measure": MEASURE,
            "seeds": list(self.choosing_seeds), "trials": len(results),
            "cpu_seconds": sum(result.outcome.get("cpu_seconds", 0.0) for result in results),
            "methods": methods,
        }  # fmt: skip

    def specs(self, rates: Mapping[str, Any] | None = None) -> list[RunSpec]:
        """Return the runs to report, with the learning rates of rates.json."""
        methods = (rates or {}).get("methods", {})
        if rates:
            self._check_seeds(rates.get("seeds", ()))
        if methods and not set(methods) & set(self.study.variants):
            raise StudyError(
                f"the learning rates are those of other methods, such as {min(methods)!r}: choose "
                "them with --grid"
            )
        variants = {
            name: {**values, **_rate_of(methods.get(name))}
            for name, values in self.study.variants.items()
        }
        return replace(self.study, variants=variants).specs()

    def _check_seeds(self, choosing: Sequence[int]) -> None:
        if shared := sorted(set(choosing) & set(self.study.seeds)):
            raise StudyError(
                f"seed {shared[0]} would choose a learning rate and report its result: give "
                "[choose] other seeds"
            )


def _method_and_rate(spec: RunSpec) -> tuple[str, str]:
    name, _, rate = spec.name.rpartition(f" {RATE}=")
    return name, rate


def _choice(trials: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """Return the chosen rate, and the mean of each; of equal means the first rate is chosen."""
    means = {
        rate: mean_and_sd([value for value in values if value is not None])[0]
        for rate, values in trials.items()
        if values and all(value is not None for value in values)
    }
    best = max(means, key=lambda rate: means[rate], default=None)
    return {
        RATE: None if best is None else float(best),  # None: no trial measured it
        "trials": {rate: round(mean, 6) for rate, mean in means.items()},
    }


def _rate_of(chosen: Mapping[str, Any] | None) -> dict[str, float]:
    return {RATE: float(chosen[RATE])} if chosen and chosen[RATE] is not None else {}


def read_comparison(file: Path) -> Comparison:
    """Return the comparison of a TOML file; raise StudyError naming the file and the key."""
    document = read_table(file)
    choose = document.pop("choose", {})
    if not isinstance(choose, dict) or set(choose) - set(_CHOOSE):
        raise StudyError(f"[choose] in {file} is a table with `rates` and `seeds`")
    study = study_of(document, file)
    if not study.variants:
        raise StudyError(f"{file} has no methods: write each as [[variant]] with a name")
    for name in study.variants:
        if "," in name:
            raise StudyError(
                f"the method {name!r} in {file} has a comma, which --only could not name"
            )
    if study.grid:
        raise StudyError(f"[grid] in {file}: a comparison has no grid, only [[variant]] tables")
    base = {"tests_apart": True, **study.base}
    return Comparison(
        replace(study, base=base), _rates(choose, file), _seeds(choose.get("seeds", []), file)
    )


def _rates(choose: Mapping[str, Any], file: Path) -> list[float]:
    try:
        rates = [float(rate) for rate in choose.get("rates", [])]
    except (TypeError, ValueError):
        rates = [0.0]
    if any(rate <= 0 for rate in rates) or len(set(rates)) < len(rates):
        raise StudyError(f"rates in [choose] of {file} must be a list of different numbers above 0")
    return rates


def _seeds(given: object, file: Path) -> list[int]:
    if not isinstance(given, list) or not all(type(seed) is int for seed in given):
        raise StudyError(f"seeds in [choose] of {file} must be a list of whole numbers")
    return list(given)


def read_rates(file: Path) -> dict[str, Any]:
    """Return the document of a rates.json; raise StudyError if it is not one."""
    try:
        document: dict[str, Any] = json.loads(file.read_bytes())
        if document["format"] != FORMAT:
            raise StudyError(f"{file} is in format {document['format']}; this reads {FORMAT}")
        for chosen in document["methods"].values():
            _rate_of(chosen)
    except OSError as error:
        raise StudyError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise StudyError(f"{file} is not a rates.json that `ssfl compare --grid` wrote") from None
    return document


def stored_rates(methods: Path) -> Path | None:
    """Return the rates stored next to a methods file, as in methods.rates.json; None if absent."""
    file = methods.with_suffix(".rates.json")
    return file if file.is_file() else None
