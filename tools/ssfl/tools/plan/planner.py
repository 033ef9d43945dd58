"""The parts of a prediction: bytes by phase and direction, and seconds on a link.

The prediction follows a run of `ssfl.server.run.machine` in which no client is lost. Every client
joins twice, and one describes the model. The first base is not sent, because clients derive it from
the initial weights. A base that a client got for a test is not sent again for training. With
sampled clients, the number that hold the previous base is an expectation. At a refresh (masks.py),
all clients get the base if they lack it, score it, and get the mask or its difference.

Totals are those of the coordinator's ledger. Control messages are an expectation: a client that
waits or works sends and receives some tens of bytes every 10 to 15 s.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from ssfl.codec import values_only
from ssfl.method.manifest import Manifest
from ssfl.method.sampling import cohort_size
from ssfl.method.settings import RunSettings
from ssfl.server.run.apply import LOST_MEMORY
from ssfl.server.run.quorum import clients_for
from ssfl.strategies.registry import strategy_for
from ssfl.tools.plan.link import Link
from ssfl.tools.plan.masks import PlannedMask, planned_masks
from ssfl.tools.plan.messages import Messages, download_bytes, payload_of, upload_bytes
from ssfl.tools.plan.result import NOTHING, RunPlan, Times, Transfer
from ssfl.tools.plan.rule_rounds import num_vectors
from ssfl.tools.plan.sizes import NO_TIME, ZERO, CodedSize, Coding, Seconds, Size, mask_size
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2


@dataclass(frozen=True, slots=True)
class PlannedSite:
    """Assumptions about every client; the numbers of samples change only some bytes."""

    num_samples: int = 1000
    num_tested: int = 200
    num_frozen: int = 0  # values of the model that are not trained


@dataclass(frozen=True)
class Leg:
    """The rounds under one mask, with the encodings of their transfers."""

    mask: PlannedMask
    messages: Messages
    update: CodedSize
    next_base: CodedSize  # for a client that holds the previous base
    any_base: CodedSize  # for any other client
    scores: CodedSize
    mask_size: Size


@dataclass
class Planner:
    """Counts the transfers of a run; `rows` has them by phase and direction."""

    manifest: Manifest
    settings: RunSettings
    slots: int
    coding: Coding
    link: Link | None
    coordinator_bits_per_s: float | None
    site: PlannedSite

    def __post_init__(self) -> None:
        self.num_clients = self.settings.clients
        self.cohort = cohort_size(self.settings, self.num_clients)
        self.num_vectors = num_vectors(self.manifest, self.settings)
        self.legs = self._legs()
        self.agreed = [leg for leg in self.legs if leg.mask.is_agreed]
        self.messages = self.legs[-1].messages
        self.rows: dict[tuple[str, str], Transfer] = {}

    def _legs(self) -> list[Leg]:
        return [self._leg(mask) for mask in planned_masks(self.manifest, self.settings)]

    def _leg(self, mask: PlannedMask) -> Leg:
        manifest, coding, site = self.manifest, self.coding, self.site
        count = mask.num_kept + manifest.num_unmasked
        size = mask_size(manifest, mask.num_kept) if mask.is_agreed else ZERO
        if mask.first > self.settings.warmup_rounds:
            size = Size(0, size.high, size.most)  # a difference to the previous mask may be small
        return Leg(
            mask,
            Messages(manifest, self.settings, mask.num_kept, site.num_samples, site.num_tested),
            self._with_vectors(coding.update(count), count),
            coding.base(count, holds_previous=True),
            coding.base(count, holds_previous=False),
            coding.scores(manifest.num_masked, mask.num_decisive),
            size,
        )

    def _with_vectors(self, update: CodedSize, count: int) -> CodedSize:
        """Add the further vectors of a rule, whose tasks all have the same parts."""
        names = strategy_for(self.settings).parts("", self.manifest).vectors
        return replace(update, size=update.size + self.coding.vector(count, count) * len(names))

    @property
    def _has_own_models(self) -> bool:
        has_models = strategy_for(self.settings).has_personal_models
        return has_models or self.settings.personalize_epochs > 0

    def plan(self) -> RunPlan:
        last = self.legs[-1]
        self._count_beginning()
        for leg in self.agreed:
            self._count_mask(leg)
        self._count_rounds()
        if self._has_own_models:
            self._count_own_models()
        self._count_control()
        return RunPlan(
            self.settings,
            self.manifest.num_masked,
            self.manifest.num_unmasked,
            last.mask.num_kept,
            self.num_clients,
            self.cohort,
            self.rows,
            self._update(last),
            self._base(last),
            self._scores(last),
            _mask(last),
            tuple(leg.mask for leg in self.legs),
            tuple(self._costs(leg) for leg in self.legs),
            self._times(self.link) if self.link else None,
        )

    def _costs(self, leg: Leg) -> tuple[int, int]:
        once = (self._scores(leg) + _mask(leg)).message.high
        return once, (self._update(leg) + self._base(leg)).message.high

    # -- one client, one transfer

    @property
    def _middle(self) -> tuple[int, int]:
        """A typical step and round number, for message sizes."""
        round_number = self.settings.rounds // 2
        return round_number + 2, round_number

    def _update(self, leg: Leg) -> Transfer:
        header = partial(leg.messages.update, *self._middle, leg.update)
        return self._upload(leg.update.size, header, pb.SendUpdateRequest)

    def _base(self, leg: Leg) -> Transfer:
        base = self._train(leg, leg.next_base)
        return base.union(self._train(leg, leg.any_base)) if self._is_sampled else base

    @property
    def _is_sampled(self) -> bool:
        return self.cohort < self.num_clients

    def _scores(self, leg: Leg) -> Transfer:
        if not leg.mask.is_agreed:
            return NOTHING
        header = partial(leg.messages.score_report, 1, leg.scores)
        return self._upload(leg.scores.size, header, pb.ReportSaliencyRequest)

    def _upload(
        self, payload: Size, header: Callable[[int], int], request: Callable[..., Any]
    ) -> Transfer:
        speed = self.link.up_bits_per_s if self.link else None
        return Transfer(payload, payload.map(lambda n: header(n) + upload_bytes(n, speed, request)))

    def _download(self, base: CodedSize, header: Callable[[transfer_pb2.Payload], int]) -> Transfer:
        def message(n: int) -> int:
            return header(payload_of(base, n)) + download_bytes(n)

        return Transfer(base.size, base.size.map(message))

    def _train(self, leg: Leg, base: CodedSize) -> Transfer:
        return self._download(base, lambda payload: self._task(leg, base=payload))

    def _task(self, leg: Leg, mask: int = 0, base: transfer_pb2.Payload | None = None) -> int:
        granted = self.cohort <= self.slots
        return leg.messages.train_task(
            *self._middle, self.cohort, leg.update, granted=granted, mask=mask, base=base
        )

    # -- the whole run

    def _add(self, phase: str, direction: str, transfer: Transfer, times: int = 1) -> None:
        if not transfer.message.most:
            return
        before = self.rows.get((phase, direction), NOTHING)
        self.rows[phase, direction] = before + transfer * times

    def _add_message(self, phase: str, direction: str, num_bytes: int, times: int = 1) -> None:
        """Count a message without a payload."""
        self._add(phase, direction, Transfer(ZERO, Size.fixed(num_bytes)), times)

    def _count_beginning(self) -> None:
        sent = 0 if self.manifest.rebuildable else values_only.encoded_bytes(self.manifest.size)
        header = self.messages.initial_model(sent)
        initial = Size.fixed(header + upload_bytes(sent, None, pb.SendInitialRequest))
        self._add("initial", "up", Transfer(Size.fixed(sent), initial))
        most = download_bytes(sent)
        # A client with the same initial weights does not download them.
        initial_down = Transfer(Size(0, sent, sent), Size(0, most, most))
        if sent:
            phase = "initial" if self.legs[0].mask.is_agreed else "values"
            self._add(phase, "down", initial_down, self.num_clients - 1)

    def _count_mask(self, leg: Leg) -> None:
        """Count one agreement: all clients score, and get the mask with their next task."""
        n = self.num_clients
        task = leg.messages.score_task(
            1, leg.scores, leg.mask.num_decisive, refresh=leg.mask.first > 0
        )
        self._add_message("initial", "down", task, n)
        self._add("scores", "up", self._scores(leg), n)
        if leg.mask_size.most:
            self._add("mask", "down", _mask(leg), n)
            with_mask = leg.mask_size.map(lambda m: self._task(leg, m) - self._task(leg))
            self._add("values", "down", Transfer(ZERO, with_mask), n)

    def _is_tested(self, rounds_done: int) -> bool:
        """Return True if all clients test the model after `rounds_done` rounds."""
        every, last = self.settings.evaluate_every, self.settings.evaluate_last
        due = rounds_done == self.settings.rounds or (every and rounds_done % every == 0)
        return bool(rounds_done and (due or rounds_done > self.settings.rounds - last))

    @cached_property
    def num_tests(self) -> int:
        return sum(map(self._is_tested, range(self.settings.rounds + 1)))

    @cached_property
    def _refresh_rounds(self) -> set[int]:
        """Rounds before which all clients score the trained model."""
        return {leg.mask.first for leg in self.agreed if leg.mask.first}

    def _count_rounds(self) -> None:
        for leg in self.legs:
            self._count_rounds_of(leg)
        step, _ = self._middle
        n, messages = self.num_clients, self.messages
        self._add_message("evaluation", "down", messages.evaluation_answer(), self.num_tests * n)
        self._add_message("evaluation", "up", messages.evaluation_report(step), self.num_tests * n)
        self._add_message("values", "down", messages.finish_task(self.settings.rounds + 3), n)

    def _count_rounds_of(self, leg: Leg) -> None:
        n, first, stop = self.num_clients, leg.mask.first, leg.mask.stop
        self._add("values", "up", self._update(leg), (stop - first) * self.cohort)
        num_extra = sum(self._num_extra(number) for number in range(first, stop))
        task = self._train(leg, leg.any_base)
        self._add("values", "up", NOTHING.union(self._update(leg)), num_extra)
        self._add("values", "down", NOTHING.union(task), num_extra)
        # Clients derive the first base of a mask from the model that they scored.
        num_held = 1
        counts: Counter[tuple[str, bool]] = Counter()  # (task, holds the previous base)
        for number in range(first + 1, stop + 1):
            was_tested = number - 1 > first and self._is_tested(number - 1)
            all_hold = was_tested or self.cohort == n
            num_held += number < stop and self._is_tested(number)
            if self._is_tested(number) or number in self._refresh_rounds:
                work = "evaluate" if self._is_tested(number) else "score"
                count = n if all_hold else self.cohort
                counts[work, True] += count
                counts[work, False] += n - count
            else:
                count = self.cohort if all_hold else round(self.cohort**2 / n)
                counts["train", True] += count
                counts["train", False] += self.cohort - count
        self._add_message("values", "down", self._task(leg), num_held * self.cohort)
        for base, holds in ((leg.next_base, True), (leg.any_base, False)):
            scored = Transfer(base.size, base.size.map(download_bytes))
            self._add("values", "down", self._train(leg, base), counts["train", holds])
            self._add("values", "down", scored, counts["score", holds])
            tested = self._download(base, partial(leg.messages.evaluate_task, *self._middle))
            self._add("evaluation", "down", tested, counts["evaluate", holds])

        vectors = Size.fixed(self.num_vectors * values_only.encoded_bytes(_count(leg)))
        if vectors.most:
            with_vectors = Transfer(vectors, vectors.map(download_bytes))
            self._add("values", "down", with_vectors, (stop - first) * self.cohort)

    def _num_extra(self, number: int) -> int:
        """Return the clients that a round invites beyond its target; they may be too slow."""
        over = self.settings.over_selection
        if self.settings.reproducible or not self._is_sampled or over <= 1:
            return 0
        asked = clients_for(self.cohort, (1 - 1 / over) * LOST_MEMORY**number)
        return min(asked, self.num_clients) - self.cohort

    def _count_own_models(self) -> None:
        """Count the personalization of all clients, who hold the base from the last test."""
        n, messages, (step, _) = self.num_clients, self.messages, self._middle
        report = messages.evaluation_report(step, is_personal=True)
        self._add_message("values", "down", messages.personalize_task(step), n)
        self._add_message("evaluation", "down", messages.evaluation_answer(), n)
        self._add_message("evaluation", "up", report, n)

    def _count_control(self) -> None:
        n, rounds, messages = self.num_clients, self.settings.rounds, self.messages
        step, _ = self._middle
        scorings = len(self.agreed)
        tests = self.num_tests + self._has_own_models
        trained, tested = rounds * self.cohort, tests * n
        joins = messages.join_request(built=False) + messages.join_request(built=True)
        first_asks = messages.ask(finished_step=0, mask=False, base=False)
        asks = n * (1 + scorings) * first_asks + first_asks
        asks += trained * messages.ask(finished_step=step, mask=True, base=True)
        asks += tested * messages.ask(finished_step=0, mask=True, base=True)
        self._add_message("control", "up", n * (joins + messages.leave()) + asks)
        answers = messages.upload_answers() * (trained + n * scorings) + messages.receipt()
        plain = 2 * messages.join_response(described=False)
        full = 2 * messages.join_response(described=True)
        # A client gets a `waiting` at once, and another when the step closes.
        once = messages.waiting("the sum")
        twice = once + messages.waiting_for_cohort("train", self.cohort)
        steps = rounds + scorings
        low = n * plain + answers + n * steps * once
        high = n * full + answers + n * (steps + tests + 2) * twice
        self._add("control", "down", Transfer(ZERO, Size(low, high, high)))
        self._add_message("control", "down", messages.initialize_task())

    # -- seconds

    def _times(self, link: Link) -> Times:
        run = NO_TIME
        for leg in self.legs:
            base_s, update_s, round_s, scoring_s, mask_s = self._leg_times(link, leg)
            tested_s = self._base(leg).message.map(self._link(link, self.num_clients).down_s)
            rounds = leg.mask.stop - leg.mask.first
            to_all = sum(
                self._is_tested(number) or number in self._refresh_rounds
                for number in range(leg.mask.first + 1, leg.mask.stop + 1)
            )
            run = run + scoring_s + mask_s + update_s * self._waves * rounds
            run = run + base_s * (rounds - to_all) + tested_s * to_all
        return Times(base_s, update_s, round_s, scoring_s, mask_s, run)

    @property
    def _waves(self) -> int:
        return -(-self.cohort // self.slots)

    def _leg_times(self, link: Link, leg: Leg) -> tuple[Seconds, ...]:
        """Return the seconds of a base, an update, a round, all scores, and a mask."""
        up = self._link(link, min(self.cohort, self.slots))
        down = self._link(link, self.cohort)
        base_s = self._base(leg).message.map(down.down_s)
        receipt_s = link.rtt_s / 2
        grant_s = 0.0 if self.cohort <= self.slots else link.rtt_s
        update_s = self._update(leg).message.map(lambda n: grant_s + up.up_s(n) + receipt_s)
        round_s = base_s + update_s * self._waves
        if not leg.mask.is_agreed:
            return base_s, update_s, round_s, NO_TIME, NO_TIME
        scorers = self._link(link, min(self.num_clients, self.slots))
        scores_s = self._scores(leg).message.map(lambda n: link.rtt_s + scorers.up_s(n) + receipt_s)
        scoring_s = scores_s * -(-self.num_clients // self.slots)
        return base_s, update_s, round_s, scoring_s, _mask(leg).message.map(down.down_s)

    def _link(self, link: Link, num_clients: int) -> Link:
        if self.coordinator_bits_per_s is None:
            return link
        return link.shared(self.coordinator_bits_per_s, num_clients)


def _mask(leg: Leg) -> Transfer:
    return download(leg.mask_size)


def download(size: Size) -> Transfer:
    return Transfer(size, size.map(download_bytes))


def _count(leg: Leg) -> int:
    return leg.mask.num_kept + leg.messages.manifest.num_unmasked
