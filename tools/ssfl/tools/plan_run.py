"""A whole run before it starts: bytes by phase and direction, and seconds on a link.

Follows a run as `server/ssfl/server/run.py` conducts it when nobody is lost: every client joins
twice, one describes the model, all score, all get the mask; each round a cohort trains; all test
the model every `evaluate_every` rounds and at the end. The first base is not sent, as a client can
make it from the initial weights; one that a client was given to test is not sent again to train
from. With sampled clients, how many of them hold the base before is an expectation.

Totals are the coordinator's ledger: the same phases, payload and message bytes. Control messages
are an expectation: a client that waits or works long hears and sends some tens of bytes every
10 to 15 s.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ssfl.codec import values_only
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.method.strategies import Ssfl, strategy_for
from ssfl.tools.plan_link import Link
from ssfl.tools.plan_messages import Messages, download_bytes, payload_of, upload_bytes
from ssfl.tools.plan_sizes import ZERO, Coded, Coding, Size, mask_size
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2


@dataclass(frozen=True, slots=True)
class Transfer:
    """What one client sends or gets at once."""

    payload: Size
    message: Size  # the header and all chunks

    def __add__(self, other: "Transfer") -> "Transfer":
        return Transfer(self.payload + other.payload, self.message + other.message)

    def __mul__(self, times: int) -> "Transfer":
        return Transfer(self.payload * times, self.message * times)

    def or_else(self, other: "Transfer") -> "Transfer":
        return Transfer(self.payload.or_else(other.payload), self.message.or_else(other.message))


NOTHING = Transfer(ZERO, ZERO)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time, expected from `low` to `high`, never more than `most` on such a link."""

    low: float
    high: float
    most: float

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.low + other.low, self.high + other.high, self.most + other.most)

    def __mul__(self, times: float) -> "Seconds":
        return Seconds(self.low * times, self.high * times, self.most * times)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of transfers on the link, without work at either end."""

    base: Seconds  # from the coordinator's sending to the client's last byte
    update: Seconds  # from the client's sending to its receipt, if it need not queue
    round: Seconds  # both, with the queue where there are more clients than upload slots
    scoring: Seconds  # all clients' scores
    mask: Seconds  # with the first task: the base follows from it
    run: Seconds


@dataclass(frozen=True)
class RunPlan:
    """The prediction for one run."""

    settings: RunSettings
    num_masked: int
    num_unmasked: int
    num_kept: int
    num_clients: int
    cohort: int
    rows: dict[tuple[str, str], Transfer]  # (phase, direction): the whole run's ledger
    update: Transfer  # one client, one round
    base: Transfer
    scores: Transfer  # one client, once
    mask: Transfer
    times: Times | None = field(default=None)

    def total(self, direction: str, *, control: bool = True) -> Transfer:
        """Return the run's bytes in one direction at the coordinator."""
        total = NOTHING
        for (phase, way), transfer in self.rows.items():
            if way == direction and (control or phase != "control"):
                total += transfer
        return total

    @property
    def one_off(self) -> Transfer:
        """What a client sends and gets once, on top of the rounds."""
        return self.scores + self.mask

    def break_even(self, dense: "RunPlan") -> int | None:
        """Return the rounds after which a client has moved fewer bytes than in the dense run."""
        spared = (dense.update + dense.base).message.high - (self.update + self.base).message.high
        if spared <= 0:
            return None
        return self.one_off.message.high // spared + 1


@dataclass(frozen=True, slots=True)
class Site:
    """What is assumed of every client; none of it moves the result by more than some bytes."""

    num_samples: int = 1000
    num_tested: int = 200


def plan_run(
    manifest: Manifest,
    settings: RunSettings,
    upload_slots: int,
    *,
    reference_coding: bool,
    link: Link | None = None,
    coordinator_bits_per_s: float | None = None,
    site: Site | None = None,
) -> RunPlan:
    """Return what a run with `settings.clients` clients will send, and how long that takes.

    Each client is thought to have a link of its own; `coordinator_bits_per_s` is the
    coordinator's, which those who transfer at the same time share.
    """
    coding = Coding(settings, reference_coding)
    return _Planner(
        manifest, settings, upload_slots, coding, link, coordinator_bits_per_s, site or Site()
    ).plan()


