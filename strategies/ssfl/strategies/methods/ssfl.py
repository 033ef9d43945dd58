"""SSFL (Ohib et al. 2025): agree on one mask before training, then FedAvg inside it.

Algorithm 1 of the paper: every client scores |gradient x weight| once, the scores are averaged by
data size, the global Top-k is the mask, and training starts from w0 on the mask. The mask comes
from the criterion (criteria.py); the rounds are those of `Rule`.
"""

from ssfl.strategies.contract import Rule


class Ssfl(Rule):
    """The mean of the updates, inside the mask."""
