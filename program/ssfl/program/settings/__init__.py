"""Settings from flags, SSFL_* variables and a TOML file. No setting is declared here."""

from ssfl.program.settings.loading import describe, load, read_given, setting_names

__all__ = ["describe", "load", "read_given", "setting_names"]
