"""FedAvg (McMahan et al. 2017): the mean of the updates is the next model; every weight is kept."""

from ssfl.strategies.contract import Rule


class FedAvg(Rule):
    """Dense training rounds."""

    dense = True
