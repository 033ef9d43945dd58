"""Strategies and criteria by name."""

from collections.abc import Container, Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, get_type_hints

from ssfl.method.errors import SettingsError
from ssfl.method.image_settings import NONE
from ssfl.method.settings import RunSettings, check_value
from ssfl.strategies import criteria, methods
from ssfl.strategies.contract import Rule
from ssfl.strategies.criteria import Criterion
from ssfl.strategies.mask_source import (
    NO_MASK,
    AllWeights,
    MaskSource,
    RuleMask,
    ScoredMask,
    SeededMasks,
)
from ssfl.strategies.strategy import Strategy

OWN_MASKS = "client-random"
IMAGES = ("augment", "normalize")  # settings whose arithmetic both ends must have
STRATEGIES, CRITERIA = "ssfl.strategies", "ssfl.criteria"  # groups of entry points
# From the files that this process was given, by name: the file and its class.
_GIVEN_RULES: dict[str, tuple[str, type[Rule]]] = {}
_GIVEN_CRITERIA: dict[str, tuple[str, type[Criterion]]] = {}


@lru_cache
def _methods() -> dict[str, str]:
    """Return the modules of the built-in strategies by name."""
    modules = [module.name for module in iter_modules(methods.__path__)]
    return {name.replace("_", "-"): f"{methods.__name__}.{name}" for name in sorted(modules)}


@lru_cache
def _criteria() -> dict[str, type[Criterion]]:
    found = [kind for kind in vars(criteria).values() if isinstance(kind, type)]
    kinds = [kind for kind in found if issubclass(kind, Criterion) and kind is not Criterion]
    return {kind.name: kind for kind in kinds}


def _outside() -> ModuleType:
    """Return the module that reads files, which the pure core must not load with this one."""
    return import_module("ssfl.strategies.outside")


def strategy_names() -> tuple[str, ...]:
    """Return the names of all strategies: built in, of given files, and installed."""
    return (*_methods(), *_GIVEN_RULES, *_outside().installed_names(STRATEGIES))


def criterion_names() -> tuple[str, ...]:
    """Return the names of all criteria: built in, of given files, and installed."""
    installed = _outside().installed_names(CRITERIA)
    return (*_criteria(), OWN_MASKS, NO_MASK, *_GIVEN_CRITERIA, *installed)


def use_strategy(text: str) -> str:
    """Return the name of a strategy that is given by its name or by its file."""
    if not text.endswith(".py"):
        return text
    path, rule = _outside().from_file(text, Rule)
    name = _name_of(path, _methods(), _GIVEN_RULES)
    _GIVEN_RULES[name] = path, rule
    strategy_for.cache_clear()
    return name


def use_criterion(text: str) -> str:
    """Return the name of a criterion that is given by its name or by its file."""
    if not text.endswith(".py"):
        return text
    path, criterion = _outside().from_file(text, Criterion)
    name = _name_of(path, (*_criteria(), OWN_MASKS, NO_MASK), _GIVEN_CRITERIA)
    criterion.name = name
    _GIVEN_CRITERIA[name] = path, criterion
    strategy_for.cache_clear()
    return name


def _name_of(path: str, built_in: Container[str], given: Mapping[str, tuple[str, type]]) -> str:
    name = path.rpartition("/")[2].removesuffix(".py").replace("_", "-")
    if name in built_in:
        raise SettingsError(f"{path}: {name} is built in: rename the file")
    if name in given and given[name][0] != path:
        raise SettingsError(f"{path} and {given[name][0]} have the same name: rename one of them")
    return name


