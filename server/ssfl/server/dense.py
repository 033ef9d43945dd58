"""What the same transfers would have taken with every value of the model as float32.

Up: every update that counted. Down: every client that was asked to train, test or personalize a
model it did not hold yet; a client that has tested a model is not sent it again to train on, and
would not be by others. Bytes that are compared with it: those of values and evaluations.
"""

from collections.abc import Iterable

from ssfl.method.strategies.contract import ClientId

BYTES_PER_VALUE = 4
COMPARED = ("values", "evaluation")  # phases of the ledger


class Holders:
    """Who has the newest model."""

    def __init__(self) -> None:
        self._clients: set[ClientId] = set()

    def asked(self, clients: Iterable[ClientId]) -> int:
        """Return how many of them have to be sent the model; they hold it from now on."""
        new = set(clients) - self._clients
        self._clients |= new
        return len(new)

    def renewed(self) -> None:
        """There is another model: nobody holds it."""
        self._clients.clear()
