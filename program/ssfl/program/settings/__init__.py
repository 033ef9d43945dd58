"""Settings from flags, SSFL_* variables and a TOML file. No setting is declared here."""

from ssfl.program.settings.loading import changed, describe, load, read_given, setting_names

__all__ = ["changed", "describe", "load", "read_given", "setting_names"]
