"""Payloads of a mask refresh, read by the client's own code with the model it holds."""

from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.client.download import Download, _payloads
from ssfl.client.errors import Refused
from ssfl.client.held_model import HeldModel
from ssfl.codec import Receiver
from ssfl.method.controls import client_random_mask
from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.mask import Mask
from ssfl.method.model_state import ModelState, values_digest
from ssfl.method.settings import RunSettings
from ssfl.method.streams import Stream
from ssfl.server.broadcast.payloads import NotBuilt
from ssfl.server.broadcast.per_client import Broadcasts
from ssfl.server.broadcast.tasks import Ready, task_for
from ssfl.server.errors import InvalidRequest
from ssfl.server.run.state import Member, RunState, Step
from ssfl.server.uploads.encoding_choice import Reader
from ssfl.strategies.contract import ClientId, Work
from ssfl.strategies.registry import strategy_for
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2
from strategies.steps import finish

Vector = npt.NDArray[np.float32]
MANIFEST = Manifest(
    (
        TensorSpec("conv.weight", (32, 16, 3, 3), Role.MASKED, Init("normal", 0.1)),
        TensorSpec("fc.weight", (10, 100), Role.MASKED, Init("uniform", 0.5)),
        TensorSpec("fc.bias", (10,), Role.DENSE, Init("zeros")),
    )
)
INITIAL = initial_vector(MANIFEST, seed=5)
SETTINGS = RunSettings(sparsity="0.9", seed=5)
C1 = ClientId("c1")
CODED = Reader(frozenset(range(1, 11)), coded=True)
PLAIN = Reader(frozenset(range(1, 11)), coded=False)
BASIC = Reader(frozenset({1, 2, 3, 4}), coded=True)


class Client:
    """A client's memory, and a note of what it was sent last."""

    def __init__(
        self, initial: Vector = INITIAL, seed: int = SETTINGS.seed, reader: Reader = CODED
    ) -> None:
        self.reader = reader
        self.held = HeldModel(
            MANIFEST, initial, lambda: client_random_mask(MANIFEST, SETTINGS.sparsity, seed, C1)
        )
        self.sent: list[tuple[str, transfer_pb2.Payload]] = []

    @property
    def phases(self) -> list[str]:
        return [phase for phase, _ in self.sent]

    def reads(self, ready: Ready) -> tuple[Mask | None, Vector]:
        """Take a task in; return the mask, and the base or, if it is to be scored, the whole."""
        self.sent = [(part.phase, part.payload) for part in ready.parts]
        data = b"".join(bytes(part.data) for part in ready.parts)
        payloads = _payloads(ready.task)
        assert payloads == [payload for _, payload in self.sent], "announced as they follow"
        download = Download(ready.task, payloads, bytearray(data), Receiver(len(data)))
        work = getattr(ready.task, ready.task.WhichOneof("work") or "")
        if isinstance(work, pb.ScoreTask):
            whole, mask = self.held.model_to_score(download, work)
            return mask, whole
        return self.held.mask_and_base(download, work)


class Run:
    """The coordinator's model from step to step."""

    def __init__(self, settings: RunSettings = SETTINGS, seed: int = 0) -> None:
        self.settings = settings
        self.strategy = strategy_for(settings)
        self.model = self.strategy.begin(MANIFEST, INITIAL)
        self.broadcasts = Broadcasts(settings)
        self.rng = np.random.default_rng(seed)
        self.scores = np.abs(INITIAL[: MANIFEST.num_masked])
        self.rounds_done = 0

    def score(self, noise: float = 0.3) -> None:
        """Agree on a mask, the more unlike the last one the more noise there is."""
        self.broadcasts.shared(self.model)
        spread = np.exp(noise * self.rng.normal(0, 1, self.scores.size))
        self.scores = np.asarray(self.scores * spread, dtype=np.float32)
        self.model = finish(self.strategy, Work.SCORE, self.model, self.scores, self.rounds_done)

    def train(self) -> None:
        self.broadcasts.shared(self.model)
        assert self.model.values is not None
        moved = self.model.values + self.rng.normal(0, 1e-3, self.model.values.size)
        mean = np.asarray(moved, dtype=np.float32)
        self.model = finish(self.strategy, Work.TRAIN, self.model, mean, self.rounds_done)
        self.rounds_done += 1

    def task(self, client: Client, work: Work) -> Ready:
        """Return a client's task with all that it lacks, as the service makes it."""
        state = RunState(
            self.settings,
            members={C1: Member(C1, 1, "t", 10, "m", "cpu")},
            manifest_digest="m",
            founders=(C1,),
            step=Step(4, work, "saliency", self.rounds_done, 0, {C1: 10}, uploads={}),
        )
        broadcast = self.broadcasts.broadcast_for(C1, work, self.model)
        request = pb.NextTaskRequest(**client.held.held_digests())
        while True:
            try:
                ready = task_for(state, broadcast, C1, request, 8, client.reader)
                assert ready is not None
                return ready
            except NotBuilt as needed:
                assert not broadcast.built(needed.form), "made, and asked for again"
                broadcast.build(needed.form)

    def give(self, client: Client, work: Work) -> None:
        """Let a client take its task in, and see that it then has what the run has."""
        seen = self.strategy.client_state(C1, work, self.model)
        mask, values = client.reads(self.task(client, work))
        assert mask == seen.mask
        expected = seen.whole if work is Work.SCORE else seen.values
        assert expected is not None and values.tobytes() == expected.tobytes()


