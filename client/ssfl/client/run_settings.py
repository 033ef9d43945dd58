"""Run settings received from the coordinator."""

from dataclasses import fields

from ssfl.client.errors import Refused
from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings
from ssfl.v1 import settings_pb2


def read_settings(message: settings_pb2.RunSettings) -> RunSettings:
    """Return the run settings of a Join response; raise Refused if they are not valid.

    A choice that an older coordinator does not send has its default value.
    """
    received = {field.name: getattr(message, field.name) for field in fields(RunSettings)}
    choices = [field.name for field in fields(RunSettings) if field.metadata.get("choices")]
    settings = RunSettings(**{k: v for k, v in received.items() if v or k not in choices})
    try:
        settings.validate()
    except SettingsError as error:
        raise Refused(f"this version cannot use the run's settings: {error}") from error
    return settings
