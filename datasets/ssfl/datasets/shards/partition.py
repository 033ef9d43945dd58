"""Splitting one data set among clients, seeded; every sample is used exactly once.

iid                   shuffled samples, dealt out; sizes differ by at most one
dirichlet             the paper's split: client i has a class mix q_i ~ Dirichlet(alpha) and draws
                      the class of each of its samples from q_i, renormalised over the classes
                      that still have samples; sizes differ by at most one. Clients draw in a
                      shuffled order, one sample at a time, so that no client is left with only
                      what the others did not want
dirichlet-unbalanced  each class is cut among the clients by shares ~ Dirichlet(alpha); sizes vary
classes               every client has exactly n classes, every class nearly equally many clients,
                      and its samples are dealt evenly to them

Test samples follow the training samples: each class is cut in proportion to the clients'
training counts, so that the local test sets together are the whole test set, once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.shards.dirichlet import dirichlet
from ssfl.datasets.shards.draw import draw_classes
from ssfl.datasets.errors import PartitionError
from ssfl.datasets.shards.grouping import narrow, order_by, split_by
from ssfl.datasets.wording import plural
from ssfl.method.streams import Stream

Labels = npt.NDArray[np.integer[Any]]
Indices = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

KINDS = ("dirichlet", "dirichlet-unbalanced", "classes", "iid")
MIN_ALPHA, MAX_ALPHA = 1e-6, 1e6


def partition(
    labels: Labels,
    clients: int,
    kind: str,
    alpha: float,
    seed: int,
    classes_per_client: int = 2,
    class_names: Sequence[str] = (),
) -> list[Indices]:
    """Return each client's sample indices, ascending, for labels 0, 1, …

    `alpha` is for the Dirichlet kinds, `classes_per_client` for `classes`; the names of classes
    are for messages.
    """
    if kind not in KINDS:
        raise PartitionError(f"the partition must be one of {', '.join(KINDS)}, got {kind!r}")
    if not 1 <= clients <= len(labels):
        upto = f"1 to {len(labels)}" if len(labels) > 1 else "1"
        raise PartitionError(
            f"cannot split {plural(len(labels), 'training sample')} among "
            f"{plural(clients, 'client')}: each needs at least one, so ask for --clients {upto}"
        )
    if kind == "iid":
        return split_by(_iid(len(labels), clients, seed), clients)
    present, counts = _classes_present(labels)
    codes = narrow(np.cumsum(np.bincount(labels) > 0) - 1, len(present))[labels]  # without gaps
    if kind == "classes":
        names = [class_names[label] if class_names else str(label) for label in present]
        held = _choose_holders(counts, clients, classes_per_client, seed, names)
        return split_by(_deal(codes, held, seed), clients)
    if not MIN_ALPHA <= alpha <= MAX_ALPHA:
        raise PartitionError(f"--alpha must be between 0.000001 and 1000000, got {alpha:g}")
    if kind == "dirichlet":
        return split_by(_balanced(codes, counts, clients, alpha, seed), clients)
    parts = split_by(_unbalanced(codes, counts, clients, alpha, seed), clients)
    _refuse_empty(parts, alpha, seed)
    return parts


def count_classes(labels: Labels, parts: list[Indices], num_classes: int) -> Indices:
    """Return how many samples of each class each part has: (parts, num_classes)."""
    counts = [np.bincount(labels[part], minlength=num_classes) for part in parts]
    return np.array(counts, dtype=np.int64)


def partition_test(test_labels: Labels, train_counts: Indices) -> list[Indices]:
    """Return each client's test indices, ascending, for training counts (clients, num_classes).

    A class that nobody trains on is dealt out evenly.
    """
    clients, num_classes = train_counts.shape

    def owners(label: int, size: int) -> Indices:
        counts = train_counts[:, label]
        counts = counts if counts.any() else np.ones_like(counts)
        # Rounded, not cut off: else the first clients would lose a little of every class.
        cuts = (2 * np.cumsum(counts) * size + counts.sum()) // (2 * counts.sum())
        return np.searchsorted(cuts, np.arange(size), side="right")

    sizes = np.bincount(test_labels, minlength=num_classes)
    return split_by(_assign_owners(order_by(test_labels, num_classes), sizes, owners), clients)


def client_mixes(alpha: float, clients: int, num_classes: int, seed: int) -> Doubles:
    """Return the class mix that each client of `dirichlet` wishes for: (clients, num_classes)."""
    return dirichlet(alpha, clients, num_classes, Stream(seed, "partition", "mixes"))


def _iid(samples: int, clients: int, seed: int) -> Indices:
    owner = np.empty(samples, dtype=np.int64)
    owner[Stream(seed, "partition", "samples").permutation(samples)] = np.arange(samples) % clients
    return owner


def _balanced(codes: Labels, counts: Indices, clients: int, alpha: float, seed: int) -> Labels:
    """Return the client of each sample: equal sizes, each client's classes from its own mix."""
    samples = len(codes)
    slots = narrow(np.arange(samples) % clients, clients)  # client of each slot: equal sizes
    slots = slots[Stream(seed, "partition", "slots").permutation(samples)]
    mixes = client_mixes(alpha, clients, len(counts), seed)
    draws = Stream(seed, "partition", "draws")
    drawn = draw_classes(slots, mixes, counts, draws.uniform(samples))
    owner = np.empty_like(slots)
    owner[_shuffled_by_class(codes, len(counts), seed)] = slots[order_by(drawn, len(counts))]
    return owner


