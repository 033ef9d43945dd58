"""From argv to the text each flag was given, and a --help written for a person."""

import argparse
import difflib
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, NoReturn

from ssfl.program.exits import ExitCode, usage_error
from ssfl.program.settings.options import Option, duration_told
from ssfl.program.version import ssfl_version

CONFIG_FLAG = "--config"
_WIDEST = 96
_PRECEDENCE = (
    "Each setting can be given as a flag (--local-epochs 5), as a variable (SSFL_LOCAL_EPOCHS=5; "
    "empty means unset) or in a TOML file (local_epochs = 5). A flag beats a variable, a variable "
    "beats the file, the file beats the default."
)
_WITHOUT_VARIABLES = (
    "Each setting can be given as a flag or in a TOML file; a flag beats the file, the file beats "
    "the default. SSFL_* variables are those of coordinator and clients: this command ignores them."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        raise usage_error(message.replace(": expected one argument", " needs a value"))


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=_width())

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.const == "true":
            return "--[no-]" + action.option_strings[0].removeprefix("--")
        return super()._format_action_invocation(action)


def read_flags(
    options: Sequence[Option],
    argv: Sequence[str],
    prog: str,
    description: str,
    epilog: str,
    known_elsewhere: Mapping[str, str],
    *,
    variables: bool = True,
) -> dict[str, str]:
    """Return the text of every flag given, by setting name, and of --config as `config`.

    --help and --version print and raise SystemExit; anything wrong raises ProgramError.
    """
    parser = _build(options, prog, description, epilog, variables)
    given, rest = parser.parse_known_args(argv)
    if rest:
        raise usage_error(_why_unknown(rest, options, known_elsewhere))
    texts = vars(given).items()
    joined = {name: " ".join(text) if isinstance(text, list) else text for name, text in texts}
    return {name: text for name, text in joined.items() if text is not None}


def closest(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean X?" for the nearest of `words`, or nothing if none is near.

    One that `word` abbreviates is the nearest.

    >>> closest("--lr", ["--lr-decay", "--learning-rate"])
    '; did you mean --learning-rate?'
    """
    known = list(words)
    near = [one for one in known if _initials(one) == _bare(word)]
    near += difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _bare(word: str) -> str:
    return word.removeprefix("--").removeprefix("SSFL_").lower()


def _initials(word: str) -> str:
    """Return the first letters of a name of several words; empty if it has one word."""
    parts = re.split("[-_ ]+", _bare(word))
    return "".join(part[:1] for part in parts) if len(parts) > 1 else ""


def _build(
    options: Sequence[Option], prog: str, description: str, epilog: str, variables: bool
) -> _Parser:
    has_positional = any(option.positional for option in options)
    parser = _Parser(
        prog=prog,
        usage="%(prog)s [flags]" + (" ARGUMENT ..." if has_positional else ""),
        description=_wrap(description),
        epilog=_epilog(epilog, _PRECEDENCE if variables else _WITHOUT_VARIABLES),
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    for heading in dict.fromkeys(option.group for option in options):
        group = parser.add_argument_group(heading)
        for option in options:
            if option.group == heading:
                _add(group, option)
    other = parser.add_argument_group("Other")
    config_help = "a TOML file of settings" + (" (SSFL_CONFIG)" if variables else "")
    other.add_argument(CONFIG_FLAG, metavar="FILE", help=config_help)
    other.add_argument(
        "--version",
        action="version",
        version=f"{prog} {ssfl_version()}",
        help="show the version and exit",
    )
    other.add_argument("-h", "--help", action="help", help="show this text and exit")
    return parser


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    text = _help(option)
    if option.positional:
        count = "*" if option.metadata.get("several") else "?"
        group.add_argument(option.name, nargs=count, metavar=option.metavar, help=text)
    elif option.kind is bool:
        negative = option.flag.replace("--", "--no-", 1)
        group.add_argument(
            option.flag, dest=option.name, action="store_const", const="true", help=text
        )
        group.add_argument(
            negative,
            dest=option.name,
            action="store_const",
            const="false",
            help=argparse.SUPPRESS,
        )
    else:
        group.add_argument(option.flag, dest=option.name, metavar=option.metavar, help=text)


def _help(option: Option) -> str:
    text = str(option.metadata.get("help", ""))
    if option.metadata.get("choices"):
        text += ": " + ", ".join(map(str, option.metadata["choices"]))
    return (text + _default_note(option)).replace("%", "%%")


def _default_note(option: Option) -> str:
    default: Any = option.default
    if default is MISSING:
        return " (needed)"
    if default is None or default == "":
        return ""
    if isinstance(default, bool):
        default = "yes" if default else "no"
    elif option.metadata.get("duration"):
        default = duration_told(default)
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
    flags = [CONFIG_FLAG, "--help", "--version"]
    for option in options:
        flags.append(option.flag)
        if option.kind is bool:
            flags.append(option.flag.replace("--", "--no-", 1))
    return f"unknown flag {flag}{closest(flag, flags) or '; --help lists them'}"


def _epilog(text: str, precedence: str) -> str:
    codes = "\n".join(f"  {code.value:>3}  {code.meaning}" for code in ExitCode)
    parts = [_wrap(text)] if text else []
    return "\n\n".join([*parts, _wrap(precedence), "Exit codes:\n" + codes])


def _wrap(text: str) -> str:
    return "\n\n".join(
        textwrap.fill(part, _width(), break_on_hyphens=False) for part in text.split("\n\n")
    )


def _width() -> int:
    return min(shutil.get_terminal_size().columns - 2, _WIDEST)
