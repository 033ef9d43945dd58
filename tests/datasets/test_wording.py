import pytest

from ssfl.datasets.wording import class_name, format_bytes, join_names, plural


def test_plural_adds_an_ending_unless_the_number_is_one() -> None:
    assert [plural(n, "sample") for n in (0, 1, 1200)] == [
        "0 samples",
        "1 sample",
        "1,200 samples",
    ]
    assert [plural(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]


def test_join_names_shows_the_first_twelve_names() -> None:
    names = [f"n{number}" for number in range(13)]
    assert join_names(names[:12]) == ", ".join(names[:12])
    assert join_names(names) == ", ".join(names[:12]) + " … (13 in all)"
    assert join_names({"a": 1}) == "a"
    assert join_names([]) == ""


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, "0.0 kB"),
        (2_345, "2.3 kB"),
        (999_999, "1000.0 kB"),
        (10**6, "1.0 MB"),
        (47_040_016, "47.0 MB"),
        (1_250_000_000, "1.2 GB"),
        (4 * 10**15, "4,000.0 TB"),
    ],
)
def test_a_number_of_bytes_has_a_suitable_unit(num_bytes: int, expected: str) -> None:
    assert format_bytes(num_bytes) == expected


def test_class_name_is_the_label_as_text() -> None:
    labels = [True, False, 3, 3.0, 3.5, "3.0", "yes"]
    assert [class_name(label) for label in labels] == [
        *("true", "false", "3", "3", "3.5", "3.0", "yes")
    ]
