"""Run settings as they travel in Join: the same names, field by field."""

from dataclasses import asdict

from ssfl.method.settings import RunSettings
from ssfl.v1 import settings_pb2


def settings_to_message(settings: RunSettings) -> settings_pb2.RunSettings:
    """Return the message of some settings."""
    return settings_pb2.RunSettings(**asdict(settings))
