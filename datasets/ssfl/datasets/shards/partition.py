"""Split a data set among clients with a seed; every sample is used exactly once.

iid                   samples are shuffled and dealt out; sizes differ by at most one
dirichlet             the paper's split: client i has a class mix q_i ~ Dirichlet(alpha) and draws
                      the class of each of its samples from q_i, renormalised over the classes
                      that still have samples; sizes differ by at most one. Clients draw one sample
                      at a time in a shuffled order, so that no client gets only the remainders
dirichlet-unbalanced  each class is cut among the clients by shares ~ Dirichlet(alpha); sizes vary
classes               every client has exactly n classes; every class has nearly the same number
                      of clients, and its samples are dealt evenly to them

Test samples follow the training samples: each class is cut in proportion to the clients' training
counts, so that the local test sets together are the whole test set.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ssfl.datasets.errors import PartitionError
from ssfl.datasets.shards.draw import dirichlet, draw_classes, narrow, order_by, split_by
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

    `alpha` applies to the Dirichlet kinds, `classes_per_client` to `classes`. `class_names` appear
    in messages.
    """
    if kind not in KINDS:
        raise PartitionError(f"the partition must be one of {', '.join(KINDS)}, got {kind!r}")
    if not 1 <= clients <= len(labels):
        upto = f"1 to {len(labels)}" if len(labels) > 1 else "1"
        raise PartitionError(
            f"cannot split {plural(len(labels), 'training sample')} among "
            f"{plural(clients, 'client')}: each needs at least one, so use --clients {upto}"
        )
    if kind == "iid":
        return split_by(_iid(len(labels), clients, seed), clients)
    all_counts = np.bincount(labels)
    present = np.flatnonzero(all_counts)
    counts = all_counts[present]
    # Classes renumbered without gaps.
    codes = narrow(np.cumsum(all_counts > 0) - 1, len(present))[labels]
    if kind == "classes":
        names = [class_names[label] if class_names else str(label) for label in present.tolist()]
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
    """Return the number of samples per part and class: (parts, num_classes)."""
    counts = [np.bincount(labels[part], minlength=num_classes) for part in parts]
    return np.array(counts, dtype=np.int64)


def partition_test(test_labels: Labels, train_counts: Indices) -> list[Indices]:
    """Return each client's test indices, ascending, for training counts (clients, num_classes).

    A class without training samples is dealt out evenly.
    """
    clients, num_classes = train_counts.shape

    def owners(label: int, size: int) -> Indices:
        counts = train_counts[:, label]
        counts = counts if counts.any() else np.ones_like(counts)
        # Rounding down would give the first clients slightly less of every class.
        cuts = (2 * np.cumsum(counts) * size + counts.sum()) // (2 * counts.sum())
        return np.searchsorted(cuts, np.arange(size), side="right")

    sizes = np.bincount(test_labels, minlength=num_classes)
    return split_by(_assign_owners(order_by(test_labels, num_classes), sizes, owners), clients)


def client_mixes(alpha: float, clients: int, num_classes: int, seed: int) -> Doubles:
    """Return the class mix from which each client of `dirichlet` draws: (clients, num_classes)."""
    return dirichlet(alpha, clients, num_classes, Stream(seed, "partition", "mixes"))


def _iid(samples: int, clients: int, seed: int) -> Indices:
    owner = np.empty(samples, dtype=np.int64)
    owner[Stream(seed, "partition", "samples").permutation(samples)] = np.arange(samples) % clients
    return owner


def _balanced(codes: Labels, counts: Indices, clients: int, alpha: float, seed: int) -> Labels:
    """Return the client of each sample; sizes are equal, classes come from each client's mix."""
    samples = len(codes)
    slots = narrow(np.arange(samples) % clients, clients)  # the client of each slot
    slots = slots[Stream(seed, "partition", "slots").permutation(samples)]
    mixes = client_mixes(alpha, clients, len(counts), seed)
    draws = Stream(seed, "partition", "draws")
    drawn = draw_classes(slots, mixes, counts, draws.uniform(samples))
    owner = np.empty_like(slots)
    owner[_shuffled_by_class(codes, len(counts), seed)] = slots[order_by(drawn, len(counts))]
    return owner


