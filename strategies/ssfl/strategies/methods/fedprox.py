"""FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks").

    client k:  minimise F_k(w) + mu / 2 * |w - w_t|^2 by SGD, from the received model w_t
    server:    w_{t+1} <- mean of the w_k

Choices where the paper leaves room:
- The gradient mu * (w - w_t) of the proximal term is added to the gradient of the batch. Clipping,
  momentum and weight decay apply to the sum, as if the loss had the term.
- The paper allows clients to solve their problem to different accuracies. Here all clients train
  for the local epochs or steps of the run.
- Clients are sampled uniformly, and the mean weighs them as the run says. The experiments of the
  paper weigh by samples; its analysis samples by samples and weighs equally.
- The paper tunes mu from 0.001, 0.01, 0.1 and 1 for each data set.
"""

from dataclasses import dataclass

from ssfl.method.settings import setting
from ssfl.method.training_rules import TrainingRule
from ssfl.strategies.contract import ClientHalf, Pull, Received, Rule


@dataclass(frozen=True)
class FedProxOptions:
    """Hyper-parameters."""

    mu: float = setting(0.01, "strength of the pull towards the received model; 0: FedAvg")


class FedProx(Rule):
    """FedAvg with a proximal term at the clients."""

    Options = FedProxOptions

    def client(self) -> ClientHalf:
        return FedProxClient(self.options.mu)


class FedProxClient(ClientHalf):
    """Pulls the weights towards the received model in every step."""

    can_be_stacked = True

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def rules(self, received: Received) -> tuple[TrainingRule, ...]:
        return (Pull(received.values, self.mu, in_gradient=True),)
