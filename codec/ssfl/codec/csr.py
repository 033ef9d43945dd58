"""CSR, as a column of a table only: how many bytes a tensor would take, no encoder.

    row pointers u32[rows + 1] | columns u32[num_kept] | values f32[num_kept]

Others report their traffic in CSR (compressed sparse rows); this is what that form takes for one
tensor seen as a matrix: the first dimension is the rows, all others together the columns, as a
weight of a linear or convolutional layer is used. A tensor of one dimension is one row. Sum over
tensors: each has its own row pointers. CSR never beats COO here, whose indices are as wide and
which needs no pointers.

>>> encoded_bytes((512, 256), num_kept=13_107)
106908
>>> encoded_bytes((64, 3, 3, 3), num_kept=172)  # 64 rows of 27 columns
1636
"""

import math
from collections.abc import Sequence

from ssfl.codec.contract import check_counts

BYTES_PER_ENTRY = 4  # of a pointer, a column and a value alike


def encoded_bytes(shape: Sequence[int], num_kept: int) -> int:
    """Return the bytes of a tensor with `num_kept` kept values; MaskError if it cannot have."""
    check_counts(math.prod(shape), num_kept)
    rows = shape[0] if len(shape) > 1 else 1
    return BYTES_PER_ENTRY * (rows + 1 + 2 * num_kept)
