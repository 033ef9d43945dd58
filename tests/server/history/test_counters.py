"""Process counters: clients, and bytes relative to the dense model."""

from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import Direction, Ledger
from ssfl.server.history.counters import ProcessCounters
from ssfl.server.history.timing import sending_s
from ssfl.server.run import facts
from ssfl.server.run.apply import apply
from ssfl.server.run.facts import Fact
from ssfl.server.run.state import RunState
from ssfl.strategies.contract import ClientId, Work

A, B = ClientId("a"), ClientId("b")
VALUES, KEPT = 100, 10
TESTED = {"correct": 1, "total": 2, "loss_sum": 1.0, "metric_sums": {}}
REPORT = {
    **{
        "asked_s": 0.5,
        "sent_s": 0.75,
        "work_s": 1.0,
        "upload_s": 0.5,
        "received_s": 2.0,
        "upload_bytes": 40,
    },
    **{"training_loss": 1.0, "evaluation": TESTED, "personal": TESTED},
}


class Run:
    """Counters that receive facts as in the coordinator, and a ledger for the bytes."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self.counters = ProcessCounters()
        self.state = RunState(RunSettings())
        self.counters.begin(self.state, self.ledger)
        self.step = 0

    def add(self, *new_facts: Fact) -> None:
        for fact in new_facts:
            self.counters.take(fact, self.state, self.ledger, VALUES)
            self.state = apply(self.state, fact)

    def join(self, *clients: ClientId) -> None:
        for number, client in enumerate(clients, 1):
            self.add(facts.ClientJoined(client, number, "t", 5, "", "cpu"))
            self.add(facts.ClientJoined(client, number, "t", 5, "m", "cpu"))

    def start(self, work: Work, *sent: ClientId) -> None:
        """Begin a step; `sent` are sent the kept values."""
        self.step += 1
        self.add(facts.StepStarted(self.step, work, "", 0, 0, {A: 5, B: 5}))
        phase = "values" if work is Work.TRAIN else "evaluation"
        for client in sent:
            self.ledger.count(phase, Direction.DOWN, 50, 4 * KEPT, client=client)

    def report(self, client: ClientId) -> None:
        if self.state.step and self.state.step.work is Work.TRAIN:
            self.ledger.count("values", Direction.UP, 50, 4 * KEPT, client=client)
        self.add(facts.UploadAccepted(self.step, client, "", 0.0, REPORT))

    def commit(self, work: Work) -> None:
        self.report(A)
        self.report(B)
        self.add(facts.StepClosed(self.step, (A, B), ()))
        report = {"seconds": 3.0, "phases": {"training": 1.0} if work is Work.TRAIN else None}
        self.add(facts.StepCommitted(self.step, 1, "", KEPT, "", report))


def begun() -> Run:
    run = Run()
    run.join(A, B)
    return run


def test_a_join_counts_when_the_client_has_its_model() -> None:
    run = begun()
    assert run.counters.joined == {False: 2}
    run.add(facts.ClientJoined(A, 9, "t", 5, "m", "cpu"))
    assert run.counters.joined == {False: 2, True: 1}
    run.join(B)  # restarted: it first asks for the model, then joins with it
    assert run.counters.joined == {False: 2, True: 2}


def test_a_client_that_joined_an_earlier_process_counts_as_rejoined() -> None:
    run = begun()
    later = ProcessCounters()
    later.begin(run.state, run.ledger)
    later.take(facts.ClientJoined(A, 9, "t", 5, "m", "cpu"), run.state, run.ledger, VALUES)
    assert later.joined == {True: 1}


def test_the_ratio_to_dense_is_always_the_share_of_kept_values() -> None:
    run = begun()
    assert run.counters.ratios == {}
    run.start(Work.TRAIN, A, B)
    run.commit(Work.TRAIN)
    assert run.counters.ratios == {Direction.UP: KEPT / VALUES, Direction.DOWN: KEPT / VALUES}
    run.start(Work.TRAIN, A, B)
    run.report(A)  # the next round is half done
    assert run.counters.ratios == {Direction.UP: KEPT / VALUES, Direction.DOWN: KEPT / VALUES}


def test_a_model_sent_for_a_test_is_not_counted_again_for_training() -> None:
    run = begun()
    for _ in range(3):
        run.start(Work.EVALUATE, A, B)
        run.commit(Work.EVALUATE)
        run.start(Work.TRAIN)  # both hold it
        run.commit(Work.TRAIN)
    assert run.counters.ratios[Direction.DOWN] == KEPT / VALUES
    assert run.counters.dense_bytes[Direction.DOWN] == 3 * 2 * 4 * VALUES


def test_the_first_model_is_not_counted_if_no_values_were_sent() -> None:
    run = begun()
    run.start(Work.TRAIN)
    run.commit(Work.TRAIN)
    assert run.counters.dense_bytes[Direction.DOWN] == 0
    run.start(Work.TRAIN, A, B)
    run.commit(Work.TRAIN)
    assert run.counters.ratios[Direction.DOWN] == KEPT / VALUES


def test_the_model_of_a_new_mask_is_not_counted_for_clients_that_scored() -> None:
    run = begun()
    for sent in ((), (A, B)):
        run.start(Work.TRAIN, *sent)
        run.commit(Work.TRAIN)
    run.start(Work.SCORE, A, B)  # to be scored
    run.commit(Work.SCORE)
    run.start(Work.TRAIN)
    run.commit(Work.TRAIN)
    assert run.counters.dense_bytes[Direction.DOWN] == 2 * 2 * 4 * VALUES
    assert run.counters.ratios[Direction.DOWN] == KEPT / VALUES


def test_bytes_of_an_earlier_process_are_not_counted_again() -> None:
    before = Ledger()
    before.count("values", Direction.UP, 5_000, 4_000, client=A)
    run = Run(before)
    assert [row["payload_bytes"] for row in run.counters.bytes_since_start(run.ledger)] == [0]
    run.join(A, B)
    run.start(Work.TRAIN, A, B)
    run.commit(Work.TRAIN)
    assert run.counters.ratios[Direction.UP] == KEPT / VALUES


def test_times_are_counted_by_work_and_by_phase() -> None:
    run = begun()
    run.start(Work.TRAIN, A, B)
    run.commit(Work.TRAIN)
    run.start(Work.EVALUATE, A, B)
    run.commit(Work.EVALUATE)
    assert run.counters.steps["train"].total == run.counters.steps["evaluate"].total == 3.0
    assert run.counters.phases["training"].total == 1.0
    assert run.counters.reported == {"train": 2, "evaluate": 2}
    assert run.counters.results[A]["upload_bytes"] == 40
    assert sending_s(run.counters.results[A]) == 0.25  # without the time before the task was sent


def test_void_steps_are_counted() -> None:
    run = begun()
    run.start(Work.TRAIN, A, B)
    run.add(facts.StepVoided(run.step, "too few"))
    assert run.counters.void == 1
