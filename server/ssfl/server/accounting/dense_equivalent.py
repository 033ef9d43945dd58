"""What the same transfers would have taken with every value of the model as float32.

Up: every update that counted. Down: every model that was sent as values, to train on, to test or to
score: to each client that was asked and did not hold it yet. Bytes that are compared with it: those
of values and evaluations.

The first model is no such transfer. Clients build it from the seed, or it comes with the first
scoring and is `initial` in the ledger; only where nobody scores, as in dense FedAvg that begins
with trained weights, it travels as values. Nor is the model of a new mask for those who have
scored: each makes it of the one it scored. A client with a mask of its own is sent what that keeps,
whatever else it holds.
"""

from collections.abc import Iterable

from ssfl.method.strategies.contract import ClientId

BYTES_PER_VALUE = 4
COMPARED = ("values", "evaluation")  # phases of the ledger


def has_own_masks(strategy: str, criterion: str) -> bool:
    """Tell whether each client of a run with these settings trains under a mask of its own."""
    return strategy == "ssfl" and criterion == "client-random"


class ModelHolders:
    """Who has the newest model; counts how many have to be sent it."""

    def __init__(self, *, is_first: bool = True, own_masks: bool = False) -> None:
        """`is_first`: no round has changed the model yet."""
        self._is_first = is_first
        self._own_masks = own_masks
        self._copies: set[tuple[ClientId, bool]] = set()  # True: whole, though masks are personal
        self._num_first = 0  # asked to train or test the first model, without having scored it

    def asked(self, clients: Iterable[ClientId], *, to_test: bool = False) -> int:
        """Return how many of them have to be sent the model; they hold it from now on."""
        whole = to_test and self._own_masks
        new = {(client, whole) for client in clients} - self._copies
        self._copies |= new
        if self._is_first:
            self._num_first += len(new)
            return 0
        return len(new)

    def scored(self, clients: Iterable[ClientId]) -> int:
        """A mask was agreed of their scores; return how many had to be sent the model to score."""
        scorers = {(client, False) for client in clients}
        if self._is_first:  # it came as `initial`, if at all
            self._copies |= scorers
            return 0
        lacked, self._copies = len(scorers - self._copies), scorers
        return lacked

    def trained(self, sent_bytes: int) -> int:
        """A round made another model: nobody holds it.

        Return how many had to be sent the first one, if it was that: nobody, unless values have
        been sent so far.
        """
        found = self._num_first if self._is_first and sent_bytes else 0
        self._is_first, self._num_first, self._copies = False, 0, set()
        return found
