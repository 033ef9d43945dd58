"""Prediction of a run whose strategy moves masks (rule_rounds.py), from the parts in planner.py."""

from collections import Counter
from functools import cached_property, partial

from ssfl.server.accounting.ledger import ROUND_MASKS
from ssfl.strategies.contract import UploadParts
from ssfl.strategies.registry import strategy_for
from ssfl.tools.plan.masks import PlannedMask
from ssfl.tools.plan.messages import Messages
from ssfl.tools.plan.planner import Leg, Planner, download
from ssfl.tools.plan.result import NOTHING, Transfer
from ssfl.tools.plan.rule_rounds import RuleRounds
from ssfl.tools.plan.sizes import ZERO, CodedSize
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2

MASK_HEADER_BYTES = 120  # of a mask in the header of an update: digests, counts, encoding


class RulePlanner(Planner):
    """Counts the transfers of a run whose strategy moves masks."""

    @cached_property
    def _rule(self) -> RuleRounds:
        return RuleRounds(self.manifest, self.settings, self.coding, self.cohort)

    def _legs(self) -> list[Leg]:
        """Return one leg for all rounds; masks are part of its transfers."""
        rule = self._rule
        least, site, settings = rule.kept[0], self.site, self.settings
        parts = rule.parts(settings.rounds - 1)
        update = rule.update(parts) + rule.own_mask(parts)
        base = CodedSize(transfer_pb2.ENCODING_REFERENCE, rule.base() + rule.moved_mask)
        leg = Leg(
            PlannedMask(0, settings.rounds, least, 0, is_agreed=False),
            Messages(self.manifest, settings, least, site.num_samples, site.num_tested),
            CodedSize(transfer_pb2.ENCODING_REFERENCE, update), base, base,
            CodedSize(transfer_pb2.ENCODING_DENSE, ZERO), rule.first_mask,
        )  # fmt: skip
        return [leg]

    def _count_rounds_of(self, leg: Leg) -> None:
        """Count all rounds, and the step before them."""
        rule = self._rule
        n, rounds, task = self.num_clients, self.settings.rounds, self._task(leg)
        if (warm := rule.warm_up) is not None:
            parts = strategy_for(self.settings).parts(warm.task, self.manifest)
            self._add_update(parts, len(warm.cohort), "mask")
            self._add("mask", "down", download(rule.first_mask), len(warm.cohort))
            self._add_message("values", "down", task, len(warm.cohort))
        first_move = next((r for r in range(rounds) if rule.parts(r).bits), rounds)
        self._add("mask", "down", *self._first_masks(first_move))
        sent: Counter[tuple[bool, bool]] = Counter()  # (a mask may have moved, for a test)
        parts_of: Counter[UploadParts] = Counter()
        for number in range(rounds):
            parts_of[rule.parts(number)] += self.cohort
            has_base = number > 0 and self._is_tested(number) and not rule.has_own_masks
            if number > 0 and not has_base:
                sent[number > first_move, False] += self.cohort
            if self._is_tested(number + 1):
                sent[number + 1 > first_move, True] += n
        for parts, times in parts_of.items():
            self._add_update(parts, times, ROUND_MASKS)
        self._add_message("values", "down", task, rounds * self.cohort)
        if rule.is_first_sent:
            self._add("values", "down", download(rule.base(first=True)), self.cohort)
        for (has_moved, to_test), times in sent.items():
            phase = "evaluation" if to_test else "values"
            self._add(phase, "down", download(rule.base(to_test=to_test)), times)
            if has_moved and not (to_test and rule.has_own_masks):
                where = phase if to_test else ROUND_MASKS
                self._add(where, "down", download(rule.moved_mask), times)
        header = leg.messages.evaluate_task(*self._middle, transfer_pb2.Payload())
        self._add_message("evaluation", "down", header, self.num_tests * n)
        vectors = rule.vectors(self.num_vectors)
        self._add("values", "down", download(vectors), rounds * self.cohort)
        extra = sum(self._num_extra(number) for number in range(rounds))
        spare = download(rule.base() + vectors + rule.moved_mask)
        self._add("values", "down", NOTHING.union(spare), extra)
        self._add("values", "up", NOTHING.union(self._update(leg)), extra)

    def _first_masks(self, first_move: int) -> tuple[Transfer, int]:
        """Return the download of the first mask, and how many times to count it."""
        tested = any(self._is_tested(number) for number in range(1, first_move + 1))
        mask = download(self._rule.first_mask)
        if tested or not self._is_sampled:
            return mask, self.num_clients
        most = min(self.num_clients, self.cohort * (first_move + 1))
        return mask * self.cohort + NOTHING.union(mask) * (most - self.cohort), 1

    def _add_update(self, parts: UploadParts, times: int, mask_phase: str) -> None:
        """Count updates with these parts."""
        rule = self._rule
        values, bits = rule.update(parts), rule.own_mask(parts)
        coded = CodedSize(transfer_pb2.ENCODING_REFERENCE, values, has_reference=True)
        header = partial(self.legs[0].messages.update, *self._middle, coded)
        self._add("values", "up", self._upload(values, header, pb.SendUpdateRequest), times)
        if bits.most:
            announced = self._upload(bits, lambda _: MASK_HEADER_BYTES, pb.SendUpdateRequest)
            self._add(mask_phase, "up", announced, times)
