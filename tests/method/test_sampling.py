from dataclasses import replace
from itertools import permutations

from ssfl.method.sampling import sample_cohort
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

CLIENTS = ["c1", "c2", "c3", "c4", "c5"]
TWO_OF_FIVE = RunSettings(clients_per_round=2, seed=7)


def test_without_a_number_everyone_takes_part() -> None:
    assert sample_cohort(RunSettings(), 0, 0, ["b", "c", "a"]) == ["a", "b", "c"]


def test_a_number_above_the_clients_at_hand_takes_everyone() -> None:
    assert sample_cohort(TWO_OF_FIVE, 0, 0, ["b"]) == ["b"]
    assert sample_cohort(TWO_OF_FIVE, 0, 0, ["b", "a"]) == ["a", "b"]


def test_a_cohort_comes_from_the_stream_of_its_seed_round_and_attempt() -> None:
    chosen = Stream(7, "cohort", 3, 1).choose(5, 2).tolist()
    assert sample_cohort(TWO_OF_FIVE, 3, 1, CLIENTS) == [CLIENTS[i] for i in chosen]


def test_the_cohorts_of_a_seed_never_change() -> None:
    cohorts = [sample_cohort(TWO_OF_FIVE, number, 0, CLIENTS) for number in range(4)]
    assert cohorts == [["c3", "c5"], ["c1", "c5"], ["c2", "c5"], ["c1", "c5"]]


def test_the_order_of_the_names_does_not_matter() -> None:
    cohorts = {tuple(sample_cohort(TWO_OF_FIVE, 0, 0, order)) for order in permutations(CLIENTS)}
    assert len(cohorts) == 1


def test_round_attempt_and_seed_each_draw_anew() -> None:
    def drawn(seed: int, round_number: int, attempt: int) -> tuple[str, ...]:
        settings = replace(TWO_OF_FIVE, seed=seed)
        return tuple(sample_cohort(settings, round_number, attempt, CLIENTS))

    assert len({drawn(7, number, 0) for number in range(20)}) > 5
    assert len({drawn(7, 0, attempt) for attempt in range(20)}) > 5
    assert len({drawn(seed, 0, 0) for seed in range(20)}) > 5


def test_over_many_rounds_everyone_is_chosen_about_equally_often() -> None:
    hits = dict.fromkeys(CLIENTS, 0)
    for number in range(1000):
        for client in sample_cohort(TWO_OF_FIVE, number, 0, CLIENTS):
            hits[client] += 1
    # 400 expected; five standard deviations are 5 * sqrt(1000 * 0.4 * 0.6) = 77.
    assert all(abs(count - 400) < 77 for count in hits.values())