class _Planner:
    def __init__(
        self,
        manifest: Manifest,
        settings: RunSettings,
        upload_slots: int,
        coding: Coding,
        link: Link | None,
        coordinator_bits_per_s: float | None,
        site: Site,
    ) -> None:
        self.manifest, self.settings, self.slots = manifest, settings, upload_slots
        self.num_clients = settings.clients
        self.cohort = min(settings.clients_per_round or self.num_clients, self.num_clients)
        strategy = strategy_for(settings)
        self.sparse = isinstance(strategy, Ssfl)
        self.num_kept = (
            strategy.num_kept(manifest) if isinstance(strategy, Ssfl) else manifest.num_masked
        )
        self.num_decisive = strategy.num_decisive(manifest)
        self.link, self.coordinator_bits_per_s = link, coordinator_bits_per_s
        self.messages = Messages(
            manifest, settings, self.num_kept, site.num_samples, site.num_tested
        )
        count = self.num_kept + manifest.num_unmasked
        self.update_coding = coding.update(count)
        self.next_base = coding.base(count, holds_previous=True)
        self.any_base = coding.base(count, holds_previous=False)
        self.score_coding = coding.scores(manifest.num_masked, self.num_decisive)
        self.mask_payload = mask_size(manifest, self.num_kept) if self.sparse else ZERO
        self.rows: dict[tuple[str, str], Transfer] = {}

    def plan(self) -> RunPlan:
        scores = self._scores() if self.sparse else NOTHING
        mask = Transfer(self.mask_payload, self.mask_payload.map(download_bytes))
        update, base = self._update(), self._train(self.next_base)
        if self.cohort < self.num_clients:
            base = base.or_else(self._train(self.any_base))
        self._count_beginning(scores, mask)
        self._count_rounds(update)
        self._count_control()
        return RunPlan(
            self.settings,
            self.manifest.num_masked,
            self.manifest.num_unmasked,
            self.num_kept,
            self.num_clients,
            self.cohort,
            self.rows,
            update,
            base,
            scores,
            mask,
            self._times(self.link, update, base, scores, mask) if self.link else None,
        )

    # -- one client, one transfer

    @property
    def _middle(self) -> tuple[int, int]:
        """The numbers of a typical step and round: as long as most are."""
        round_number = self.settings.rounds // 2
        return round_number + 2, round_number

    def _update(self) -> Transfer:
        step, number = self._middle
        coded = self.update_coding
        return self._upload(
            coded.size,
            lambda payload: self.messages.update(step, number, coded, payload),
            pb.SendUpdateRequest,
        )

    def _scores(self) -> Transfer:
        coded = self.score_coding
        return self._upload(
            coded.size,
            lambda payload: self.messages.score_report(1, coded, payload),
            pb.ReportSaliencyRequest,
        )

    def _upload(
        self, payload: Size, header: Callable[[int], int], request: Callable[..., Any]
    ) -> Transfer:
        speed = self.link.up_bits_per_s if self.link else None
        return Transfer(payload, payload.map(lambda n: header(n) + upload_bytes(n, speed, request)))

    def _train(self, base: Coded) -> Transfer:
        """Return a TRAIN task with its base."""
        return Transfer(
            base.size,
            base.size.map(lambda n: self._task(base=payload_of(base, n)) + download_bytes(n)),
        )

    def _evaluate(self, base: Coded) -> Transfer:
        """Return an EVALUATE task with its base."""
        step, number = self._middle

        def message(n: int) -> int:
            return self.messages.evaluate_task(step, number, payload_of(base, n))

        return Transfer(base.size, base.size.map(lambda n: message(n) + download_bytes(n)))

    def _task(self, mask: int = 0, base: transfer_pb2.Payload | None = None) -> int:
        step, number = self._middle
        granted = self.cohort <= self.slots
        return self.messages.train_task(
            step, number, self.cohort, self.update_coding, granted=granted, mask=mask, base=base
        )

    # -- the whole run

    def _add(self, phase: str, direction: str, transfer: Transfer, times: int = 1) -> None:
        before = self.rows.get((phase, direction), NOTHING)
        self.rows[phase, direction] = before + transfer * times

    def _count_beginning(self, scores: Transfer, mask: Transfer) -> None:
        n, messages = self.num_clients, self.messages
        sent = 0 if self.manifest.rebuildable else values_only.encoded_bytes(self.manifest.size)
        header = messages.initial_model(sent)
        initial = Size.fixed(header + upload_bytes(sent, None, pb.SendInitialRequest))
        self._add("initial", "up", Transfer(Size.fixed(sent), initial))
        most = download_bytes(sent)
        unlike = Transfer(Size(0, sent, sent), Size(0, most, most))  # a client's own first weights
        if not self.sparse:
            if sent:
                self._add("values", "down", unlike, n - 1)
            return
        task = messages.score_task(1, self.score_coding, self.num_decisive, 0)
        self._add("initial", "down", Transfer(ZERO, Size.fixed(task)), n)
        if sent:
            self._add("initial", "down", unlike, n - 1)
        self._add("scores", "up", scores, n)
        if self.mask_payload.most:
            self._add("mask", "down", mask, n)
            with_mask = self.mask_payload.map(lambda m: self._task(m) - self._task())
            self._add("values", "down", Transfer(ZERO, with_mask), n)

    def _is_tested(self, rounds_done: int) -> bool:
        """Tell whether all clients test the model after so many rounds."""
        every = self.settings.evaluate_every
        due = rounds_done == self.settings.rounds or (every and rounds_done % every == 0)
        return bool(rounds_done and due)

    @cached_property
    def num_tests(self) -> int:
        return sum(map(self._is_tested, range(self.settings.rounds + 1)))

    def _count_rounds(self, update: Transfer) -> None:
        n, rounds, messages = self.num_clients, self.settings.rounds, self.messages
        self._add("values", "up", update, rounds * self.cohort)
        # The first base is made by every client itself, from the initial weights.
        held = Transfer(ZERO, Size.fixed(self._task()))
        self._add("values", "down", held, self.cohort)
        counts: Counter[tuple[str, bool]] = Counter()  # (task, holds the base before)
        for number in range(1, rounds + 1):
            everyone = self._is_tested(number - 1) or self.cohort == n
            if self._is_tested(number):
                count = n if everyone else self.cohort
                counts["evaluate", True] += count
                counts["evaluate", False] += n - count
            else:
                count = self.cohort if everyone else round(self.cohort**2 / n)
                counts["train", True] += count
                counts["train", False] += self.cohort - count
        self._add("values", "down", self._train(self.next_base), counts["train", True])
        self._add("values", "down", self._train(self.any_base), counts["train", False])
        self._add("values", "down", held, (self.num_tests - 1) * self.cohort)
        self._add("evaluation", "down", self._evaluate(self.next_base), counts["evaluate", True])
        self._add("evaluation", "down", self._evaluate(self.any_base), counts["evaluate", False])
        step, _ = self._middle
        answer = Transfer(ZERO, Size.fixed(messages.evaluation_answer()))
        report = Transfer(ZERO, Size.fixed(messages.evaluation_report(step)))
        self._add("evaluation", "down", answer, self.num_tests * n)
        self._add("evaluation", "up", report, self.num_tests * n)
        finish = Transfer(ZERO, Size.fixed(messages.finish_task(rounds + 3)))
        self._add("values", "down", finish, n)

    def _count_control(self) -> None:
        n, rounds, messages = self.num_clients, self.settings.rounds, self.messages
        step, _ = self._middle
        trained, tested = rounds * self.cohort, self.num_tests * n
        joins = messages.join_request(built=False) + messages.join_request(built=True)
        first_asks = messages.ask(finished_step=0, mask=False, base=False)
        asks = n * (1 + self.sparse) * first_asks + first_asks
        asks += trained * messages.ask(finished_step=step, mask=True, base=True)
        asks += tested * messages.ask(finished_step=0, mask=True, base=True)
        self._add("control", "up", Transfer(ZERO, Size.fixed(n * joins + asks)))
        self._add("control", "up", Transfer(ZERO, Size.fixed(messages.leave())), n)
        answers = messages.upload_answers() * (trained + n * self.sparse) + messages.receipt()
        plain = 2 * messages.join_response(described=False)
        full = 2 * messages.join_response(described=True)
        # Told at once that there is nothing to do yet, and again when the step closes.
        once = messages.waiting("the sum")
        twice = once + messages.waiting_for_cohort("train", self.cohort)
        steps = rounds + self.sparse
        low = n * plain + answers + n * steps * once
        high = n * full + answers + n * (steps + self.num_tests + 2) * twice
        start = messages.initialize_task()
        self._add("control", "down", Transfer(ZERO, Size(low, high, high) + Size.fixed(start)))

    # -- seconds

    def _times(
        self, link: Link, update: Transfer, base: Transfer, scores: Transfer, mask: Transfer
    ) -> Times:
        sharing = min(self.cohort, self.slots)
        up = self._link(link, sharing)
        down = self._link(link, self.cohort)
        base_s = _seconds(base.message, down.down_s)
        receipt_s = link.rtt_s / 2
        grant_s = 0.0 if self.cohort <= self.slots else link.rtt_s
        update_s = _seconds(update.message, lambda n: grant_s + up.up_s(n) + receipt_s)
        waves = -(-self.cohort // self.slots)
        round_s = base_s + update_s * waves
        scoring_s = Seconds(0.0, 0.0, 0.0)
        if self.sparse:
            voting = self._link(link, min(self.num_clients, self.slots))
            one = _seconds(scores.message, lambda n: link.rtt_s + voting.up_s(n) + receipt_s)
            scoring_s = one * -(-self.num_clients // self.slots)
        mask_s = _seconds(mask.message, down.down_s) if self.sparse else scoring_s
        tested_s = _seconds(base.message, self._link(link, self.num_clients).down_s)
        run_s = scoring_s + mask_s + update_s * waves * self.settings.rounds
        run_s = run_s + base_s * (self.settings.rounds - self.num_tests)
        run_s = run_s + tested_s * self.num_tests
        return Times(base_s, update_s, round_s, scoring_s, mask_s, run_s)

    def _link(self, link: Link, num_clients: int) -> Link:
        if self.coordinator_bits_per_s is None:
            return link
        return link.shared(self.coordinator_bits_per_s, num_clients)


def _seconds(size: Size, function: Callable[[int], float]) -> Seconds:
    return Seconds(function(size.low), function(size.high), function(size.most))
