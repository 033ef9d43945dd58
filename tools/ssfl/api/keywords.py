"""Run settings by keyword: the coordinator's flags, with underscores."""

from collections.abc import Mapping

from ssfl.api.errors import in_keywords
from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings
from ssfl.program.command_line import closest
from ssfl.program.exits import ProgramError
from ssfl.program.options import Option, Value, options_of

Setting = str | float | bool  # a number may be given where a flag would be text: sparsity=0.9


def run_settings(given: Mapping[str, Setting], clients: int) -> RunSettings:
    """Return the settings of a run among so many clients, all of whom it waits for.

    Raises TypeError for an unknown name and SettingsError for a value that is out of range.

    Examples:
        >>> run_settings({"sparsity": 0.95}, clients=3).sparsity
        '0.95'
        >>> run_settings({"learningrate": 0.1}, clients=3)
        Traceback (most recent call last):
        TypeError: learningrate is no setting of a run; did you mean learning_rate?
    """
    options = {option.name: option for option in options_of(RunSettings)}
    for name in given:
        if name not in options:
            raise TypeError(f"{name} is no setting of a run{closest(name, options)}")
    values = {name: _value(options[name], value) for name, value in given.items()}
    if values.get("clients", clients) != clients:
        raise SettingsError(
            f"clients is {values['clients']}, but there are {clients} shards: leave it out, "
            "every shard is a client"
        )
    everybody = {"clients": clients, "reproducible": True}
    with in_keywords():
        settings = RunSettings(**{**values, **everybody})  # type: ignore[arg-type]
        settings.validate()
    return settings


def _value(option: Option, value: Setting) -> Value:
    """Return the value as its flag would read it."""
    try:
        return option.parse(str(value), option.name)
    except ProgramError as error:
        raise SettingsError(str(error)) from None
