"""Run settings by keyword: the coordinator's flags, with underscores."""

from collections.abc import Mapping

from ssfl.api.errors import flags_as_keywords
from ssfl.method.errors import SettingsError
from ssfl.method.profiles import with_profile
from ssfl.method.settings import RunSettings
from ssfl.program.settings.loading import Setting, values_by_name

__all__ = ["Setting", "run_settings"]


def run_settings(given: Mapping[str, Setting], clients: int) -> RunSettings:
    """Return the settings of a run that waits for all of its `clients`.

    Raises TypeError for an unknown name and SettingsError for a value that is out of range.

    Examples:
        >>> run_settings({"sparsity": 0.95}, clients=3).sparsity
        '0.95'
        >>> run_settings({"profile": "paper"}, clients=3).rounds
        500
        >>> run_settings({"learningrate": 0.1}, clients=3)
        Traceback (most recent call last):
        TypeError: learningrate is not a setting of a run; did you mean learning_rate?
    """
    values = with_profile(values_by_name(RunSettings, given, "a run"))
    if values.get("clients", clients) != clients:
        raise SettingsError(
            f"clients is {values['clients']}, but there are {clients} shards: leave it out, "
            "every shard is a client"
        )
    fixed = {"clients": clients, "reproducible": True}
    with flags_as_keywords():
        settings = RunSettings(**{**values, **fixed})
        settings.validate()
    return settings
