"""All test vectors of docs/wire-format.md are checked, encoded and decoded where possible.

Where a sender has a choice, these checks choose as our code does: lossy changes round to nearest,
and scores use given words. Compressed sections are only read: versions of zstd write different
frames.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

from ssfl.codec import (
    Receiver,
    bfloat16,
    blocks,
    grid,
    int8,
    masks,
    reference,
    scores,
    sorted_bits,
    values_only,
)
from ssfl.codec.blocks import ValueCode
from ssfl.learning.describe import manifest_of
from ssfl.method.exact_sum import VALUE_BOUND, ExactSum, fraction_bits
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.method.model_state import values_digest
from ssfl.method.settings import RunSettings
from ssfl.method.value_types import commit_values

PAGE = Path(__file__).parents[2] / "docs" / "wire-format.md"
NUM_VECTORS = 51
Vector = npt.NDArray[np.float32]


class Vectors:
    """The vectors of the page; records which were used."""

    def __init__(self, text: str) -> None:
        blocks = re.findall(r"```vector\n(.*?)```", text, flags=re.DOTALL)
        lines: list[str] = [line for block in blocks for line in block.splitlines()]
        self._all = dict(line.split(" = ", 1) for line in lines)
        assert len(self._all) == len(lines), "two vectors of one name"
        self.unused = set(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def text(self, name: str) -> str:
        self.unused.discard(name)
        return self._all[name]

    def data(self, name: str) -> bytes:
        return bytes.fromhex(self.text(name))

    def floats(self, name: str) -> Vector:
        """float32 values given as hexadecimal bytes."""
        return np.frombuffer(self.data(name), dtype="<f4")

    def numbers(self, name: str) -> Vector:
        """float32 values given in decimal, none of them rounded."""
        exact = [float(number) for number in self.text(name).split()]
        values = np.array(exact, dtype=np.float32)
        assert values.tolist() == exact, f"{name} are not float32 numbers"
        return values

    def mask(self, name: str) -> Mask:
        return Mask.from_bools(np.array([bit == "1" for bit in self.text(name)]))


def bits(values: Vector) -> bytes:
    return values.astype("<f4").tobytes()


def the_manifest_text_is_canonical_and_has_the_digest(vectors: Vectors) -> None:
    manifest = Manifest.from_json(vectors.text("manifest_json").encode())
    assert manifest.json.decode() == vectors.text("manifest_json")
    assert manifest.digest == vectors.data("manifest_digest")


def the_seed_gives_the_initial_vector(vectors: Vectors) -> None:
    manifest = Manifest.from_json(vectors.text("manifest_json").encode())
    vector = initial_vector(manifest, int(vectors.text("initial_seed")))
    assert bytes(values_only.encode(vector)) == vectors.data("initial_vector")
    assert values_digest(vector) == vectors.data("initial_digest")


def the_seed_reaches_both_tails(vectors: Vectors) -> None:
    manifest = Manifest.from_json(vectors.text("tails_manifest").encode())
    vector = initial_vector(manifest, int(vectors.text("initial_seed")))
    assert vector[:64].min() < -1.44 and vector[:64].max() > 1.44  # where |q| > 0.425
    assert values_digest(vector) == vectors.data("tails_initial_digest")


def the_rules_of_the_paper_give_the_initial_vector(vectors: Vectors) -> None:
    layers = {"conv": nn.Conv2d(1, 2, 2), "norm": nn.GroupNorm(1, 2), "linear": nn.Linear(2, 2)}
    model = nn.Sequential(OrderedDict[str, nn.Module](layers))
    manifest = manifest_of(model, {"model": "paper"}, initialization="paper")
    assert manifest.json.decode() == vectors.text("paper_manifest")
    vector = initial_vector(manifest, int(vectors.text("initial_seed")))
    assert bytes(values_only.encode(vector)) == vectors.data("paper_initial_vector")


def a_chunk_has_the_checksum(vectors: Vectors) -> None:
    data = vectors.data("chunk_data")
    Receiver(len(data)).check(0, data, int(vectors.text("chunk_crc32"), 16))


def a_mask_as_a_frame(vectors: Vectors) -> None:
    kept = np.zeros(int(vectors.text("mask_zstd_size")), dtype=np.bool_)
    kept[[int(place) for place in vectors.text("mask_zstd_kept").split()]] = True
    decoded = masks.decompress(vectors.data("mask_zstd_payload"), kept.size)
    assert decoded == Mask.from_bools(kept).bits


def the_difference_of_two_masks(vectors: Vectors) -> None:
    held, mask = vectors.mask("difference_held"), vectors.mask("difference_mask")
    payload = vectors.data("difference_payload")
    assert masks.difference(mask.bits, held.bits) == payload
    assert masks.difference(payload, held.bits) == mask.bits


def a_mean(vectors: Vectors) -> None:
    weights = [int(weight) for weight in vectors.text("sum_weights").split()]
    bits_of_grid = fraction_bits(VALUE_BOUND, sum(weights))
    assert bits_of_grid == int(vectors.text("sum_fraction_bits"))
    total = ExactSum(4, bits_of_grid)
    for weight, values in zip(weights, vectors.text("sum_values").split(), strict=True):
        total.fold(np.frombuffer(bytes.fromhex(values), dtype="<f4"), weight)
    assert bits(total.mean()) == vectors.data("sum_mean")


def values_only_holds_the_kept_values_in_order(vectors: Vectors) -> None:
    mask, vector = vectors.mask("values_mask"), vectors.numbers("values_vector")
    payload = vectors.data("values_payload")
    assert bytes(values_only.encode(mask.gather(vector))) == payload
    assert mask.scatter(values_only.decode(payload, 3)).tolist() == [1.0, 0.0, -2.0, 0.5]


def a_mask_is_packed_from_the_lowest_bit(vectors: Vectors) -> None:
    mask = vectors.mask("mask_bits")
    assert mask.bits == vectors.data("mask_packed")
    assert mask.digest == vectors.data("mask_digest")


def check_both_ways(code: ValueCode, payload: bytes, values: Vector, base: Vector | None) -> None:
    assert bytes(blocks.encode(code, values, base)) == payload
    assert bits(blocks.decode(code, payload, values.size, base)) == bits(values)


def values_against_a_reference_and_against_none(vectors: Vectors) -> None:
    values, base = vectors.floats("reference_values"), vectors.floats("reference_base")
    check_both_ways(reference.CODE, vectors.data("reference_payload"), values, base)
    check_both_ways(reference.CODE, vectors.data("reference_none_payload"), values, None)


def frames_are_read(vectors: Vectors) -> None:
    base = (np.arange(1, 65) / 64).astype(np.float32)
    values = base.copy()
    values[::7] += np.float32(2.0**-20)
    payload = vectors.data("reference_frames_payload")
    assert payload[4:8] == bytes.fromhex("28b52ffd"), "its first section is a frame"
    assert bits(blocks.decode(reference.CODE, payload, 64, base)) == bits(values)


def lossy_changes(vectors: Vectors) -> None:
    """The page lists the received values; encoded again, they give the same bytes."""
    base = vectors.floats("lossy_base")
    for code in (bfloat16.CODE, int8.CODE, grid.Grid(8)):
        payload = vectors.data(f"{code.name}_payload")
        check_both_ways(code, payload, vectors.numbers(f"{code.name}_values"), base)


def coded_values_and_their_residual(vectors: Vectors) -> None:
    settings = RunSettings(value_type="int8", downloads="values")
    mean, residual = vectors.floats("coded_mean"), vectors.floats("coded_residual")
    values, payload, left = commit_values(settings, mean, residual)
    assert payload is not None and left is not None
    assert bytes(payload) == vectors.data("coded_payload")
    assert bits(blocks.decode(int8.CODE, payload, mean.size, None)) == bits(values)
    assert bits(values) == vectors.data("coded_values")
    assert bits(left) == vectors.data("coded_next_residual")


def compact_scores(vectors: Vectors) -> None:
    values, payload = vectors.floats("scores_values"), vectors.data("scores_payload")
    assert bits(scores.decode(payload, values.size)) == bits(values)
    zeros = np.zeros(values.size, dtype=np.uint32)  # the words that never round up
    assert bytes(scores.encode(values, int(np.count_nonzero(values)), zeros)) == payload


def a_sorted_mask_with_and_without_weights(vectors: Vectors) -> None:
    shapes = [
        tuple(int(size) for size in shape.split("x"))
        for shape in vectors.text("sorted_shapes").split()
    ]
    weights, mask = vectors.floats("sorted_weights"), vectors.mask("sorted_bits")
    for name, used in (("sorted_payload", None), ("sorted_weights_payload", weights)):
        payload = vectors.data(name)
        assert sorted_bits.decode(payload, shapes, used) == mask.bits
        assert bytes(sorted_bits.encode(mask.bits, shapes, used)) == payload


CHECKS: list[Callable[[Vectors], None]] = [
    the_manifest_text_is_canonical_and_has_the_digest,
    the_seed_gives_the_initial_vector,
    the_seed_reaches_both_tails,
    the_rules_of_the_paper_give_the_initial_vector,
    a_chunk_has_the_checksum,
    a_mask_as_a_frame,
    the_difference_of_two_masks,
    a_mean,
    values_only_holds_the_kept_values_in_order,
    a_mask_is_packed_from_the_lowest_bit,
    values_against_a_reference_and_against_none,
    frames_are_read,
    lossy_changes,
    coded_values_and_their_residual,
    compact_scores,
    a_sorted_mask_with_and_without_weights,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_vectors_hold(check: Callable[[Vectors], None]) -> None:
    check(Vectors(PAGE.read_text("utf-8")))


def test_no_vector_of_the_page_is_left_out() -> None:
    vectors = Vectors(PAGE.read_text("utf-8"))
    assert len(vectors) == NUM_VECTORS
    for check in CHECKS:
        check(vectors)
    assert vectors.unused == set()
