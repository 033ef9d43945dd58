"""Algorithm 1 and section 3 of the paper (Ohib et al. 2025, "SSFL"), sentence by sentence.

Each test quotes what it proves and does so with numbers small enough to check by hand. The
client's half (the gradient itself, training inside the mask) is proved in tests/learning.
"""

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ssfl.method.exact_sum import MAX_SCORE_FRACTION_BITS, ExactSum, fraction_bits
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import ClientId, Position, Work
from ssfl.strategies.registry import strategy_for
from strategies.steps import finish

Vector = npt.NDArray[np.float32]
CLIENTS = [ClientId(f"c{i}") for i in range(1, 6)]


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


def model_of(num_masked: int) -> Manifest:
    return Manifest((TensorSpec("w", (num_masked,), Role.MASKED, Init("zeros")),))


def mean(uploads: list[tuple[Vector, int]]) -> Vector:
    """Average scores or values as the coordinator does."""
    largest = max(float(np.abs(values).max()) for values, _ in uploads)
    bits = fraction_bits(largest, sum(n for _, n in uploads), MAX_SCORE_FRACTION_BITS)
    total = ExactSum(uploads[0][0].size, bits)
    for values, num_samples in uploads:
        total.fold(values, num_samples)
    return total.mean()


def masked(initial: Vector, scores: Vector, sparsity: str) -> ModelState:
    ssfl = strategy_for(RunSettings(sparsity=sparsity))
    return finish(ssfl, Work.SCORE, ssfl.begin(model_of(initial.size), initial), scores, 0)


def dense(state: ModelState) -> list[float]:
    assert state.mask is not None and state.values is not None
    return [float(value) for value in state.mask.scatter(state.values)]


def test_the_magnitude_is_taken_before_averaging() -> None:
    """3.2: "s_{k,j} = | dL(w_0; B_k) / dw_{0,j} * w_{0,j} |", then "s = sum_k p_k s_k".

    Two clients disagree on the sign of the first weight's effect. Averaged with signs it would
    cancel and be pruned; averaged as magnitudes it is the most salient.
    """
    weights = vector(2.0, 2.0)
    gradients = [vector(3.0, 0.5), vector(-3.0, 0.5)]
    signed = [gradient * weights for gradient in gradients]
    assert (signed[0] + signed[1]).tolist() == [0.0, 2.0]
    scores = mean([(np.abs(product), 1) for product in signed])
    assert scores.tolist() == [6.0, 1.0]
    state = masked(weights, scores, "0.5")
    assert dense(state) == [2.0, 0.0]


def test_scores_are_weighted_by_the_share_of_the_data() -> None:
    """3.2: "s = sum_{k=1}^{K} p_k s_k, where p_k = n_k / sum_{i=1}^{K} n_i".

    Three clients with 10, 20 and 70 samples: p = 0.1, 0.2, 0.7.
    """
    scores = mean([(vector(10.0, 0.0), 10), (vector(5.0, 1.0), 20), (vector(0.0, 2.0), 70)])
    assert scores.tolist() == [2.0, float(np.float32(1.6))]  # 1 + 1 + 0, 0 + 0.2 + 1.4


def test_more_examples_exert_proportionally_greater_influence() -> None:
    """3.2: "clients with more examples exert proportionally greater influence".

    One client alone wants the second weight; with more data than the other it decides.
    """
    for num_samples, expected in ((1, [7.0, 0.0]), (3, [0.0, 8.0])):
        scores = mean([(vector(1.0, 0.0), 2), (vector(0.0, 1.0), num_samples)])
        assert dense(masked(vector(7.0, 8.0), scores, "0.5")) == expected


def test_the_number_of_active_parameters_is_floored() -> None:
    """3.2: "the number of active parameters is floor((1 - sigma) * d)"."""
    for sparsity, d, active in (
        *(("0.9", 1000, 100), ("0.9", 1009, 100), ("0.5", 7, 3), ("0.7", 10, 3), ("0.95", 59, 2)),
    ):
        state = masked(np.ones(d, dtype=np.float32), np.ones(d, dtype=np.float32), sparsity)
        assert state.mask is not None
        assert state.mask.num_kept == active == int((1 - Fraction(sparsity)) * d)


def test_the_mask_has_ones_at_the_largest_scores() -> None:
    """3.2: "TopK returns a binary vector with ones at the indices of the largest values in s"."""
    state = masked(np.ones(6, dtype=np.float32), vector(0.3, 0.9, 0.1, 0.8, 0.2, 0.7), "0.5")
    assert state.mask is not None
    assert state.mask.bools().tolist() == [False, True, False, True, False, True]


def test_training_starts_from_the_initial_weights_on_the_mask() -> None:
    """Algorithm 1, line 12: "Server initializes sparse global model: w_{g,m}^0 <- w_0 . m"."""
    initial, scores = vector(0.5, -0.25, 4.0, -8.0), vector(0.0, 3.0, 1.0, 2.0)
    state = masked(initial, scores, "0.5")
    assert dense(state) == [0.0, -0.25, 0.0, -8.0]


def test_the_mask_remains_fixed_throughout_training() -> None:
    """3.2: "This mask is broadcast to all clients and remains fixed throughout training"."""
    ssfl = strategy_for(RunSettings(sparsity="0.5", rounds=5))
    state = masked(vector(1, 2, 3, 4), vector(4, 3, 2, 1), "0.5")
    agreed = state.mask
    for round_number in range(5):
        plan = ssfl.plan(Position(round_number, state.mask_epoch, 0), CLIENTS)
        assert plan is not None and plan.work is Work.TRAIN, "the mask is found once"
        state = finish(ssfl, Work.TRAIN, state, vector(0.0, 100.0 * round_number), round_number)
        assert state.mask == agreed
        assert state.mask_epoch == 1
        assert dense(state)[2:] == [0.0, 0.0], "masked parameters remain fixed at zero"
    assert ssfl.plan(Position(5, 1, 0), CLIENTS) is None


def test_mask_discovery_needs_a_single_round_with_every_client() -> None:
    """Algorithm 1, line 2: "for all clients k in {1, ..., K} in parallel"."""
    plan = strategy_for(RunSettings(clients_per_round=2)).plan(Position(0, 0, 0), CLIENTS)
    assert plan is not None
    assert (plan.work, plan.cohort) == (Work.SCORE, tuple(CLIENTS))


def test_a_round_selects_a_subset_of_clients() -> None:
    """Algorithm 1, line 14: "Server selects a subset of clients C' of {1, ..., K}"."""
    ssfl = strategy_for(RunSettings(clients_per_round=2))
    cohorts = set()
    for round_number in range(20):
        plan = ssfl.plan(Position(round_number, 1, 0), CLIENTS)
        assert plan is not None and set(plan.cohort) < set(CLIENTS) and len(plan.cohort) == 2
        cohorts.add(plan.cohort)
    assert len(cohorts) > 3


def test_client_models_are_averaged_by_data_size_over_the_subset() -> None:
    """Algorithm 1: "w_{g,m}^{r+1} <- sum_{k in C'} n_k / (sum_{j in C'} n_j) w_k".

    Clients with 1 and 3 samples took part, so the weights are 1/4 and 3/4.
    """
    ssfl = strategy_for(RunSettings(sparsity="0.5"))
    state = masked(vector(1, 2, 3, 4), vector(4, 3, 2, 1), "0.5")
    averaged = mean([(vector(8.0, -4.0), 1), (vector(0.0, 4.0), 3)])
    assert dense(finish(ssfl, Work.TRAIN, state, averaged, 0)) == [2.0, 2.0, 0.0, 0.0]