def _unbalanced(codes: Labels, counts: Indices, clients: int, alpha: float, seed: int) -> Indices:
    """Return the client of each sample: the shares of every class from a draw of its own."""
    shares = dirichlet(alpha, len(counts), clients, Stream(seed, "partition", "shares"))

    def owners(label: int, size: int) -> Indices:
        cuts = np.rint(np.cumsum(shares[label]) * size).astype(np.int64)
        cuts[-1] = size
        return np.searchsorted(cuts, np.arange(size), side="right")

    return _assign_owners(_shuffled_by_class(codes, len(counts), seed), counts, owners)


def _choose_holders(
    counts: Indices, clients: int, per_client: int, seed: int, names: Sequence[str]
) -> list[Indices]:
    """Return the clients that hold each class; refuse if not every sample finds a client."""
    classes = len(counts)
    if not 1 <= per_client <= classes:
        raise PartitionError(
            f"--classes-per-client {per_client} is impossible: there are training samples of "
            f"{plural(classes, 'class')}"
        )
    if clients * per_client < classes:
        raise PartitionError(
            f"with --clients {clients} and --classes-per-client {per_client} only "
            f"{clients * per_client} of the {classes} classes are held, so samples would be left "
            "out: ask for at least "
            f"{-(-classes // per_client)} --clients or {-(-classes // clients)} "
            "--classes-per-client"
        )
    stream = Stream(seed, "partition", "holders")
    times = np.zeros(classes, dtype=np.int64)  # how many clients hold each class so far
    held: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        rarest = np.lexsort((stream.words(classes), times))[:per_client]
        times[rarest] += 1
        for one in rarest:
            held[one].append(client)
    short = np.flatnonzero(counts < times)
    if short.size:
        one = int(short[0])
        raise PartitionError(
            f"class {names[one]!r} has {plural(counts[one], 'sample')} for the {times[one]} "
            "clients that are to hold it, so some would get none: ask for fewer --clients or fewer "
            "--classes-per-client, or drop the rare classes"
        )
    return [np.array(holders) for holders in held]


def _deal(codes: Labels, held: list[Indices], seed: int) -> Indices:
    """Return the client of each sample: each class dealt evenly to its holders."""
    counts = np.bincount(codes)
    # Begin at another holder in each class, so that what does not divide falls on different ones.
    begin = Stream(seed, "partition", "first holder").words(len(held))

    def owners(label: int, size: int) -> Indices:
        holders = np.roll(held[label], -int(begin[label] % np.uint64(len(held[label]))))
        return holders[np.arange(size) % len(holders)]

    return _assign_owners(_shuffled_by_class(codes, len(held), seed), counts, owners)


def _shuffled_by_class(codes: Labels, num_classes: int, seed: int) -> Indices:
    """Return all samples, class after class, in random order inside each."""
    shuffled = Stream(seed, "partition", "samples").permutation(len(codes))[::-1]
    return shuffled[order_by(codes[shuffled], num_classes)]


def _assign_owners(ordered: Indices, sizes: Indices, owners: Callable[[int, int], Indices]) -> Indices:
    """Return the owner of each sample, given samples class after class and a rule per class."""
    owner = np.empty(len(ordered), dtype=np.int64)
    ends = np.cumsum(sizes)
    for label in np.flatnonzero(sizes):
        start, end = int(ends[label] - sizes[label]), int(ends[label])
        owner[ordered[start:end]] = owners(int(label), end - start)
    return owner


def _classes_present(labels: Labels) -> tuple[Indices, Indices]:
    """Return the classes that have samples, and how many each has."""
    counts = np.bincount(labels)
    present = np.flatnonzero(counts)
    return present, counts[present]


def _refuse_empty(parts: Sequence[Indices], alpha: float, seed: int) -> None:
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        others = f" and {plural(len(empty) - 1, 'other')}" if len(empty) > 1 else ""
        raise PartitionError(
            f"client {empty[0]}{others} of {len(parts)} would be left without samples by "
            f"--alpha {alpha:g} --seed {seed}: try a larger --alpha, fewer --clients or "
            "another --seed"
        )
