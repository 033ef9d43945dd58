"""From argv to the text of each flag, and the text of --help.

`--help` shows the basic settings and names the groups that hold the rest (help_groups.py);
`--help GROUP` shows one group, `--help STRATEGY` a strategy's own settings, and `--help all` every
setting. A program with few settings shows all of them at once.
"""

import argparse
import difflib
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import partial
from typing import Any, NoReturn

from ssfl.program.exits import ExitCode, usage_error
from ssfl.program.settings.help_groups import ALL, BASIC, GROUPS, MAX_SHOWN, group_of
from ssfl.program.settings.options import Option, format_duration, options_of
from ssfl.program.version import ssfl_version
from ssfl.strategies.registry import criterion_names, rule_for, strategy_names

CONFIG_FLAG = "--config"
_WIDEST = 96
OPTIONS = "strategy_options"
_ABBREVIATED = {"lr": "learning-rate"}  # known abbreviations that are initials of several names
_DOTTED = re.compile(r"--(?P<name>[a-z][a-z0-9-]*\.[a-z][a-z0-9_-]*)(=(?P<value>.*))?", re.S)
# Names of settings that plug-ins may extend, for --help.
KNOWN_NAMES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "strategies": strategy_names,
    "criteria": criterion_names,
}
_PRECEDENCE = """\
A flag overrides a variable, a variable overrides the file, the file overrides the default.
An empty variable counts as not set."""
_WITHOUT_VARIABLES = """\
A flag overrides the file, the file overrides the default.
SSFL_* variables configure the coordinator and the clients: this command ignores them."""


@dataclass(frozen=True, slots=True)
class HelpText:
    """What --help prints around the settings; `presets` explains settings that set others."""

    prog: str
    description: str
    epilog: str = ""
    presets: str = ""
    variables: bool = True  # whether the program reads SSFL_* variables


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        raise usage_error(message.replace(": expected one argument", " needs a value"))


