"""Errors of the method."""


class MethodError(Exception):
    """Base of everything `ssfl.method` raises on purpose."""


class ManifestError(MethodError):
    """The manifest is not valid (docs/wire-format.md, section Manifest)."""


class DensityError(MethodError):
    """No number of kept weights satisfies the setting for this model."""


class ModelFileError(MethodError):
    """The model file cannot be used; the message names the file and the remedy."""


class SumError(MethodError):
    """Adding these values could overflow or lose exactness."""


class SettingsError(MethodError):
    """A run setting is out of range; the message names its flag."""
