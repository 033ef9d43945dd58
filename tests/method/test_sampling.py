from dataclasses import replace
from itertools import permutations

from ssfl.method.sampling import cohort_size, sample_cohort
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream

CLIENTS = ["c1", "c2", "c3", "c4", "c5"]
TWO_OF_FIVE = RunSettings(clients_per_round=2, seed=7)


def test_without_a_number_all_clients_train() -> None:
    assert sample_cohort(RunSettings(), 0, 0, ["b", "c", "a"]) == ["a", "b", "c"]


def test_a_number_above_the_available_clients_selects_all() -> None:
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


def test_round_attempt_and_seed_each_give_another_cohort() -> None:
    def drawn(seed: int, round_number: int, attempt: int) -> tuple[str, ...]:
        settings = replace(TWO_OF_FIVE, seed=seed)
        return tuple(sample_cohort(settings, round_number, attempt, CLIENTS))

    assert len({drawn(7, number, 0) for number in range(20)}) > 5
    assert len({drawn(7, 0, attempt) for attempt in range(20)}) > 5
    assert len({drawn(seed, 0, 0) for seed in range(20)}) > 5


def test_over_many_rounds_every_client_is_chosen_about_equally_often() -> None:
    hits = dict.fromkeys(CLIENTS, 0)
    for number in range(1000):
        for client in sample_cohort(TWO_OF_FIVE, number, 0, CLIENTS):
            hits[client] += 1
    # 400 expected; five standard deviations are 5 * sqrt(1000 * 0.4 * 0.6) = 77.
    assert all(abs(count - 400) < 77 for count in hits.values())


# -- a share of the clients


def test_a_fraction_is_rounded_to_whole_clients() -> None:
    quarter = RunSettings(client_fraction=0.25)
    assert [cohort_size(quarter, number) for number in (10, 100, 6)] == [3, 25, 2]
    assert cohort_size(RunSettings(client_fraction=1.0), 7) == 7


def test_a_fraction_is_never_below_min_clients() -> None:
    tenth = RunSettings(client_fraction=0.1, min_clients=3)
    assert [cohort_size(tenth, number) for number in (100, 20, 3, 2)] == [10, 3, 3, 2]


def test_a_fraction_draws_as_the_same_number_does() -> None:
    fraction = RunSettings(client_fraction=0.4, seed=7)
    for number in range(10):
        cohort = sample_cohort(fraction, number, 0, CLIENTS)
        assert cohort == sample_cohort(TWO_OF_FIVE, number, 0, CLIENTS)


# -- newcomers


MANY = [f"c{number:02}" for number in range(20)]
NEW = MANY[16:]
STRATA = RunSettings(clients_per_round=10, newcomers_per_round=3, seed=7)


def test_every_round_has_as_many_newcomers_as_were_set() -> None:
    for number in range(50):
        cohort = sample_cohort(STRATA, number, 0, MANY, NEW)
        assert cohort == sorted(set(cohort)) and len(cohort) == 10
        assert len(set(cohort) & set(NEW)) == 3


def test_without_newcomers_the_cohort_is_what_it_would_be_without_the_setting() -> None:
    plain = replace(STRATA, newcomers_per_round=0)
    for number in range(5):
        drawn = sample_cohort(plain, number, 0, MANY)
        assert sample_cohort(STRATA, number, 0, MANY) == drawn
        assert sample_cohort(STRATA, number, 0, MANY, ["gone"]) == drawn
        assert sample_cohort(plain, number, 0, MANY, NEW) == drawn


def test_fewer_newcomers_than_set_all_take_part_and_others_fill_up() -> None:
    cohort = sample_cohort(STRATA, 0, 0, MANY, NEW[:1])
    assert NEW[0] in cohort and len(cohort) == 10


def test_newcomers_fill_up_where_others_are_too_few() -> None:
    cohort = sample_cohort(STRATA, 0, 0, MANY, MANY[5:])
    assert set(MANY[:5]) <= set(cohort) and len(cohort) == 10


def test_no_more_newcomers_than_the_round_has_places() -> None:
    tight = replace(STRATA, clients_per_round=2)
    assert set(sample_cohort(tight, 0, 0, MANY, NEW)) <= set(NEW)


def test_within_each_stratum_every_client_is_chosen_about_equally_often() -> None:
    hits = dict.fromkeys(MANY, 0)
    for number in range(1000):
        for client in sample_cohort(STRATA, number, 0, MANY, NEW):
            hits[client] += 1
    # 3 of 4 newcomers: 750; 7 of 16 others: 437.5. Five standard deviations are 69 and 79.
    assert all(abs(hits[client] - 750) < 69 for client in NEW)
    assert all(abs(hits[client] - 437.5) < 79 for client in MANY[:16])
