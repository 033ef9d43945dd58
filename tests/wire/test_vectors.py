"""The test vectors of docs/wire-format.md, executed."""

import re
from pathlib import Path

import numpy as np
import pytest

from ssfl.codec import values_only
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest

PAGE = Path(__file__).parents[2] / "docs" / "wire-format.md"


@pytest.fixture(scope="module")
def vectors() -> dict[str, str]:
    blocks = re.findall(r"```vector\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return dict(line.split(" = ", 1) for line in lines)


def mask_of(bits: str) -> Mask:
    return Mask.from_bools(np.array([bit == "1" for bit in bits]))


def test_the_page_has_vectors(vectors: dict[str, str]) -> None:
    assert len(vectors) == 11


def test_the_manifest_text_is_canonical_and_has_the_digest(vectors: dict[str, str]) -> None:
    manifest = Manifest.from_json(vectors["manifest_json"].encode())
    assert manifest.json.decode() == vectors["manifest_json"]
    assert manifest.digest.hex() == vectors["manifest_digest"]


def test_the_seed_gives_the_initial_vector(vectors: dict[str, str]) -> None:
    manifest = Manifest.from_json(vectors["manifest_json"].encode())
    vector = initial_vector(manifest, int(vectors["initial_seed"]))
    assert bytes(values_only.encode(vector)).hex() == vectors["initial_vector"]
    assert values_digest(vector).hex() == vectors["initial_digest"]


def test_values_only_holds_the_kept_values_in_order(vectors: dict[str, str]) -> None:
    mask = mask_of(vectors["values_mask"])
    vector = np.array([float(v) for v in vectors["values_vector"].split()], dtype=np.float32)
    payload = bytes.fromhex(vectors["values_payload"])
    assert bytes(values_only.encode(mask.gather(vector))) == payload
    assert mask.scatter(values_only.decode(payload, 3)).tolist() == [1.0, 0.0, -2.0, 0.5]


def test_a_mask_is_packed_from_the_lowest_bit(vectors: dict[str, str]) -> None:
    mask = mask_of(vectors["mask_bits"])
    assert mask.bits.hex() == vectors["mask_packed"]
    assert mask.digest.hex() == vectors["mask_digest"]
