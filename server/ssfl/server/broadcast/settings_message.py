"""Run settings as sent in Join, with the same field names."""

from dataclasses import asdict

from ssfl.method.settings import RunSettings
from ssfl.v1 import settings_pb2


def settings_to_message(settings: RunSettings) -> settings_pb2.RunSettings:
    """Return the protocol message for `settings`."""
    return settings_pb2.RunSettings(**asdict(settings))
