"""Hits and false alarms of the loss-jump trigger on hand-made losses."""

from ssfl.study.alarms import WITHIN, Alarms, alarms, detection

CALM = [1.0, 1.1, 0.9, 1.0, 1.0]


def test_a_jump_when_clients_arrive_is_a_hit() -> None:
    assert detection([*CALM, 2.0, 1.5], 1.5, arrival=5) == Alarms(True, 0, 0, 5)
    assert detection([*CALM, 1.2, 2.0], 1.5, arrival=5) == Alarms(True, 1, 0, 5)


def test_an_alarm_before_is_false_and_one_much_later_is_no_hit() -> None:
    assert detection([*CALM, 2.0, *CALM, *CALM], 1.5, arrival=9) == Alarms(False, None, 1, 9)
    late = [*CALM, *[1.0] * WITHIN, 2.0]
    assert detection(late, 1.5, arrival=5) == Alarms(False, None, 0, 5)


def test_after_an_alarm_the_count_begins_again() -> None:
    assert alarms([*CALM, 2.0, 9.0, 9.0, 9.0, 9.0], 1.5) == [5]
    assert alarms([*CALM, 2.0, 2.0, 2.0, 2.0, 9.0], 1.5) == [5, 9]