class _Help(argparse.Action):
    """Prints the help text for the group given, if any, as soon as the flag is read."""

    def __init__(self, option_strings: Sequence[str], show: Callable[[str], str], **more: Any):
        super().__init__(option_strings, **more)
        self._show = show

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: object, topic: Any, _flag: object = None
    ) -> NoReturn:
        print(self._show(topic or ""))
        parser.exit(int(ExitCode.DONE))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=_width())

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return "--[no-]" + action.option_strings[0].removeprefix("--")
        return super()._format_action_invocation(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [
            line
            for fact in text.split("\n")
            for line in textwrap.wrap(fact, width, break_on_hyphens=False)
        ]


def read_flags(
    options: Sequence[Option],
    argv: Sequence[str],
    text: HelpText,
    known_elsewhere: Mapping[str, str],
) -> dict[str, str]:
    """Return the text of every flag given, by setting name, and of --config as `config`.

    --help and --version print and raise SystemExit; anything wrong raises ProgramError.
    """
    argv, of_strategy = _split_off(argv) if _has_strategy(options) else (argv, [])
    parser = _parser(text.prog)
    for option in options:
        _add(parser, option)
    _add_other(parser, text, bool(_groups(options)), partial(help_text, options, text))
    given, rest = parser.parse_known_args(argv)
    if rest:
        raise usage_error(_why_unknown(rest, options, known_elsewhere))
    flags = {name: _as_text(value) for name, value in vars(given).items() if value is not None}
    if of_strategy:
        flags[OPTIONS] = ",".join(filter(None, [flags.get(OPTIONS), *of_strategy]))
    return flags


def _has_strategy(options: Sequence[Option]) -> bool:
    return any(option.name == OPTIONS for option in options)


def _split_off(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without flags such as --ditto.strength 0.5, and these as name=value."""
    others, found, words = list[str](), list[str](), iter(argv)
    for word in words:
        match = _DOTTED.fullmatch(word)
        if match is None:
            others.append(word)
            continue
        value = match["value"] if match["value"] is not None else next(words, None)
        if value is None:
            raise usage_error(f"{word} needs a value")
        strategy, _, name = match["name"].partition(".")  # the name of a strategy may have dashes
        found.append(f"{strategy}.{name.replace('-', '_')}={value}")
    return others, found


def _as_text(value: str | bool | list[str]) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value) if isinstance(value, list) else value


def help_text(options: Sequence[Option], text: HelpText, topic: str = "") -> str:
    """Return what --help prints; `topic` is empty, a group, a strategy, or ALL."""
    groups = _groups(options)
    if groups and topic not in groups and _has_strategy(options) and topic in strategy_names():
        return _strategy_help(text, topic)
    if groups and topic not in ("", ALL, *groups):
        names = ", ".join([*groups, ALL])
        raise usage_error(
            f"--help {topic}: no such group of settings and no strategy; the groups are {names}"
        )
    topic = topic if groups else ALL
    whole = topic == ALL
    parser = _parser(text.prog, positional=any(option.positional for option in options))
    parser.description = _wrap(text.description) if whole or not topic else None
    ungrouped = [each for each in options if not groups or group_of(each.name) is None]
    if not topic:
        basic = [each for each in options if each.name in BASIC or each in ungrouped]
        _add_group(parser, "Basic settings", basic)
    elif whole:
        _add_group(parser, "Settings", ungrouped)
    for group in GROUPS:
        if group.name in (groups if whole else (topic,)):
            _add_group(parser, f"{group.name} ({group.about})", groups[group.name])
    if whole or not topic:
        _add_other(parser.add_argument_group("Other flags"), text, bool(groups))
    after = _after_settings(options, text, topic, groups)
    return "\n\n".join([parser.format_help().rstrip(), *after])


def _strategy_help(text: HelpText, strategy: str) -> str:
    """Return the settings of a strategy's own."""
    own = [
        replace(option, name=f"{strategy}.{option.name}")
        for option in options_of(rule_for(strategy).Options)
    ]
    if not own:
        return f"Strategy {strategy} has no settings of its own."
    parser = _parser(text.prog)
    _add_group(parser, f"settings of strategy {strategy}", own)
    return parser.format_help().rstrip()


def closest(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean X?" for the closest of `words`, or "" if none is close.

    A name that `word` abbreviates is the closest. Prefixes such as `--` do not count.

    >>> closest("--lr", ["--late-round", "--lr-decay", "--learning-rate"])
    '; did you mean --learning-rate?'
    >>> closest("--lr", ["--rtt", "--only"])
    ''
    """
    known = {name: _bare(name) for name in words}
    bare = _bare(word)
    usual = _ABBREVIATED.get(bare)
    close = [name for name, text in known.items() if re.sub("[-_ ]+", "-", text) == usual]
    close += [name for name in known if _initials(name) == bare]
    similar = difflib.get_close_matches(bare, known.values(), n=1)
    close += [name for name, text in known.items() if text in similar]
    return f"; did you mean {close[0]}?" if close else ""


def _bare(word: str) -> str:
    return word.removeprefix("--").removeprefix("SSFL_").lower()


def _initials(word: str) -> str:
    """Return the first letters of a name of several words; empty if it has one word."""
    parts = re.split("[-_ ]+", _bare(word))
    return "".join(part[:1] for part in parts) if len(parts) > 1 else ""


def _parser(prog: str, *, positional: bool = False) -> _Parser:
    return _Parser(
        prog=prog,
        usage="%(prog)s [flags]" + (" ARGUMENT ..." if positional else ""),
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )


def _groups(options: Sequence[Option]) -> dict[str, list[Option]]:
    """Return the groups that a program has, with their settings; none for a small program."""
    if len(options) <= MAX_SHOWN:
        return {}
    by_name = {option.name: option for option in options}
    held = {
        group.name: [by_name[name] for name in group.settings if name in by_name]
        for group in GROUPS
    }
    return {name: members for name, members in held.items() if members}


def _after_settings(
    options: Sequence[Option], text: HelpText, topic: str, groups: Mapping[str, Sequence[Option]]
) -> list[str]:
    """Return the paragraphs that --help prints below the settings."""
    shown = groups.get(topic, options)
    explains_presets = topic and any("presets" in option.metadata for option in shown)
    parts = [_wrap(text.presets)] if explains_presets else []
    if topic in groups:
        return parts
    if groups and not topic:
        parts.append(
            f"More settings are in groups. `{text.prog} --help GROUP` shows a group:"
            + "".join(
                f"\n  {group.name:<12}{group.about}"
                for group in GROUPS
                if any(member.name not in BASIC for member in groups.get(group.name, ()))
            )
            + f"\n  {ALL:<12}all {len(options)} settings"
        )
    parts += [_wrap(text.epilog)] if text.epilog else []
    codes = "\n".join(f"  {code.value:>3}  {code.meaning}" for code in ExitCode)
    return [*parts, _ways(options, text), "Exit codes:\n" + codes]


def _add_group(parser: _Parser, heading: str, options: Sequence[Option]) -> None:
    group = parser.add_argument_group(heading)
    for option in options:
        _add(group, option)


def _add_other(
    group: argparse._ActionsContainer,
    text: HelpText,
    has_groups: bool,
    show: Callable[[str], str] = str,
) -> None:
    config_help = "TOML file of settings" + (" (variable SSFL_CONFIG)" if text.variables else "")
    group.add_argument(CONFIG_FLAG, metavar="FILE", help=config_help)
    version = f"{text.prog} {ssfl_version()}"
    group.add_argument(
        "--version", action="version", version=version, help="show the version and exit"
    )
    of_groups = f", a group of settings, or `{ALL}` settings," if has_groups else ""
    group.add_argument(
        *("-h", "--help"),
        action=_Help,
        show=show,
        nargs="?" if has_groups else 0,
        metavar="GROUP",
        help=f"show this text{of_groups} and exit",
    )


def _add(group: argparse._ActionsContainer, option: Option) -> None:
    text = _help(option)
    if option.positional:
        count = "*" if option.metadata.get("several") else "?"
        group.add_argument(option.name, nargs=count, metavar=option.metavar, help=text)
    elif option.kind is bool:
        switch = argparse.BooleanOptionalAction
        group.add_argument(option.flag, dest=option.name, action=switch, help=text)
    else:
        group.add_argument(option.flag, dest=option.name, metavar=option.metavar, help=text)


def _help(option: Option) -> str:
    """Return the help text of a setting: meaning and default, more facts, choices; a line each."""
    first, *more = str(option.metadata.get("help", "")).split("; ")
    if names := KNOWN_NAMES.get(option.metadata.get("names", "")):
        more.append("one of " + ", ".join(names()))
    if option.metadata.get("choices"):
        more.append("one of " + ", ".join(map(str, option.metadata["choices"])))
    return "\n".join([first + _default_note(option), *more]).replace("%", "%%")


def _default_note(option: Option) -> str:
    default: Any = option.default
    if default is MISSING:
        return " (required)"
    if default is None or default == "":
        return ""
    if isinstance(default, bool):
        default = "yes" if default else "no"
    elif option.metadata.get("duration"):
        default = format_duration(default)
    elif isinstance(default, float):
        default = f"{default:g}"
    unit = option.metadata.get("unit")
    return f" (default {default} {unit})" if unit else f" (default {default})"


def _why_unknown(
    rest: Sequence[str], options: Sequence[Option], known_elsewhere: Mapping[str, str]
) -> str:
    flag = next((word for word in rest if word.startswith("-")), "").partition("=")[0]
    if not flag:
        return f"unexpected argument {rest[0]!r}"
    name = flag.removeprefix("--").replace("-", "_")
    for candidate in (name, name.removeprefix("no_")):
        if candidate in known_elsewhere:
            return f"{flag} {known_elsewhere[candidate]}"
    flags = [CONFIG_FLAG, "--help", "--version", *(option.flag for option in options)]
    flags += [option.flag.replace("--", "--no-", 1) for option in options if option.kind is bool]
    return f"unknown flag {flag}{closest(flag, flags) or '; `--help all` lists every flag'}"


def _ways(options: Sequence[Option], text: HelpText) -> str:
    """Return the ways to give a setting, with a setting of the program as the example."""
    flags = [each for each in options if not each.positional]
    option = next((each for each in flags if each.default not in (MISSING, None, "", 0)), flags[0])
    value = "true" if option.kind is bool else str(option.default or "VALUE")
    in_file = value if option.kind in (int, float, bool) else f'"{value}"'
    flag = option.flag if option.kind is bool else f"{option.flag} {value}"
    lines = ["Ways to give a setting:", f"  flag         {flag}"]
    if text.variables:
        lines.append(f"  variable     {option.variable}={value}")
    lines.append(f"  TOML file    {option.name} = {in_file}")
    precedence = _PRECEDENCE if text.variables else _WITHOUT_VARIABLES
    return "\n".join(
        textwrap.fill(line, _width(), break_on_hyphens=False)
        for line in [*lines, *precedence.split("\n")]
    )


def _wrap(text: str) -> str:
    return "\n\n".join(
        textwrap.fill(part, _width(), break_on_hyphens=False) for part in text.split("\n\n")
    )


def _width() -> int:
    return min(shutil.get_terminal_size().columns - 2, _WIDEST)
