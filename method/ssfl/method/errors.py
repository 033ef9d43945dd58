"""Errors of the method.

MethodError
├─ ManifestError      the manifest is not valid
├─ DensityError       the model cannot meet the sparsity or the byte budget
├─ ModelFileError     a model file is missing or not what it should be
├─ SumError           adding these values could overflow or lose exactness
└─ SettingsError      a run setting is out of range
"""


class MethodError(Exception):
    """Base of everything `ssfl.method` raises on purpose."""


class ManifestError(MethodError):
    """The manifest is not valid (docs/wire-format.md, section Manifest)."""


class DensityError(MethodError):
    """No number of kept weights satisfies the setting for this model."""


class ModelFileError(MethodError):
    """The model file cannot be used; the message names the file and the remedy."""


class SumError(MethodError):
    """The exact sum's safety bound would not hold."""


class SettingsError(MethodError):
    """A run setting is out of range; the message names its flag."""
