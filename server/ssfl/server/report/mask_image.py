"""A mask as small pictures: for each masked tensor, the share of kept weights block by block.

A tensor is shown as a table of its first dimension (rows: the outputs of a layer) by all others, in
at most 64 x 64 blocks. Each byte is the share of one block, where 255 stands for `most`.
"""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask

MAX_BLOCKS = 64  # each way
MAX_PICTURES = 60  # of the largest tensors, which bounds the report for deep models


def mask_pictures(manifest: Manifest, mask: Mask) -> list[dict[str, Any]]:
    """Return the pictures in the model's order, one tensor unpacked at a time."""
    tensors = list(manifest.masked())
    largest = sorted(tensors, key=lambda one: -one[0].size)[:MAX_PICTURES]
    shown = {tensor.name for tensor, _ in largest if tensor.size}
    packed = np.frombuffer(mask.bits, dtype=np.uint8)
    return [
        {"name": tensor.name, "shape": list(tensor.shape), **_picture(tensor.shape, packed, place)}
        for tensor, place in tensors
        if tensor.name in shown
    ]


def _picture(shape: tuple[int, ...], packed: npt.NDArray[np.uint8], place: slice) -> dict[str, Any]:
    shares = block_shares(tensor_bits(packed, place).reshape(shape[0] if len(shape) > 1 else 1, -1))
    most = float(shares.max())
    scaled = np.round(255 * shares / most if most else shares).astype(np.uint8)
    rows, columns = shares.shape
    data = base64.b64encode(scaled.tobytes()).decode()
    return {"rows": rows, "columns": columns, "most": most, "data": data}


def tensor_bits(packed: npt.NDArray[np.uint8], place: slice) -> npt.NDArray[np.uint8]:
    """Return 0 or 1 for each coordinate of `place`, without unpacking the rest of a mask."""
    first = place.start // 8
    bits = np.unpackbits(packed[first : -(-place.stop // 8)], bitorder="little")
    return bits[place.start - 8 * first : place.stop - 8 * first]


def block_shares(kept: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return the mean of every block of a table, at most `MAX_BLOCKS` each way."""
    tops, lefts = (np.unique(np.linspace(0, n, min(n, MAX_BLOCKS) + 1).astype(int))[:-1]
                   for n in kept.shape)  # fmt: skip
    counts = np.add.reduceat(np.add.reduceat(kept, tops, 0, dtype=np.int64), lefts, 1)
    heights, widths = np.diff([*tops, kept.shape[0]]), np.diff([*lefts, kept.shape[1]])
    shares: npt.NDArray[np.float64] = counts / np.outer(heights, widths)
    return shares
