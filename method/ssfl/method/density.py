"""The number of weights to keep, from a sparsity or a byte budget."""

import re
from decimal import ROUND_CEILING, Decimal, InvalidOperation, localcontext

from ssfl.method.errors import DensityError
from ssfl.method.manifest import Manifest

BYTES_PER_VALUE = 4
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_sparsity(text: str) -> Decimal:
    """Return a sparsity strictly between 0 and 1, as the decimal the user wrote."""
    try:
        sparsity = Decimal(text)
        inside = 0 < sparsity < 1  # NaN raises InvalidOperation
    except InvalidOperation:
        raise DensityError(f"sparsity must be a number such as 0.9, got {text!r}") from None
    if not inside:
        hint = " (write 0.9 for 90 %)" if 1 < sparsity <= 100 else ""
        raise DensityError(f"sparsity must lie strictly between 0 and 1, got {text}{hint}")
    return sparsity


def parse_bytes(text: str) -> int:
    """Return a number of bytes.

    >>> parse_bytes("2MB"), parse_bytes("1.5 MiB")
    (2000000, 1572864)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get((match.group(2) or "B").upper()) if match else None
    if not match or unit is None:
        raise DensityError(f"a size is a number and B, kB, MB, GB, KiB, MiB or GiB, got {text!r}")
    return int(Decimal(match.group(1)) * unit)


def kept_for_sparsity(sparsity: str, num_masked: int) -> int:
    """Return floor((1 - sparsity) * num_masked), in decimal arithmetic.

    >>> kept_for_sparsity("0.9", 1000)  # floats would give 99
    100
    """
    num_kept = count_kept(sparsity, num_masked)
    if not num_kept:
        raise DensityError(
            f"sparsity {sparsity} keeps none of the model's {num_masked} masked weights"
        )
    return num_kept


def count_kept(sparsity: str, size: int) -> int:
    """Return the number of weights to keep of `size`, which may be 0."""
    with localcontext(rounding=ROUND_CEILING):  # exact for any number of digits
        return size - int((parse_sparsity(sparsity) * size).to_integral_value())


def kept_for_bytes(budget: int, manifest: Manifest) -> int:
    """Return the largest number of kept weights whose update fits into `budget` bytes.

    An update includes the dense tensors.
    """
    num_kept = budget // BYTES_PER_VALUE - manifest.num_unmasked
    if num_kept < 1:
        min_bytes = BYTES_PER_VALUE * (manifest.num_unmasked + 1)
        raise DensityError(
            f"bytes-per-round {budget} is too small: norm and bias tensors alone need "
            f"{min_bytes - BYTES_PER_VALUE} bytes, so at least {min_bytes}"
        )
    return min(num_kept, manifest.num_masked)