def renewed(settings: RunSettings = SETTINGS) -> tuple[Run, Client, Client]:
    """Return a run whose mask was refreshed after a round; only the first client scored again."""
    run, voter, absent = Run(settings), Client(), Client()
    for client in (voter, absent):
        run.give(client, Work.SCORE)
    run.score()
    for client in (voter, absent):
        run.give(client, Work.TRAIN)
    run.train()
    run.give(voter, Work.SCORE)
    run.score()
    return run, voter, absent


def test_a_client_that_scored_again_is_sent_only_the_mask_difference() -> None:
    run, voter, _ = renewed()
    assert run.model.mask_epoch == 2
    held = voter.held.mask_digest
    run.give(voter, Work.TRAIN)
    ((phase, payload),) = voter.sent
    assert (phase, payload.reference_digest) == ("mask", held)
    whole = Client()
    run.give(whole, Work.TRAIN)
    assert payload.num_bytes < whole.sent[0][1].num_bytes, "less than a mask"


def test_a_client_that_trained_is_sent_the_base_and_no_mask_to_score_again() -> None:
    run, client = Run(), Client()
    for _ in range(2):
        run.give(client, Work.SCORE)
        run.score()
        run.give(client, Work.TRAIN)
        run.train()
    run.give(client, Work.SCORE)
    assert client.phases == ["values"], "where pruned weights rest is known from the last time"
    assert client.sent[0][1].encoding == transfer_pb2.ENCODING_REFERENCE


def test_a_client_that_missed_the_scoring_is_sent_mask_and_values() -> None:
    run, _, absent = renewed()
    before = run.broadcasts.shared(run.model)._before
    assert before is not None and before.mask is not None
    run.give(absent, Work.TRAIN)
    assert absent.phases == ["mask", "values"]
    mask, base = (payload for _, payload in absent.sent)
    assert mask.reference_digest == before.mask.digest, "the mask as a difference, all the same"
    assert run.model.mask is not None
    first = values_digest(run.model.mask.gather(INITIAL))
    assert base.reference_digest == first, "what the new mask added starts at its initial value"


def test_a_client_that_joins_late_is_sent_mask_and_values_to_train() -> None:
    run, _, _ = renewed()
    late = Client()
    run.give(late, Work.TRAIN)
    assert late.phases == ["mask", "values"]
    assert late.sent[0][1].reference_digest == b""


@pytest.mark.parametrize("deactivated", ["keep", "reset"])
def test_a_client_that_scores_for_the_first_time_is_sent_resting_values(deactivated: str) -> None:
    run, voter, _ = renewed(replace(SETTINGS, deactivated=deactivated))
    run.give(voter, Work.TRAIN)
    run.train()
    late = Client()
    run.give(late, Work.SCORE)
    rests = ["initial"] if deactivated == "keep" else []
    assert late.phases == ["mask", "values", *rests]
    run.give(voter, Work.SCORE)
    assert voter.phases == ["values"]
    run.score()
    for client in (late, voter):
        run.give(client, Work.TRAIN)
        assert client.phases == ["mask"]


def test_resting_values_of_pruned_weights_follow_the_two_rules() -> None:
    kept, reset = (renewed(replace(SETTINGS, deactivated=one))[0] for one in ("keep", "reset"))
    assert kept.model.mask == reset.model.mask
    for run in (kept, reset):
        run.train()
    assert kept.model.whole.tobytes() != reset.model.whole.tobytes()


def test_initial_weights_that_a_client_lacks_come_first() -> None:
    run, _, _ = renewed()
    stranger = Client(initial=INITIAL[::-1].copy())
    run.train()
    run.give(stranger, Work.SCORE)
    assert stranger.phases == ["initial", "mask", "values", "initial"]


