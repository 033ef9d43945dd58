"""Settings of a run that a model's files tell: with which ones its network was built."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssfl.method.errors import ModelFileError, SettingsError
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings

NETWORK = ("model", "norm", "width")  # settings that a built-in network was built with


def network_of(manifest: Manifest) -> dict[str, Any]:
    """Return what a manifest tells of a built-in network, not checked; nothing of another one."""
    return {name: manifest.model[name] for name in NETWORK if name in manifest.model}


def apply_recorded(settings: RunSettings, told: Mapping[str, Any], path: Path) -> RunSettings:
    """Return the settings with those that a file tells; ModelFileError names the one at fault."""
    try:
        for name, value in told.items():
            if type(value) is not type(getattr(settings, name)):
                raise SettingsError(f"{name} cannot be {value!r:.60}")
        changed = replace(settings, **told)
        changed.validate()
    except SettingsError as error:
        raise ModelFileError(
            f"{path}: the settings of its network cannot be used: {error}"
        ) from error
    return changed
