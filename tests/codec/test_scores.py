import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from codec.value_codes import bits, random_words
from ssfl.codec import scores
from ssfl.codec.errors import (
    CodecError,
    MalformedPayload,
    TrailingBytes,
    TruncatedPayload,
    UnfitValues,
)
from ssfl.codec.scores import BLOCK, MANTISSA_BITS, MAX_MANTISSA_BITS

Floats = npt.NDArray[np.float32]
LARGEST = 2.0**127  # of every number of mantissa bits, the step above is still finite
SCORE = st.floats(0, LARGEST, width=32, allow_subnormal=True)
MANTISSAS = st.integers(0, MAX_MANTISSA_BITS)


def exact(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


def received(
    values: Floats,
    num_coded: int | None = None,
    words: npt.NDArray[np.uint32] | None = None,
    mantissa_bits: int = MANTISSA_BITS,
) -> Floats:
    """Return the decoded scores; without words every score is truncated."""
    words = np.zeros(values.size, dtype=np.uint32) if words is None else words
    count = values.size if num_coded is None else num_coded
    payload = scores.encode(values, count, words, mantissa_bits)
    assert len(payload) <= scores.max_encoded_bytes(values.size)
    assert payload == scores.encode(values, count, words, mantissa_bits), "not deterministic"
    return scores.decode(payload, values.size)


def test_golden_bytes_both_ways() -> None:
    # 3 mantissa bits leave bits >> 20: 0.5 is 0x3f0, 3.0 is 0x404, 0.001 is 0x3a8, the lowest;
    # codes count from there, beginning at 1.
    payload = bytes.fromhex("03 a803  04000000 49005d01")
    values = exact(0.5, 0.0, 3.0, 0.001)
    assert bytes(scores.encode(values, 3, np.zeros(4, dtype=np.uint32))) == payload
    assert scores.decode(payload, 4).tolist() == [0.5, 0.0, 3.0, 2.0**-10]


@given(st.data())
def test_a_coded_score_is_one_of_its_two_neighbours(data: st.DataObject) -> None:
    size, mantissa_bits = data.draw(st.integers(0, 65)), data.draw(MANTISSAS)
    values = data.draw(hnp.arrays(np.float32, size, elements=SCORE))
    words = data.draw(hnp.arrays(np.uint32, size))
    got = received(values, size, words, mantissa_bits)
    shift = 23 - mantissa_bits
    below = values.view(np.uint32) >> shift
    reach = (int(values.max(initial=0).view(np.uint32)) >> shift) - 253  # 255 codes and no more
    for step, value, code in zip(below, got, got.view(np.uint32) >> shift, strict=True):
        assert code in (step, step + 1) or (value == 0 and step <= max(0, reach))


@given(st.lists(SCORE, min_size=1, max_size=65), MANTISSAS, st.integers(0, 70), st.data())
def test_the_largest_score_is_never_lost(
    drawn: list[float], mantissa_bits: int, num_coded: int, data: st.DataObject
) -> None:
    values = exact(*drawn)
    words = data.draw(hnp.arrays(np.uint32, values.size))
    got = received(values, num_coded, words, mantissa_bits)
    place = int(values.argmax())
    largest = int(values.view(np.uint32)[place]) >> (23 - mantissa_bits)
    assert int(got.view(np.uint32)[place]) >> (23 - mantissa_bits) in (largest, largest + 1)


@pytest.mark.parametrize("mantissa_bits", [0, 3, 7])
@pytest.mark.parametrize("score", [1.3, 1.0, 0.7, 1.99, 3e-39, 1e-44, 0.0])
def test_the_expectation_over_all_words_is_the_score_itself(
    score: float, mantissa_bits: int
) -> None:
    count = 1 << 20
    words = np.arange(count, dtype=np.uint32) << np.uint32(3)  # the 23 bits that can count
    values = np.full(count, score, dtype=np.float32)
    got = received(values, count, words, mantissa_bits)
    assert np.unique(got).size <= 2
    # Words in steps of 8: at most 8 in 2^(23 - m) off, times a step of 2^-m of the number.
    exponent = max(float(values[0]), 2.0**-126)
    slack = 2.0**-20 * exponent
    assert got.astype(np.float64).mean() == pytest.approx(float(values[0]), abs=slack)


def test_the_mean_of_many_clients_is_nearer_than_one_step() -> None:
    values = np.random.default_rng(1).lognormal(-8, 2, 1000).astype(np.float32)
    clients = 400
    total = np.zeros(1000)
    for client in range(clients):
        total += received(values, 1000, random_words(1000, seed=client))
    # A step is at most 1/8 of the score, so its standard deviation at most 1/16: 5 of them.
    coded = values >= values.max() * 2.0**-30
    error = np.abs(total / clients - values)[coded] / values[coded]
    assert coded.sum() > 900 and error.max() < 5 / 16 / clients**0.5


@pytest.mark.parametrize("size", [1000, BLOCK + 1, (1 << 21) + 3])
def test_about_num_coded_scores_are_coded(size: int) -> None:
    values = np.random.default_rng(2).lognormal(-8, 2, size).astype(np.float32)
    for share in (0.01, 0.3, 0.9):
        coded = np.count_nonzero(received(values, int(share * size), random_words(size)))
        # A step holds a few per cent of these scores, and the sample has its own error.
        assert share * size * 0.95 <= coded <= share * size * 1.1 + 0.05 * size


def test_coding_few_scores_drops_most_of_them() -> None:
    values = np.random.default_rng(3).lognormal(-8, 2, 10_000).astype(np.float32)
    for num_coded in (0, 1):
        got = received(values, num_coded)
        assert 1 <= np.count_nonzero(got) < 20
        assert got.argmax() == values.argmax()


def test_255_codes_reach_32_octaves_below_the_largest_score() -> None:
    values = exact(1.0, *(2.0**-n for n in range(1, 60)))
    got = received(values)
    assert got[:32].tolist() == values[:32].tolist()  # 254 eighths of an octave: 31.75
    assert got[32:].tolist() == [0.0] * 28


@pytest.mark.parametrize("size", [0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1])
def test_every_size_survives(size: int) -> None:
    values = np.where(np.arange(size) % 40 < 30, 2.0 ** -(np.arange(size) % 40), 0)
    values = values.astype(np.float32)
    assert received(values).tolist() == values.tolist()
    assert received(np.zeros(size, dtype=np.float32)).tolist() == [0.0] * size
    payload = scores.encode(values, size, np.zeros(size, dtype=np.uint32))
    places = [start for start, _ in scores.decode_blocks(payload, size)]
    assert places == [*range(0, size, BLOCK)]


def test_incompressible_codes_stay_within_the_bound() -> None:
    for size in (1, 65, BLOCK, BLOCK + 1):
        steps = np.random.default_rng(4).integers(900, 1154, size).astype(np.uint32)
        values = (steps << np.uint32(20)).view(np.float32)
        assert bits(received(values)) == bits(values)


def test_one_score_and_subnormal_scores() -> None:
    assert received(exact(0.75)).tolist() == [0.75]
    assert received(exact(0.0)).tolist() == [0.0]
    smallest = 2.0**-149
    assert received(exact(smallest, 3 * smallest)).tolist() == [0.0, 0.0]
    up = np.full(2, 2**32 - 1, dtype=np.uint32)
    assert received(exact(smallest, 3 * smallest), words=up).tolist() == [2.0**-129] * 2


def test_a_negative_zero_counts_as_zero() -> None:
    assert received(exact(1.0, -0.0, 2.0)).tolist() == [1.0, 0.0, 2.0]
    assert received(exact(-0.0, -0.0)).tolist() == [0.0, 0.0]
    assert received(exact(-0.0, -0.0, -0.0, 1.0), num_coded=2).tolist() == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, -1e-45])