def test_after_some_rounds_values_are_coded_against_where_the_mask_began() -> None:
    run, voter, _ = renewed()
    run.give(voter, Work.TRAIN)
    for _ in range(2):
        run.train()
    run.give(voter, Work.TRAIN)
    ((phase, payload),) = voter.sent
    assert phase == "values"
    assert payload.reference_digest == values_digest(run.model.first_base())


def test_a_refreshed_mask_equal_to_the_previous_one_has_another_base() -> None:
    run, voter, _ = renewed()
    run.give(voter, Work.TRAIN)
    run.train()
    run.give(voter, Work.SCORE)
    before = run.model.mask
    run.score(noise=0.0)
    assert run.model.mask == before and run.model.mask_epoch == 3
    run.give(voter, Work.TRAIN)
    assert voter.phases == []
    for _ in range(2):
        run.train()
    run.give(voter, Work.TRAIN)
    assert voter.sent[0][1].reference_digest == values_digest(run.model.first_base())


def test_a_client_that_cannot_read_coded_values_is_refused_a_refresh() -> None:
    run, _, _ = renewed()
    run.train()
    with pytest.raises(InvalidRequest, match="cannot read coded values: upgrade it"):
        run.task(Client(reader=BASIC), Work.SCORE)
    run.give(Client(reader=BASIC), Work.TRAIN)


def test_weights_to_score_with_another_digest_are_refused() -> None:
    run, voter, _ = renewed()
    run.train()
    ready = run.task(voter, Work.SCORE)
    ready.task.score.initial_digest = bytes(32)
    with pytest.raises(Refused, match="weights to score do not match the digest"):
        voter.reads(ready)


def test_a_mask_of_its_own_is_made_by_the_client() -> None:
    run, client = Run(replace(SETTINGS, criterion="client-random")), Client()
    run.give(client, Work.TRAIN)
    assert client.phases == [], "neither a mask nor the first base travels"
    run.train()
    run.give(client, Work.TRAIN)
    assert client.phases == ["values"]
    assert client.sent[0][1].num_bytes < 4 * 0.2 * MANIFEST.size
    assert run.task(client, Work.TRAIN).task.train.mask.from_seed
    run.give(client, Work.EVALUATE)
    assert client.phases == ["values"]
    assert run.task(client, Work.EVALUATE).task.evaluate.mask.all_kept


def test_a_client_that_makes_another_mask_of_its_own_stops() -> None:
    run = Run(replace(SETTINGS, criterion="client-random"))
    with pytest.raises(Refused, match="mask for this client differs from our own"):
        run.give(Client(seed=SETTINGS.seed + 1), Work.TRAIN)


VARIANTS = list(product(("keep", "reset"), (0, 1), ("float32", "int8"), range(3)))


@pytest.mark.parametrize(("deactivated", "warm", "value_type", "seed"), VARIANTS)
def test_a_client_that_missed_any_tasks_reads_the_exact_model_of_the_run(
    deactivated: str, warm: int, value_type: str, seed: int
) -> None:
    settings = replace(SETTINGS, deactivated=deactivated, value_type=value_type, warmup_rounds=warm)
    run, chance = Run(settings, seed), Stream(seed, "who takes part", deactivated, warm)
    clients = [Client(reader=reader) for reader in (CODED, PLAIN) for _ in range(3)]
    for number in range(14):
        is_first = number == warm
        work = Work.SCORE if is_first or number in (3, 6, 7, 10) else Work.TRAIN
        here = chance.uniform(len(clients)) < 0.6
        for client, takes_part in zip(clients, here.tolist(), strict=True):
            if takes_part:
                run.give(client, work)
        run.score(noise=0.2) if work is Work.SCORE else run.train()
    for client in [*clients, Client(), Client(reader=PLAIN)]:
        run.give(client, Work.EVALUATE)
    assert run.model.mask_epoch == 5 + (warm > 0)


def test_the_state_after_a_restart_gives_the_same_tasks() -> None:
    """Nothing but mask, values and what was scored is stored: the rest follows."""
    run, voter, _ = renewed()
    run.train()
    model = run.model
    stored = ModelState(
        MANIFEST, INITIAL, model.mask, model.mask_epoch, model.values,
        scored=model.scored, scored_digest=model.scored_digest, resting=model.scored,
    )  # fmt: skip
    assert stored.whole_digest == model.whole_digest
    run.model, run.broadcasts = stored, Broadcasts(SETTINGS)
    run.give(voter, Work.SCORE)
    run.give(Client(), Work.SCORE)
