"""Sub-FedAvg: the three conditions of a step, masks of clients, and the mean over holders."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ssfl.learning.errors import ModelError
from ssfl.method.errors import DensityError, SettingsError
from ssfl.method.evaluation import Evaluation
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, Vector
from ssfl.method.settings import RunSettings
from ssfl.strategies.contract import (
    Answer,
    ClientId,
    Plan,
    Position,
    Received,
    Reduced,
    Reducer,
    StepDone,
    UploadParts,
    Work,
)
from ssfl.strategies.layerwise import top_by_layer
from ssfl.strategies.methods.sub_fedavg import (
    SubFedAvg,
    SubFedAvgOptions,
    counts_after_step,
    counts_to_target,
    mask_distance,
)
from ssfl.strategies.registry import check_settings, strategy_for
from strategies.scripted_site import (
    DictMemory,
    MaskUploads,
    ScriptedSite,
    bits_of,
    ignore,
    manifest_of,
    mask_of,
    received,
    vector,
    votes,
)
from strategies.small_site import SMALL, small_site

C1, C2, C3 = CLIENTS = [ClientId("c1"), ClientId("c2"), ClientId("c3")]
LAYERS = manifest_of(4, 4)
INITIAL = vector(1, 2, 3, 4, 5, 6, 7, 8, 60)
SETTINGS = RunSettings(strategy="sub-fedavg", sparsity="0.5", rounds=8, local_epochs=3)
FULL = "1111 1111"
# After the first epoch weights 0 and 4 are the smallest, after the last one weights 1 and 5.
FIRST = vector(1, 2, 3, 4, 1, 2, 3, 4, 50)
LAST = vector(2, -1, 3, 4, 2, -1, 3, 4, 51)


def rule(**changes: object) -> SubFedAvg:
    return SubFedAvg(SETTINGS, SubFedAvgOptions(**{"step": 0.3, **changes}))  # type: ignore[arg-type]


def always(correct: int | None, total: int = 10) -> Callable[[Mask, Vector, str], Evaluation]:
    return lambda _mask, _values, _split: Evaluation(correct, total, 0.0)


def site_of(first: Vector = FIRST, last: Vector = LAST, correct: int | None = 9) -> ScriptedSite:
    """Return a site that trains whole vectors to `first` in epoch 1 and to `last` at the end."""

    def trained(mask: Mask, values: Vector, epochs: range) -> Vector:
        if not epochs:
            return values
        return mask.gather(first if epochs.start == 0 else last)

    return ScriptedSite(LAYERS, SETTINGS, trained=trained, accuracy=always(correct))


def train(site: ScriptedSite, bits: str = FULL, **changes: object) -> tuple[Answer, DictMemory]:
    memory = DictMemory()
    values = mask_of(bits).gather(INITIAL)
    work = received(bits, values, 2)
    return rule(**changes).client().train(work, site, memory, ignore), memory


def test_a_step_drops_a_share_of_each_layer_but_never_its_last_weight() -> None:
    """ceil((n - 1) * 0.1): 9.9, 1.0, 0.4 and 0.1 are rounded up."""
    assert counts_after_step([100, 11, 5, 2, 1, 0], 0.1) == [90, 10, 4, 1, 1, 0]
    assert counts_after_step([100], 0.05) == [95]
    assert counts_after_step([100, 3], 0.0) == [100, 3]


def test_the_number_dropped_is_that_of_the_percentile() -> None:
    for size in range(1, 60):
        for percent in (5, 10, 33):
            weights = np.arange(size, dtype=np.float64)
            below = int((weights < np.percentile(weights, percent)).sum())
            assert counts_after_step([size], percent / 100) == [size - below]


def test_the_percentile_of_eleven_and_twelve_weights() -> None:
    """10 % of 11 weights is the second smallest, so one is below it; of 12, two are."""
    assert [counts_after_step([n], 0.1) for n in (10, 11, 12, 20, 21, 50)] == [
        [9], [10], [10], [18], [19], [45],
    ]  # fmt: skip
    assert [counts_after_step([n], 0.25) for n in (5, 10, 12, 101)] == [[4], [7], [9], [76]]


def test_the_last_step_reaches_the_target_exactly() -> None:
    """A step of 0.25 of 19 and of 9 keeps 15 and 7. If 27 are wanted, 2 and 1 drop."""
    assert counts_to_target([20, 10], 0.25, 27, 40) == [18, 9]
    assert counts_to_target([20, 10], 0.25, 22, 40) == [15, 7]
    assert counts_to_target([20, 10], 0.25, 21, 40) == [15, 7]
    assert counts_to_target([20, 0], 0.25, 19, 40) == [19, 0], "an empty layer"


def test_a_last_step_may_be_a_whole_one_as_in_the_port() -> None:
    assert counts_to_target([20, 10], 0.25, 27, 40, "full") == [15, 7]
    assert counts_to_target([20, 10], 0.25, 22, 40, "full") == [15, 7]


def test_a_last_step_may_be_capped_as_in_the_authors_code() -> None:
    """Of 30 and of 40 weights, a step is 0.1. A whole step drops 2 of 20 and 1 of 10.

    27: 3 / 40 are left, which is 0.1 of 30, so 0.05: 0.95 and 0.45 are rounded up.
    25: 5 / 40 are more than a step.
    """
    assert counts_to_target([20, 10], 0.1, 27, 40, "capped") == [19, 9]
    assert counts_to_target([20, 10], 0.1, 25, 40, "capped") == [18, 9]
    assert counts_to_target([100, 50], 0.1, 148, 200, "capped") == [98, 49], "2 / 150 of 99 and 49"


def test_ten_equal_weights_lose_one_or_none() -> None:
    """Their percentile is their size, and none is below it. Of 1 2 2 3, 0.4 drops two, or one."""
    layer, equal = manifest_of(10), np.full(11, 0.5, np.float32)
    assert top_by_layer(equal, counts_after_step([10], 0.1), layer).num_kept == 9
    tied = top_by_layer(equal, counts_after_step([10], 0.1), layer, keep_ties=True)
    assert tied.num_kept == 10
    four, weights = manifest_of(4), vector(1, 2, 2, 3, 0)
    assert counts_after_step([4], 0.4) == [2]
    assert bits_of(top_by_layer(weights, [2], four)) == "0101"
    assert bits_of(top_by_layer(weights, [2], four, keep_ties=True)) == "0111"
    assert bits_of(top_by_layer(weights, [0], four, keep_ties=True)) == "0000"
    among = mask_of("1101").bools()
    assert bits_of(top_by_layer(weights, [2], four, among, keep_ties=True)) == "0101"


def test_a_client_may_keep_ties_and_then_prunes_nothing_here() -> None:
    """0.3 of three is one. In each layer, weights 1 and 2 are the smallest, and are equal."""
    first, last = vector(1, 2, 3, 4, 1, 2, 3, 4, 50), vector(2, -1, 1, 4, 2, -1, 1, 4, 51)
    assert bits_of(train(site_of(first, last))[0].bits) == "11011101"
    assert train(site_of(first, last), ties="keep")[0].bits is None


def test_a_client_takes_the_last_step_that_the_options_say() -> None:
    """Two and three weights are kept. A step of 0.9 drops 1 and 2; 0.05 drops one in each."""
    first, last = vector(4, 0, 0, 2, 3, 2, 1, 0, 9), vector(2, 0, 0, 4, 2, -1, 3, 0, 51)
    for name, bits in (("target", "10011010"), ("full", "00010010"), ("capped", "00011010")):
        reply, _ = train(site_of(first, last), "1001 1110", step=0.9, last_step=name)
        assert bits_of(reply.bits) == bits


def test_the_distance_is_the_mean_over_layers_not_over_weights() -> None:
    """One of two bits in a layer and none of eight in the other: (0.5 + 0) / 2."""
    layers = manifest_of(2, 8)
    assert mask_distance(mask_of("10 11111111"), mask_of("11 11111111"), layers) == 0.25
    layers = manifest_of(4, 8)
    first, last = mask_of("1100 10100000"), mask_of("1010 11100000")
    assert mask_distance(first, last, layers) == 0.3125  # (2 / 4 + 1 / 8) / 2
    same = mask_of("1010 11100000")
    assert mask_distance(same, same, layers) == 0.0


def test_a_client_prunes_what_is_smallest_after_the_last_epoch() -> None:
    reply, memory = train(site := site_of())
    assert bits_of(reply.bits) == "10111011"
    assert reply.trained.values.tolist() == [2, 3, 4, 2, 3, 4, 51]
    assert reply.trained.personal == Evaluation(9, 10, 0.0), "of the pruned model"
    assert memory.mask("mask") == reply.bits
    assert [(call.epochs, call.mask) for call in site.calls] == [
        (range(1), "11111111"), (range(1, 3), "11111111"),
    ]  # fmt: skip


def test_a_pruned_client_prunes_its_alive_weights() -> None:
    """Weights 0 and 4 are pruned already. Of three in a layer, ceil(2 * 0.3) = 1 drops."""
    first, last = vector(0, 1, 2, 3, 0, 1, 2, 3, 50), vector(0, 2, -1, 3, 0, 2, -1, 3, 51)
    reply, _ = train(site_of(first, last), "0111 0111")
    assert bits_of(reply.bits) == "01010101"


def test_the_last_step_of_a_client_ends_at_the_target() -> None:
    """A step of 0.9 would leave one weight in each layer; the target is four of eight."""
    first, last = vector(4, 0, 0, 2, 3, 2, 1, 0, 9), vector(2, 0, 0, 4, 2, -1, 3, 0, 51)
    reply, _ = train(site_of(first, last), "1001 1110", step=0.9)
    assert bits_of(reply.bits) == "10011010", "one weight drops, where the layer keeps most"


def test_candidates_that_agree_are_not_adopted() -> None:
    """The same weights are smallest after the first and the last epoch."""
    reply, memory = train(site_of(first=LAST))
    assert reply.bits is None and memory.mask("mask") == mask_of(FULL)
    assert np.array_equal(reply.trained.values, LAST)
    assert (reply.trained.base.correct, reply.trained.personal.correct) == (1, 2)


def test_the_distance_must_be_above_the_threshold() -> None:
    """Two of four bits differ in both layers: 0.5."""
    assert train(site_of(), distance=0.49)[0].bits is not None
    assert train(site_of(), distance=0.5)[0].bits is None


def test_a_client_at_its_target_prunes_no_more() -> None:
    first, last = vector(1, 2, 0, 0, 1, 2, 0, 0, 50), vector(2, 1, 0, 0, 2, 1, 0, 0, 51)
    reply, memory = train(site_of(first, last), "1100 1100")
    assert reply.bits is None and memory.mask("mask") == mask_of("1100 1100")


def test_the_accuracy_must_be_above_the_threshold() -> None:
    assert train(site_of(correct=6))[0].bits is not None
    assert train(site_of(correct=5))[0].bits is None, "half of ten is not above 0.5"
    assert train(site_of(correct=6), accuracy=0.7)[0].bits is None


def test_the_accuracy_is_that_of_the_pruned_model_on_the_validation_samples() -> None:
    asked: list[tuple[str, str, list[float]]] = []

    def accuracy(mask: Mask, values: Vector, split: str) -> Evaluation:
        asked.append((split, bits_of(mask), values.tolist()))
        return Evaluation(9, 10, 0.0)

    for split in ("validation", "train", "test"):
        asked.clear()
        site = site_of()
        site.accuracy = accuracy
        train(site, split=split)
        assert asked[0] == (split, "10111011", [2, 3, 4, 2, 3, 4, 51])
    assert SubFedAvgOptions().split == "validation"


def test_a_site_without_validation_samples_uses_its_training_samples() -> None:
    site = site_of()
    site.accuracy = lambda _mask, _values, split: (
        Evaluation(None, 0, 0.0) if split == "validation" else Evaluation(9, 10, 0.0)
    )
    assert train(site)[0].bits is not None
    site.accuracy = lambda _mask, _values, split: (
        Evaluation(None, 0, 0.0) if split == "validation" else Evaluation(1, 10, 0.0)
    )
    assert train(site)[0].bits is None


def test_a_task_without_an_accuracy_is_refused() -> None:
    with pytest.raises(ModelError, match="needs a task that has an accuracy"):
        train(site_of(correct=None))


def test_a_round_with_one_epoch_never_prunes() -> None:
    site = replace(site_of(), settings=replace(SETTINGS, local_steps=2, batch_size=5))
    reply, _ = train(site)
    assert [call.epochs for call in site.calls] == [range(1), range(1, 1)]
    assert reply.bits is None and reply.trained.training_loss == 1.0


def begun() -> ModelState:
    return strategy_for(SETTINGS).begin(LAYERS, INITIAL)


def test_the_global_model_is_dense_and_bits_are_sent_if_they_changed() -> None:
    state = begun()
    assert state.mask == Mask.full(8) and state.extra == {}
    plan = rule().plan(Position(0, 1, 0), CLIENTS)
    assert plan == Plan(
        Work.TRAIN, tuple(CLIENTS), Reducer.WEIGHTED_SUM_BY_HOLDER, equal_weights=True
    )
    assert rule().plan(Position(8, 1, 0), CLIENTS) is None
    assert rule().parts("", LAYERS) == UploadParts(bits=True, bits_required=False)


def test_weights_that_nobody_holds_keep_their_values_and_masks_are_remembered() -> None:
    strategy, state = strategy_for(SETTINGS), begun()
    mean = vector(9, 0, 9, 9, 9, 0, 9, 9, 90)
    reduced = Reduced(mean, votes(2, 0, 1, 2, 2, 0, 2, 2, 2), total_weight=2)
    masks = {C1: mask_of("1011 1011"), C2: mask_of("1001 1011")}
    step = StepDone(Work.TRAIN, 0)
    after = strategy.finish(step, state, reduced, MaskUploads(masks))
    assert after.values is not None
    assert after.values.tolist() == [9, 2, 9, 9, 9, 6, 9, 9, 90]
    assert after.mask == Mask.full(8) and after.mask_epoch == 1
    assert after.extra == {"mask/c1": masks[C1], "mask/c2": masks[C2]}
    # The next round has another client, which prunes nothing, and a smaller mask of c1.
    later = {C1: mask_of("1010 1011"), C3: Mask.full(8)}
    reduced = Reduced(mean, votes(*[2] * 9), total_weight=2)
    last = strategy.finish(step, after, reduced, MaskUploads(later))
    assert last.extra == {"mask/c1": later[C1], "mask/c2": masks[C2]}


def test_a_client_is_sent_the_values_on_its_mask_to_train_and_the_whole_model_to_test() -> None:
    strategy = strategy_for(SETTINGS)
    state = replace(begun(), extra={"mask/c1": mask_of("1000 0001")})
    mine = strategy.client_state(C1, Work.TRAIN, state)
    assert mine.mask == mask_of("1000 0001")
    assert mine.values is not None and mine.values.tolist() == [1, 8, 60]
    assert strategy.client_state(C2, Work.TRAIN, state) is state
    assert strategy.client_state(C1, Work.EVALUATE, state) is state


def test_the_personal_model_is_the_global_one_on_the_own_mask() -> None:
    half, site = rule().client(), site_of()
    tested = received(FULL, INITIAL)
    memory = DictMemory({"mask": mask_of("1000 0001")})
    found = half.personal(tested, site, memory)
    assert found is not None and found.tolist() == [1, 0, 0, 0, 0, 0, 0, 8, 60]
    untrained = half.personal(tested, site, DictMemory())
    assert untrained is not None and np.array_equal(untrained, INITIAL)


def test_settings_that_do_not_fit_are_refused() -> None:
    check_settings(SETTINGS)
    check_settings(replace(SETTINGS, local_epochs=1, local_steps=50))
    with pytest.raises(SettingsError, match="--local-epochs must be at least 2"):
        check_settings(replace(SETTINGS, local_epochs=1))
    for changes in ({"value_type": "int8"}, {"personalize_epochs": 2}):
        with pytest.raises(SettingsError, match="leave out --value-type and --personalize-epochs"):
            check_settings(replace(SETTINGS, **changes))
    with pytest.raises(DensityError):
        strategy_for(replace(SETTINGS, sparsity="0.99")).begin(LAYERS, INITIAL)


def test_a_real_client_prunes_until_the_target() -> None:
    settings = replace(SMALL, strategy="sub-fedavg", sparsity="0.5", learning_rate=0.3)
    site = small_site(settings, validation=6)
    half = SubFedAvg(settings, SubFedAvgOptions(step=0.4, accuracy=0.0, distance=0.0)).client()
    mask, values, memory = Mask.full(site.manifest.num_masked), site.initial, DictMemory()
    target, kept = site.manifest.num_masked // 2, []
    for number in range(5):
        reply = half.train(Received(mask, values, number), site, memory, ignore)
        if reply.bits is not None:
            assert not (reply.bits.bools() & ~mask.bools()).any(), "a mask only shrinks"
            mask = reply.bits
            kept.append(mask.num_kept)
        values = reply.trained.values
        assert memory.mask("mask") == mask
    assert kept == sorted(set(kept), reverse=True) and kept[-1] == target
