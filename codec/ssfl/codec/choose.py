"""Choose the smallest encoding that the receiver can decode.

Only a receiver that holds the mask can decode `values_only`. If sizes are equal, the first of them
in ENCODINGS is chosen, which is simpler to decode.
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
    """Return the encoding with the smallest payload, of those that the receiver can decode."""
    usable = (encoding for encoding in ENCODINGS.values() if mask_shared or not encoding.needs_mask)
    return min(usable, key=lambda encoding: encoding.encoded_bytes(size, num_kept))


def sizes(size: int, num_kept: int) -> dict[str, int]:
    """Return the payload size of every encoding, in bytes, by name."""
    return {name: encoding.encoded_bytes(size, num_kept) for name, encoding in ENCODINGS.items()}
