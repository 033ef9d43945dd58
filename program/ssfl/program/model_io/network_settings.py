"""Run settings that are recorded in a model's files: those of its network."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssfl.method.errors import ModelFileError, SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings

NETWORK = ("model", "norm", "width")  # settings that a built-in network was built with


def network_of(manifest: Manifest) -> dict[str, Any]:
    """Return the recorded settings of a built-in network, unchecked; empty for other networks."""
    return {name: manifest.model[name] for name in NETWORK if name in manifest.model}


def apply_recorded(settings: RunSettings, recorded: Mapping[str, Any], path: Path) -> RunSettings:
    """Return `settings` with recorded values; raise ModelFileError if one cannot be used."""
    try:
        for name, value in recorded.items():
            if type(value) is not type(getattr(settings, name)):
                raise SettingsError(f"{name} cannot be {value!r:.60}")
        changed = replace(settings, **recorded)
        changed.validate()
    except SettingsError as error:
        raise ModelFileError(
            f"{path}: the settings of its network cannot be used: {error}"
        ) from error
    return changed
