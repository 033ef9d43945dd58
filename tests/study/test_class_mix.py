"""Class mixes and the clients that are shown."""

from ssfl.method.streams import Stream
from ssfl.study.class_mix import class_counts, effective_classes, shown_clients
from ssfl.study.data import DataSpec


def test_the_counts_are_those_of_the_cut() -> None:
    counts = class_counts(DataSpec(clients=5, partition="classes", classes_per_client=2), seed=0)
    assert len(counts) == 5
    assert all(len(own) == 10 and sum(n > 0 for n in own) == 2 for own in counts.values())


def test_a_smaller_alpha_leaves_fewer_classes() -> None:
    means = []
    for alpha in (1000.0, 0.3, 0.001):
        counts = class_counts(DataSpec(clients=5, alpha=alpha), seed=0)
        means.append(sum(map(effective_classes, counts.values())) / 5)
    assert means[0] > 9.5 and means[0] > means[1] > means[2]


def test_random_best_and_worst_clients_are_named_once_each() -> None:
    accuracies = {f"c{number}": number / 10 for number in range(10)}
    found = shown_clients(accuracies, 3, Stream(0, "shown"))
    assert found["best"] == ["c9", "c8", "c7"] and found["worst"] == ["c0", "c1", "c2"]
    assert len(set(found["random"])) == 3 and set(found["random"]) < set(accuracies)
    assert shown_clients({"a": 1.0}, 3, Stream(0, "shown"))["random"] == ["a"]
