"""Which encoding is the smallest for so many kept coordinates.

Legal is every encoding the receiver can decode: `values_only` only if it holds the mask. Of equal
sizes the first in the order of ENCODINGS is taken: the one whose payload needs less to be read.

>>> choose(11_164_352, 1_116_435, mask_shared=True).name
'values_only'
>>> choose(11_164_352, 1_116_435, mask_shared=False).name
'bitmask'
>>> choose(11_164_352, 111_643, mask_shared=False).name
'coo'
>>> sizes(1000, 100)
{'dense': 4000, 'values_only': 400, 'coo': 800, 'bitmask': 525}
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
    """Return the legal encoding with the smallest payload."""
    legal = (one for one in ENCODINGS.values() if mask_shared or not one.needs_mask)
    return min(legal, key=lambda one: one.encoded_bytes(size, num_kept))


def sizes(size: int, num_kept: int) -> dict[str, int]:
    """Return the payload bytes of every encoding, by name."""
    return {name: one.encoded_bytes(size, num_kept) for name, one in ENCODINGS.items()}
