"""Own masks of clients, implemented from the text of docs/wire-format.md."""

import hashlib
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from ssfl.method.controls import client_random_mask
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask

PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text("utf-8")
SEED = 7
WORD = (1 << 64) - 1


def vector_of_page(name: str) -> str:
    (found,) = re.findall(rf"^{name} = (.*)$", PAGE, flags=re.MULTILINE)
    return str(found)


def words(name: bytes) -> Iterator[int]:
    """Yield the words of Philox-4x64-10, keyed by `name`, with the constants of the page."""
    whole = int.from_bytes(hashlib.sha256(name).digest()[:16], "little")
    counter = 0
    while True:
        counter += 1
        a, b, c, d = counter, 0, 0, 0
        key, other_key = whole & WORD, whole >> 64
        for _ in range(10):
            left, right = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
            a, b = (right >> 64) ^ b ^ key, right & WORD
            c, d = (left >> 64) ^ d ^ other_key, left & WORD
            key = (key + 0x9E3779B97F4A7C15) & WORD
            other_key = (other_key + 0xBB67AE8584CAA73B) & WORD
        yield from (a, b, c, d)


def by_the_page(manifest: Manifest, sparsity: str, client: str) -> list[bool]:
    kept = []
    for tensor, _ in manifest.masked():
        size = tensor.size
        k = max(1, int((1 - Fraction(sparsity)) * size))
        name = "\0".join(["ssfl", str(SEED), "client mask", client, tensor.name]).encode()
        stream = words(name)
        drawn = [next(stream) for _ in range(size)]
        first = set(sorted(range(size), key=lambda number: (drawn[number], number))[:k])
        kept += [number in first for number in range(size)]
    return kept


def test_the_examples_follow_from_the_words_of_the_page() -> None:
    manifest = Manifest.from_json(vector_of_page("manifest_json").encode())
    for client in ("site_a", "site_b"):
        kept = by_the_page(manifest, "0.5", client)
        assert "".join("01"[bit] for bit in kept) == vector_of_page(f"own_mask_{client}")
        digest = Mask.from_bools(np.array(kept)).digest.hex()
        assert digest == vector_of_page(f"own_mask_digest_{client}")
    tails = Manifest.from_json(vector_of_page("tails_manifest").encode())
    packed = Mask.from_bools(np.array(by_the_page(tails, "0.9", "site_a"))).bits.hex()
    assert packed == vector_of_page("own_mask_tails_site_a")


def test_our_masks_are_the_same() -> None:
    for name, sparsity in (("manifest_json", "0.5"), ("tails_manifest", "0.9")):
        manifest = Manifest.from_json(vector_of_page(name).encode())
        for client in ("site_a", "site_b", "a.b-c_9"):
            ours = client_random_mask(manifest, sparsity, SEED, client)
            assert ours.bools().tolist() == by_the_page(manifest, sparsity, client)
