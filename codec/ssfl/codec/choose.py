"""Choose the smallest encoding that the receiver can decode.

`values_only` needs a receiver that holds the mask. Of equal sizes the first in ENCODINGS wins,
which is the simpler one to read.
"""

from ssfl.codec.bitmask import BITMASK
from ssfl.codec.contract import Encoding
from ssfl.codec.coo import COO
from ssfl.codec.dense import DENSE
from ssfl.codec.values_only import VALUES_ONLY

ENCODINGS: dict[str, Encoding] = {
    encoding.name: encoding for encoding in (DENSE, VALUES_ONLY, COO, BITMASK)
}


def choose(size: int, num_kept: int, *, mask_shared: bool) -> Encoding:
    """Return the encoding with the smallest payload that the receiver can decode."""
    usable = (code for code in ENCODINGS.values() if mask_shared or not code.needs_mask)
    return min(usable, key=lambda code: code.encoded_bytes(size, num_kept))


def sizes(size: int, num_kept: int) -> dict[str, int]:
    """Return the payload bytes of every encoding, by name."""
    return {name: code.encoded_bytes(size, num_kept) for name, code in ENCODINGS.items()}
