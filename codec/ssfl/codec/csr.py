"""Size of a tensor in CSR (compressed sparse rows), for comparison only: there is no encoder.

    row pointers u32[rows + 1] | columns u32[num_kept] | values f32[num_kept]

The tensor is seen as a matrix: the first dimension gives the rows, all others together the
columns. A tensor of one dimension is one row. Each tensor has its own row pointers. CSR is never
smaller than COO, which has indices of the same width and no pointers.
"""

import math
from collections.abc import Sequence

from ssfl.codec.contract import check_counts

BYTES_PER_ENTRY = 4  # a pointer, a column or a value


def encoded_bytes(shape: Sequence[int], num_kept: int) -> int:
    """Return the bytes of a tensor with `num_kept` kept values; MaskError if it has fewer."""
    check_counts(math.prod(shape), num_kept)
    rows = shape[0] if len(shape) > 1 else 1
    return BYTES_PER_ENTRY * (rows + 1 + 2 * num_kept)
