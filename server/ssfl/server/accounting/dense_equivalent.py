"""The dense equivalent: bytes of the same transfers with the whole model as float32.

Up: every counted update. Down: every model sent as values (to train, test or score) to an asked
client that did not hold it yet. It is compared with the bytes of values, of masks that rounds move
and of evaluations.

Two models are not counted, since they are not sent as values. Clients build the first model from
the seed, or receive it with the first scoring as `initial` in the ledger; only if no client scores,
as in dense FedAvg from trained weights, is it sent as values and counted. Clients that scored
derive the first model of a new mask from the model they scored.

If clients have their own masks, the values that a client's mask keeps and the whole model count as
two models: a client that holds one is still sent the other.
"""

from collections.abc import Iterable

from ssfl.strategies.contract import ClientId

BYTES_PER_VALUE = 4
COMPARED = ("values", "round_masks", "evaluation")  # phases of the ledger


class ModelHolders:
    """The clients that hold the newest model; counts those it must be sent to."""

    def __init__(self, *, is_first: bool = True, own_masks: bool = False) -> None:
        """`is_first`: no round has changed the model yet."""
        self._is_first = is_first
        self._own_masks = own_masks
        self._copies: set[tuple[ClientId, bool]] = set()  # True: the whole model, despite a mask
        self._num_first = 0  # clients asked to train or test the first model without scoring it

    def asked(self, clients: Iterable[ClientId], *, to_test: bool = False) -> int:
        """Return how many of the clients must be sent the model; they hold it from now on."""
        whole = to_test and self._own_masks
        new = {(client, whole) for client in clients} - self._copies
        self._copies |= new
        if self._is_first:
            self._num_first += len(new)
            return 0
        return len(new)

    def scored(self, clients: Iterable[ClientId]) -> int:
        """Note a mask agreed from their scores; return how many were sent the model to score it."""
        scorers = {(client, False) for client in clients}
        if self._is_first:  # sent as `initial`, if at all
            self._copies |= scorers
            return 0
        lacked, self._copies = len(scorers - self._copies), scorers
        return lacked

    def trained(self, sent_bytes: int) -> int:
        """Note that a round produced a new model, which no client holds yet.

        Return how many clients were sent the first model as values, if this round replaced it;
        else 0.
        """
        found = self._num_first if self._is_first and sent_bytes else 0
        self._is_first, self._num_first, self._copies = False, 0, set()
        return found
