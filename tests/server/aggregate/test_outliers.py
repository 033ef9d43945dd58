"""Outlier scores: decided by the largest score of each report in the journal."""

import pytest

from ssfl.server.aggregate.step_sum import outliers
from ssfl.server.run.facts import UploadAccepted
from ssfl.strategies.contract import ClientId


def found(*largest: float) -> list[str]:
    names = [ClientId(f"c{number}") for number in range(len(largest))]
    uploads = {n: UploadAccepted(1, n, "aa", one) for n, one in zip(names, largest, strict=True)}
    return list(outliers(uploads, names))


@pytest.mark.parametrize(
    ("largest", "excluded"),
    [
        ((1.0, 2.0, 1e30), ["c2"]),
        ((1e30, 2.0, 1.0), ["c0"]),
        ((1.0, 2.0, 2.1e6), ["c2"]),
        ((1.0, 2.0, 2e6), []),  # a million times the median is not above it
        ((1.0, 1.0, 1.0, 1e9, 1e30), ["c3", "c4"]),
        ((1.0, 1e30), []),  # of two clients, either could be wrong
        ((1e30,), []),
        ((), []),
        ((0.0, 0.0, 1.0), []),  # most have only zeros: the others count
        ((0.0, 1.0, 1.0, 1e30), ["c3"]),
        ((1e-30, 2e-30, 1e-20), ["c2"]),
        ((1e38, 3e38, 2e38), []),
    ],
)
def test_a_score_above_a_million_times_the_median_is_an_outlier(
    largest: tuple[float, ...], excluded: list[str]
) -> None:
    assert found(*largest) == excluded


def test_only_reports_of_the_closed_step_are_compared() -> None:
    names = [ClientId(name) for name in "abc"]
    uploads = {
        n: UploadAccepted(1, n, "aa", one) for n, one in zip(names, (1, 1, 1e9), strict=True)
    }
    assert outliers(uploads, names[:2]) == ()