def given_files() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of strategies and of criteria that this process was given."""
    given = _GIVEN_RULES.values(), _GIVEN_CRITERIA.values()
    strategies, criteria = (tuple(path for path, _ in files) for files in given)
    return strategies, criteria


def given_digests() -> dict[str, str]:
    """Return the SHA-256 of every file that this process was given, by path."""
    given = [*_GIVEN_RULES.values(), *_GIVEN_CRITERIA.values()]
    return {path: _outside().source_digest(kind) for path, kind in given}


def file_of(setting: str, name: str) -> str:
    """Return the file that a value of `strategy` or `criterion` was given as, else the name."""
    if setting == "strategy":
        return _GIVEN_RULES[name][0] if name in _GIVEN_RULES else name
    return _GIVEN_CRITERIA[name][0] if setting == "criterion" and name in _GIVEN_CRITERIA else name


def criterion_for(name: str) -> Criterion:
    """Return a criterion by its name; raise SettingsError if there is none."""
    _, kind = _GIVEN_CRITERIA.get(name, ("", _criteria().get(name)))
    kind = kind or _outside().installed(CRITERIA, name, Criterion)
    if kind is None:
        raise SettingsError(
            f"--criterion must be one of {', '.join(criterion_names())}, or a file; got {name!r}"
        )
    return kind()


def rule_for(name: str) -> type[Rule]:
    """Return the rule of a strategy; raise SettingsError if there is none."""
    rule: type[Rule] | None
    if name in _methods():
        rule = _outside().class_in(import_module(_methods()[name]), Rule)
    else:
        _, rule = _GIVEN_RULES.get(name, ("", None))
        rule = rule or _outside().installed(STRATEGIES, name, Rule)
    if rule is None:
        raise SettingsError(
            f"--strategy must be one of {', '.join(strategy_names())}, or a file; got {name!r}"
        )
    return rule


def identity(settings: RunSettings) -> str:
    """Return what both ends of a run must agree on in addition to the settings; empty if nothing.

    It is the contract number of a built-in strategy whose clients do more than train and send
    values. Of a strategy from outside it is the SHA-256 of its source, and the contract numbers of
    the built-in strategies that it extends. The settings of images have contract numbers too: a
    client of an earlier version ignores settings that it does not know.
    """
    strategy = strategy_for(settings)
    parts = []
    if settings.strategy not in _methods():
        parts.append(f"{settings.strategy} sha256:{_outside().source_digest(type(strategy.rule))}")
        parts += _extended(type(strategy.rule))
    elif strategy.has_client_half:
        parts.append(f"{settings.strategy} contract {strategy.rule.contract}")
    source = strategy.source
    if isinstance(source, ScoredMask) and source.criterion.name not in _criteria():
        parts.append(
            f"{source.criterion.name} sha256:{_outside().source_digest(type(source.criterion))}"
        )
    parts += [f"{name} contract 1" for name in IMAGES if getattr(settings, name) != NONE]
    return ", ".join(parts)


def _extended(rule: type[Rule]) -> list[str]:
    """Return name and contract number of the built-in strategies that a rule extends."""
    names = {module: name for name, module in _methods().items()}
    return [
        f"{names[base.__module__]} contract {base.contract}"
        for base in rule.__mro__
        if issubclass(base, Rule) and base.__module__ in names
    ]


@lru_cache(maxsize=64)
def strategy_for(settings: RunSettings) -> Strategy:
    """Return the strategy that the settings name; raise SettingsError if there is none."""
    rule = rule_for(settings.strategy)
    options = own_options(settings.strategy, rule.Options, settings.strategy_options)
    return Strategy(settings, _source_for(settings, rule), rule(settings, options))


def own_options(strategy: str, kind: type, text: str) -> Any:
    """Return a strategy's own settings from "ditto.strength=0.5,ditto.personal_epochs=3"."""
    hints, given = get_type_hints(kind), dict[str, Any]()
    known = {option.name: option for option in fields(kind)}
    for pair in filter(None, text.split(",")):
        full, equals, written = pair.partition("=")
        owner, dot, name = full.strip().partition(".")
        flag = f"--{owner}.{name}"
        if not equals or not dot:
            raise SettingsError(
                f"--strategy-options {pair!r}: write each as STRATEGY.NAME=VALUE, with commas "
                "between them"
            )
        if owner != strategy:
            raise SettingsError(f"{flag} is for --strategy {owner}, and this run has {strategy}")
        if name not in known:
            names = ", ".join(f"--{owner}.{each}" for each in known) or "none"
            raise SettingsError(f"{flag} is not a setting of strategy {strategy}; it has: {names}")
        if name in given:
            raise SettingsError(f"{flag} is given twice")
        given[name] = _converted(flag, written.strip(), hints[name])
        check_value(flag, given[name], known[name].metadata)
    return kind(**given)


def _converted(flag: str, text: str, kind: type) -> Any:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        return words[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError, TypeError):
        wanted = {bool: "true or false", int: "a whole number"}.get(kind, "a number")
        raise SettingsError(f"{flag} must be {wanted}, got {text!r}") from None


def _source_for(settings: RunSettings, rule: type[Rule]) -> MaskSource:
    if rule.moves_mask:
        return RuleMask(settings)
    if rule.dense or settings.criterion == NO_MASK:
        return AllWeights(settings)
    if settings.criterion == OWN_MASKS:
        return SeededMasks(settings)
    return ScoredMask(settings, criterion_for(settings.criterion))


def check_settings(settings: RunSettings, *, simulated: bool = False) -> None:
    """Raise SettingsError, naming the flag, if a setting is invalid.

    Some strategies run only in the simulator (`simulated`).
    """
    settings.validate()
    strategy = strategy_for(settings)
    if strategy.is_gossip and not simulated:
        raise SettingsError(
            f"--strategy {settings.strategy} hands each site's update to other sites: it runs in "
            "`ssfl simulate` only"
        )
    if strategy.has_client_half and settings.optimizer_state == "keep":
        raise SettingsError(
            f"--optimizer-state keep is for one training run per round, and clients of strategy "
            f"{settings.strategy} have more than that to do: use restart"
        )
    strategy.source.check()
    strategy.rule.check()
    if settings.max_update_norm and not strategy.sends_values_alone:
        raise SettingsError(
            f"--max-update-norm bounds the change to values of one mask, and clients of strategy "
            f"{settings.strategy} send more than these: nothing would be clipped, so leave it out"
        )
    if strategy.has_own_masks and settings.downloads == "values":
        raise SettingsError(
            "--downloads values codes one model for all clients, and strategy "
            f"{settings.strategy} gives every client a mask of its own: use --downloads change"
        )


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the own settings of a stored run's strategy; empty if this version lacks them."""
    try:
        name = str(settings.get("strategy", ""))
        return asdict(own_options(name, rule_for(name).Options, settings["strategy_options"]))
    except (SettingsError, KeyError):
        return {}


def strategy_of(settings: Mapping[str, Any]) -> Strategy | None:
    """Return the strategy of a stored run; None if this version does not know it."""
    try:
        names = {name: settings[name] for name in ("strategy", "criterion") if name in settings}
        return strategy_for(RunSettings(**names))
    except SettingsError:
        return None
