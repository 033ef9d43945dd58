import hashlib

import numpy as np
import pytest

from ssfl.method.streams import Stream

MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
WORD = (1 << 64) - 1


def philox(key: tuple[int, int], counter: int) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011), as written in the paper: four words of a counter."""
    x = [(counter >> 64 * i) & WORD for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        low, high = MULTIPLIERS[0] * x[0], MULTIPLIERS[1] * x[2]
        x = [(high >> 64) ^ x[1] ^ k0, high & WORD, (low >> 64) ^ x[3] ^ k1, low & WORD]
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return x


def test_the_words_never_change() -> None:
    assert [hex(word) for word in Stream(0, "initial", "conv.weight").words(4).tolist()] == [
        "0x73deaba4b0680105", "0x36e5970aeec2490", "0x9e24fdaa884d98c7", "0xcd2674d808fc27b4",
    ]  # fmt: skip
    assert [hex(word) for word in Stream(2**63 - 1, "batches", 12, "c1").words(2).tolist()] == [
        "0x256d7f225abe907", "0xd038d64501585223",
    ]  # fmt: skip


def test_the_words_are_philox_keyed_by_the_name() -> None:
    digest = hashlib.sha256(b"ssfl\x007\x00cohort\x003\x00c1").digest()
    key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")
    expected = [word for counter in (1, 2, 3) for word in philox(key, counter)]
    assert Stream(7, "cohort", 3, "c1").words(12).tolist() == expected


def test_numbers_permutations_and_choices_never_change() -> None:
    assert [x.hex() for x in Stream(0, "initial", "conv.weight").uniform(3).tolist()] == [
        "0x1.cf7aae92c1a02p-2", "0x1.b72cb85776140p-7", "0x1.3c49fb55109b3p-1",
    ]  # fmt: skip
    assert Stream(7, "cohort", 3, 0).permutation(8).tolist() == [6, 4, 0, 1, 2, 3, 5, 7]
    assert Stream(7, "cohort", 3, 0).choose(8, 3).tolist() == [0, 4, 6]


def test_a_stream_continues_where_it_stopped() -> None:
    whole, parts = Stream(1, "x").words(10), Stream(1, "x")
    assert [*parts.words(3).tolist(), *parts.words(7).tolist()] == whole.tolist()


@pytest.mark.parametrize(
    "other",
    [Stream(1, "a", 2), Stream(0, "b", 2), Stream(0, "a", 3), Stream(0, "a"), Stream(0, "a", 2, 0)],
)
def test_another_key_is_another_stream(other: Stream) -> None:
    assert not set(Stream(0, "a", 2).words(8).tolist()) & set(other.words(8).tolist())


def test_parts_of_a_key_are_separated() -> None:
    assert Stream(0, "a", 12, 3).words(1) != Stream(0, "a", 1, 23).words(1)


def test_uniform_numbers_lie_strictly_inside_zero_and_one(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = np.array([0, 2**64 - 1, 2**12 - 1, 2**63], dtype=np.uint64)
    monkeypatch.setattr(Stream, "words", lambda _self, _count: edges)
    assert Stream(0, "x").uniform(4).tolist() == [2**-53, 1 - 2**-53, 2**-53, 0.5 + 2**-53]


def test_a_permutation_holds_every_number_once() -> None:
    assert sorted(Stream(5, "x").permutation(1000).tolist()) == list(range(1000))
    assert Stream(5, "x").permutation(0).tolist() == []


def test_a_choice_is_ascending_and_without_repeats() -> None:
    for size in range(6):
        for count in range(size + 1):
            chosen = Stream(size, "x", count).choose(size, count).tolist()
            assert chosen == sorted(set(chosen)) and len(chosen) == count
            assert all(0 <= number < size for number in chosen)


def test_every_number_is_chosen_about_equally_often() -> None:
    hits = np.zeros(10)
    for round_number in range(2000):
        hits[Stream(0, "x", round_number).choose(10, 3)] += 1
    # 600 expected; five standard deviations of a binomial are 5 * sqrt(2000 * 0.3 * 0.7) = 102.
    assert np.abs(hits - 600).max() < 102
