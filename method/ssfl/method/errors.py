"""Why the arithmetic refuses.

MethodError
├─ ManifestError      the list of tensors is not one we can use
├─ DensityError       the wished sparsity or byte budget cannot be met by this model
├─ ModelFileError     a model file is missing or not what it should be
├─ SumError           adding these values could overflow or lose exactness
└─ SettingsError      a run setting is out of range
"""


class MethodError(Exception):
    """Base of everything `ssfl.method` raises on purpose."""


class ManifestError(MethodError):
    """The manifest breaks its own rules (docs/wire-format.md, section Manifest)."""


class DensityError(MethodError):
    """No number of kept weights satisfies the setting for this model."""


class ModelFileError(MethodError):
    """The model file cannot be used; the message names it and what to do."""


class SumError(MethodError):
    """The exact sum's safety bound would not hold."""


class SettingsError(MethodError):
    """A run setting is out of range; the message names its flag."""
