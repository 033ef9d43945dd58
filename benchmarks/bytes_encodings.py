"""The paper's table of encodings, from real payloads that are encoded, decoded and measured.

The paper (section "Communication Encoding Overheads") applies the density s to all P parameters.
We mask conv and linear weights only and always send norm and bias tensors whole. Both are encoded
here: `paper` keeps the floor(s * P) largest of all parameters, `ours` the floor(s * W) largest of
the W maskable ones and adds 4 bytes for each of the others. Bytes do not depend on which
coordinates are kept, so the largest initial weights are used. CSR has no encoder; its column is
computed by `ssfl.codec.csr`: 4 * (rows + 1) + 8 * kept for each tensor.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from benchmarks.bytes_models import NetworkCase, Vector

from ssfl.codec import csr, values_only
from ssfl.codec.choose import ENCODINGS
from ssfl.codec.contract import SparseVector
from ssfl.learning.describe import manifest_of
from ssfl.learning.models import build_model
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest, Role
from ssfl.method.mask import Mask, top_k

DENSITIES = (Fraction(1, 2), Fraction(1, 20))
FEDERATION = 10  # clients in the paper's column of megabytes, in one direction

# Percentages of the dense model that the paper prints, by density.
PAPER = {
    "dense": (100.0, 100.0),
    "bitmask": (53.1, 8.1),
    "coo": (100.0, 10.0),
    "values_only": (50.0, 5.0),
}


@dataclass(frozen=True)
class EncodingRow:
    """The payload of one encoding of one model at one density."""

    model: str
    density: float
    encoding: str
    paper_bytes: int  # density over all parameters
    ours_bytes: int  # density over maskable ones, the others whole
    dense_bytes: int

    def percent(self, count: int) -> float:
        return 100 * count / self.dense_bytes

    def as_printed(self) -> float | None:
        """Return the percentage in the paper, if there is one."""
        percentages = PAPER.get(self.encoding)
        if percentages is None:
            return None
        return percentages[[float(d) for d in DENSITIES].index(self.density)]

    @property
    def agrees(self) -> bool:
        """Return True if the measured percentage is the printed one, to the printed digit."""
        printed = self.as_printed()
        return printed is None or f"{self.percent(self.paper_bytes):.1f}" == f"{printed:.1f}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "density": self.density,
            "encoding": self.encoding,
            "measured": self.encoding != "csr",
            "paper_bytes": self.paper_bytes,
            "ours_bytes": self.ours_bytes,
            "dense_bytes": self.dense_bytes,
            "paper_percent": round(self.percent(self.paper_bytes), 3),
            "ours_percent": round(self.percent(self.ours_bytes), 3),
            "printed_percent": self.as_printed(),
        }


def encode_all(case: NetworkCase, seed: int = 0) -> list[EncodingRow]:
    """Return the rows of one network."""
    manifest = manifest_of(build_model(case.model, (3, 32, 32), case.num_classes), {})
    vector = initial_vector(manifest, seed)
    rows = []
    for density in DENSITIES:
        everything = _largest(vector, int(density * manifest.size))
        masked = _largest(vector[: manifest.num_masked], int(density * manifest.num_masked))
        rest = len(values_only.encode(vector[manifest.num_masked :]))
        paper = encoded(vector, everything)
        ours = encoded(vector[: manifest.num_masked], masked)
        paper["csr"] = _csr_bytes(manifest, everything)
        ours["csr"] = _csr_bytes(manifest, masked)
        rows += [
            EncodingRow(
                case.name, float(density), name, paper[name], ours[name] + rest, 4 * manifest.size
            )
            for name in paper
        ]
    return rows


def encoded(vector: Vector, mask: Mask) -> dict[str, int]:
    """Return the payload length in every encoding, each decoded and compared bit for bit."""
    kept = SparseVector(vector.size, mask.bits, mask.gather(vector))
    lengths = {}
    for name, encoding in ENCODINGS.items():
        payload = encoding.encode(kept)
        if encoding.decode(payload, kept.size, kept.num_kept, mask.bits) != kept:
            raise RuntimeError(f"{name}: the decoded values differ")
        lengths[name] = len(payload)
    return lengths


def _largest(vector: Vector, k: int) -> Mask:
    return top_k(np.abs(vector), k)


def _csr_bytes(manifest: Manifest, mask: Mask) -> int:
    """Return the sum over the tensors that the mask covers."""
    kept, total = mask.bools(), 0
    for tensor in manifest.tensors:
        place = manifest.slices[tensor.name]
        if mask.size == manifest.size or tensor.role is Role.MASKED:
            total += csr.encoded_bytes(tensor.shape, int(np.count_nonzero(kept[place])))
    return total