def test_a_score_that_is_negative_or_not_finite_is_refused(bad: float) -> None:
    for values in (exact(bad), exact(1.0, bad, 2.0)):
        with pytest.raises(UnfitValues, match="finite and not negative"):
            received(values)


def test_a_score_that_could_round_to_infinity_is_refused() -> None:
    largest = np.array([0x7F700000], dtype=np.uint32).view(np.float32)  # the last step
    assert received(largest).tolist() == largest.tolist()
    above = np.array([0x7F700001], dtype=np.uint32).view(np.float32)
    with pytest.raises(UnfitValues, match="too close to the largest float32"):
        received(above)


@pytest.mark.parametrize("size", [0, 2, 4])
def test_a_wrong_number_of_random_words_is_refused(size: int) -> None:
    with pytest.raises(CodecError, match=f"{size} random words for 3 scores"):
        scores.encode(exact(1, 2, 3), 3, np.zeros(size, dtype=np.uint32))


@pytest.mark.parametrize("mantissa_bits", [-1, 8, 23])
def test_mantissa_bits_that_do_not_exist_are_refused(mantissa_bits: int) -> None:
    with pytest.raises(UnfitValues, match=f"not {mantissa_bits}"):
        received(exact(1.0), mantissa_bits=mantissa_bits)


@pytest.mark.parametrize("header", ["080100", "ff0100", "030000"])
def test_a_head_that_no_encoder_writes_is_refused(header: str) -> None:
    with pytest.raises(MalformedPayload, match="not the head"):
        scores.decode(bytes.fromhex(header + "0100000000"), 1)


def test_a_code_beyond_the_largest_float_is_refused() -> None:
    # With 0 mantissa bits step 255 is infinity: from a lowest of 254 on, code 1 is the last.
    assert scores.decode(bytes.fromhex("00fe00 0200000001 00"), 2).tolist() == [2.0**127, 0.0]
    for code in ("02", "ff"):
        with pytest.raises(MalformedPayload, match="beyond the largest float32"):
            scores.decode(bytes.fromhex("00fe00 01000000" + code), 1)


def test_every_cut_and_every_extra_byte_is_found() -> None:
    payload = bytes(scores.encode(exact(1, 2, 3, 4, 5), 5, np.zeros(5, dtype=np.uint32)))
    for length in range(len(payload)):
        with pytest.raises(TruncatedPayload):
            scores.decode(payload[:length], 5)
    with pytest.raises(TrailingBytes):
        scores.decode(payload + b"\0", 5)
    with pytest.raises(TrailingBytes):
        scores.decode(payload, 0)


@given(st.binary(max_size=60), st.integers(0, 40))
def test_any_bytes_are_scores_or_a_codec_error(payload: bytes, count: int) -> None:
    try:
        got = scores.decode(payload, count)
    except CodecError:
        return
    assert got.shape == (count,) and np.isfinite(got).all() and (got >= 0).all()