def _unbalanced(codes: Labels, counts: Indices, clients: int, alpha: float, seed: int) -> Indices:
    """Return the client of each sample; the shares of every class are drawn separately."""
    shares = dirichlet(alpha, len(counts), clients, Stream(seed, "partition", "shares"))

    def owners(label: int, size: int) -> Indices:
        cuts = np.rint(np.cumsum(shares[label]) * size).astype(np.int64)
        cuts[-1] = size
        return np.searchsorted(cuts, np.arange(size), side="right")

    return _assign_owners(_shuffled_by_class(codes, len(counts), seed), counts, owners)


def _choose_holders(
    counts: Indices, clients: int, per_client: int, seed: int, names: Sequence[str]
) -> list[Indices]:
    """Return the clients that hold each class; raise PartitionError if that is impossible."""
    classes = len(counts)
    if not 1 <= per_client <= classes:
        raise PartitionError(
            f"--classes-per-client {per_client} is impossible: the training samples have "
            f"{plural(classes, 'class')}"
        )
    if clients * per_client < classes:
        raise PartitionError(
            f"with --clients {clients} and --classes-per-client {per_client} only "
            f"{clients * per_client} of the {classes} classes are held, so samples would be left "
            "out: use at least "
            f"{-(-classes // per_client)} --clients or {-(-classes // clients)} "
            "--classes-per-client"
        )
    stream = Stream(seed, "partition", "holders")
    num_holders = np.zeros(classes, dtype=np.int64)  # of each class so far
    held: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        rarest = np.lexsort((stream.words(classes), num_holders))[:per_client]
        num_holders[rarest] += 1
        for label in rarest:
            held[label].append(client)
    short = np.flatnonzero(counts < num_holders)
    if short.size:
        rare = int(short[0])
        raise PartitionError(
            f"class {names[rare]!r} has {plural(counts[rare], 'sample')} for the "
            f"{num_holders[rare]} clients that should hold it, so some would get none: use fewer "
            "--clients or fewer --classes-per-client, or drop the rare classes"
        )
    return [np.array(holders) for holders in held]


def _deal(codes: Labels, held: list[Indices], seed: int) -> Indices:
    """Return the client of each sample; each class is dealt evenly to its holders."""
    counts = np.bincount(codes)
    # Each class starts at another holder, so that remainders go to different clients.
    begin = Stream(seed, "partition", "first holder").words(len(held))

    def owners(label: int, size: int) -> Indices:
        holders = np.roll(held[label], -int(begin[label] % np.uint64(len(held[label]))))
        return holders[np.arange(size) % len(holders)]

    return _assign_owners(_shuffled_by_class(codes, len(held), seed), counts, owners)


def _shuffled_by_class(codes: Labels, num_classes: int, seed: int) -> Indices:
    """Return all samples ordered by class, in random order within each class."""
    shuffled = Stream(seed, "partition", "samples").permutation(len(codes))[::-1]
    return shuffled[order_by(codes[shuffled], num_classes)]


def _assign_owners(
    ordered: Indices, sizes: Indices, owners: Callable[[int, int], Indices]
) -> Indices:
    """Return the owner of each sample, given samples ordered by class and a rule per class."""
    owner = np.empty(len(ordered), dtype=np.int64)
    ends = np.cumsum(sizes)
    for label in np.flatnonzero(sizes):
        start, end = int(ends[label] - sizes[label]), int(ends[label])
        owner[ordered[start:end]] = owners(int(label), end - start)
    return owner


def _refuse_empty(parts: Sequence[Indices], alpha: float, seed: int) -> None:
    empty = [client for client, part in enumerate(parts) if not len(part)]
    if empty:
        others = f" and {plural(len(empty) - 1, 'other')}" if len(empty) > 1 else ""
        raise PartitionError(
            f"client {empty[0]}{others} of {len(parts)} would get no samples with "
            f"--alpha {alpha:g} --seed {seed}: try a larger --alpha, fewer --clients or "
            "another --seed"
        )
