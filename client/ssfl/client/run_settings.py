"""The run's settings, as a coordinator tells them."""

from dataclasses import fields

from ssfl.client.errors import Refused
from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings
from ssfl.v1 import settings_pb2


def read_settings(message: settings_pb2.RunSettings) -> RunSettings:
    """Return the run's settings as they came in Join; raise Refused if they cannot be.

    A choice that an older coordinator does not know of has its default.
    """
    told = {one.name: getattr(message, one.name) for one in fields(RunSettings)}
    choices = [one.name for one in fields(RunSettings) if one.metadata.get("choices")]
    settings = RunSettings(**{k: v for k, v in told.items() if v or k not in choices})
    try:
        settings.validate()
    except SettingsError as error:
        raise Refused(f"the run's settings are not for this version: {error}") from error
    return settings
