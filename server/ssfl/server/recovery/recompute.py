"""Recompute a run from its journal and the kept uploads, without clients.

Every step starts from the model recomputed here, not from the stored one, and its result is
compared with the committed one in the journal. A step whose uploads are missing cannot be
recomputed. The step after it starts from the stored model, if there is one, or needs none: the mean
of uncoded updates does not depend on the values they started from.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from ssfl.codec.errors import DigestMismatch
from ssfl.method.manifest import Manifest
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.server.aggregate.step_sum import StepSum, StepUploads, step_reduced
from ssfl.server.errors import BadValues, StateError
from ssfl.server.recovery.recover import load_model, with_scored
from ssfl.server.run import facts
from ssfl.server.run.apply import apply
from ssfl.server.run.state import RunState, Step
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import KeptUploads, check_stored
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.server.uploads.verify import BlockCheck, ScoreCheck, ValueCheck, largest_of
from ssfl.strategies.contract import ClientId, Reducer, Work
from ssfl.strategies.registry import criterion_for, strategy_for

PLAIN = ("values_only", "dense")  # encodings in which the stored file has the digest of the upload

OnUpload = Callable[[Step, int], None]  # step, number of its uploads read so far


class StepVerdict(StrEnum):
    """The result of recomputing a step."""

    OK = "ok"  # the same mask and values
    DIFFERS = "differs"
    MISSING = "missing"  # a required upload is missing
    NOT_KEPT = "not kept"  # its uploads (by default) or the model before it were not kept
    CLOSED = "closed"  # recomputed; the journal has no result to compare yet
    OPEN = "open"  # still accepts uploads
    VOID = "void"  # did not count


BAD = (StepVerdict.DIFFERS, StepVerdict.MISSING)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One recomputed step of the run."""

    step: int
    work: Work
    round_number: int
    attempt: int
    clients: int  # number of counted uploads; of received ones if the step did not close
    verdict: StepVerdict
    mask_digest: str  # from the journal; as recomputed if the verdict is CLOSED
    base_digest: str
    problem: str = ""  # what differs or is missing


class _Unsound(Exception):
    """A stored upload differs from the one that was accepted."""


class Refold:
    """Recomputes every step of a run from its facts."""

    def __init__(
        self, root: Path, settings: RunSettings, on_upload: OnUpload = lambda _step, _done: None
    ) -> None:
        self.state = RunState(settings)
        self.masks: dict[int, str] = {}  # epoch -> digest of its mask; each must have a file
        self.account: tuple[list[dict[str, Any]], int] = ([], 0)  # totals, length of ledger.csv
        self.problems: list[str] = []  # of the initial model
        self._store = Store(root, settings.seed)
        self._strategy = strategy_for(settings)
        self._uploads = KeptUploads(StateDirectory(root))
        self._on_upload = on_upload
        self._first: ModelState | None = None  # the model before the first step
        self._model: ModelState | None = None  # the recomputed model; None: not known

    def take(self, fact: facts.Fact) -> StepResult | None:
        """Apply the next fact; return the result of the step that it ends, if any."""
        before = self.state
        try:
            self.state = apply(before, fact)
        except (ValueError, KeyError) as error:
            kind = type(fact).__name__
            raise StateError(f"the journal cannot be replayed: {kind}: {error}") from error
        if isinstance(fact, facts.WITH_BYTES) and "ledger" in fact.report:
            self.account = fact.report["ledger"], fact.report["ledger_bytes"]
        match fact:
            case facts.ModelInitialized():
                self._begin(fact)
            case facts.StepCommitted():
                assert before.step is not None
                self.masks[fact.mask_epoch] = fact.mask_digest
                return self._committed(before, before.step, fact)
            case facts.StepVoided() | facts.RunFinished() if before.step:
                why = fact.reason if isinstance(fact, facts.StepVoided) else "the run was stopped"
                return _result(before.step, StepVerdict.VOID, before, why)
        return None

    def under_way(self) -> StepResult | None:
        """Return the result of the step that is open at the end of the journal."""
        state, step = self.state, self.state.step
        if step is None:
            return None
        if step.closed is None or step.work.is_test:
            return self._open(step)
        try:
            model = self._refold(state, step)
        except (FileNotFoundError, _Unsound) as error:
            return _result(step, StepVerdict.MISSING, state, str(error))
        if model is None:
            return _result(step, StepVerdict.NOT_KEPT, state, "the model before it is not stored")
        made = step_reduced(step.number, model, {})
        state = replace(state, mask_digest=made.mask_digest, base_digest=made.base_digest)
        return _result(step, StepVerdict.CLOSED, state)

    def _begin(self, fact: facts.ModelInitialized) -> None:
        try:
            manifest = self._store.load_manifest(fact.manifest_digest)
            initial = self._store.load_initial(manifest, fact.initial_digest)
        except (StateError, ValueError) as error:
            self.problems.append(str(error))
            return
        self._first = self._model = model = self._strategy.begin(manifest, initial)
        mask = model.mask.digest.hex() if model.mask else ""
        if (model.mask_epoch, mask, model.base_digest.hex()) != (
            fact.mask_epoch, fact.mask_digest, fact.base_digest,
        ):  # fmt: skip
            self.problems.append(
                "the initial model that follows from the settings differs from the journal's"
            )

    def _committed(self, before: RunState, step: Step, fact: facts.StepCommitted) -> StepResult:
        state = self.state
        if step.work.is_test:  # a test must not change the model
            same = (before.mask_digest, before.base_digest) == (
                state.mask_digest,
                state.base_digest,
            )
            problem = "" if same else "a test changed the model"
            return _result(step, _verdict(problem), state, problem)
        model, problem = None, ""
        try:
            model = self._refold(before, step)
        except FileNotFoundError as error:
            verdict = StepVerdict.NOT_KEPT
            if self._uploads.holds(step.number):
                verdict, problem = StepVerdict.MISSING, str(error)
        except _Unsound as error:
            verdict, problem = StepVerdict.DIFFERS, str(error)
        else:
            problem = _difference(fact, model) if model else "the model before it is not stored"
            verdict = _verdict(problem) if model else StepVerdict.NOT_KEPT
        self._model = model
        return _result(step, verdict, state, problem)

    def _open(self, step: Step) -> StepResult:
        """Return the result of an open step: every acknowledged upload must be stored."""
        problem = ""
        for upload in step.uploads.values() if not step.work.is_test else ():
            try:
                values = self._uploads.find(step.number, upload.client, upload.digest)
                check_stored(values, upload.stored)
            except FileNotFoundError as error:
                problem = problem or str(error)
            except StateError as error:
                return _result(step, StepVerdict.DIFFERS, self.state, str(error))
        return _result(
            step, StepVerdict.MISSING if problem else StepVerdict.OPEN, self.state, problem
        )

    def _refold(self, before: RunState, step: Step) -> ModelState | None:
        """Return the model of a closed step; None if the model before it is not known."""
        assert step.closed is not None
        for client in step.closed:
            self._uploads.find(step.number, client, step.uploads[client].digest)
        model = self._model or self._stored(before, step)
        if model is None:
            return None
        for number, client in enumerate(step.closed):
            self._on_upload(step, number)
            self._check(step, client, model)
        policy = before.settings.score_outliers
        total = StepSum(step, model, self._uploads, self._strategy, policy)
        return total.finish(step).model

    def _check(self, step: Step, client: ClientId, model: ModelState) -> None:
        """Raise _Unsound if a stored upload differs from the one that was accepted."""
        upload = step.uploads[client]
        values = self._uploads.find(step.number, client, upload.digest)
        uploads = StepUploads(step, model, self._uploads, self._strategy)
        try:
            count, num_bytes = uploads.stored_size(client)
        except StateError as error:
            raise _Unsound(f"{values} is damaged: {error}") from error
        if values.num_bytes != num_bytes:
            raise _Unsound(f"{values} has {values.num_bytes} bytes, its step needs {num_bytes}")
        as_sent = "clipped" not in upload.report  # otherwise the clipped values are stored
        try:
            if upload.stored:
                values.check_digest(bytes.fromhex(upload.stored))
            elif upload.report.get("encoding") in PLAIN and as_sent:
                values.check_digest(bytes.fromhex(upload.digest))
            elif self._uploads.holds(step.number):  # the journal has the digest of the coded form
                values.check_digest(self._uploads.noted_digest(step.number, client, upload.digest))
            largest = largest_of(values.blocks(count), _rule(step, client, uploads, model.manifest))
        except (BadValues, DigestMismatch) as error:
            raise _Unsound(f"{values} is damaged: {error}") from error
        if as_sent and largest != upload.largest:
            raise _Unsound(f"{values} is damaged: it is not what was accepted")

    def _stored(self, before: RunState, step: Step) -> ModelState | None:
        """Return the stored model before a step; None if it is missing and needed.

        If only its values are missing, and the step's result does not depend on them, they are
        zeros.
        """
        if self._first is None:
            return None
        with suppress(StateError):
            return load_model(before, self._store)
        exact = before.settings.value_type == "float32" and self._strategy.is_plain_mean
        if (step.work, step.reducer) != (Work.TRAIN, Reducer.WEIGHTED_SUM) or not exact:
            return None
        with suppress(StateError):
            manifest = self._first.manifest
            mask = self._store.load_mask(manifest, before.mask_epoch, before.mask_digest)
            values = np.zeros(mask.num_kept + manifest.num_unmasked, dtype=np.float32)
            model = replace(self._first, mask=mask, mask_epoch=before.mask_epoch, values=values)
            return with_scored(model, before, self._store)
        return None


def _rule(step: Step, client: ClientId, uploads: StepUploads, manifest: Manifest) -> BlockCheck:
    if step.work is Work.SCORE:
        return ScoreCheck(client, manifest, signed=criterion_for(step.criterion).signed)
    return ValueCheck(client, manifest, uploads.mask(client))


def _verdict(problem: str) -> StepVerdict:
    return StepVerdict.DIFFERS if problem else StepVerdict.OK


def _difference(fact: facts.StepCommitted, model: ModelState) -> str:
    """Return the differences from the committed result; empty if there are none."""
    made = step_reduced(fact.step, model, {})
    named = (
        *("mask_epoch", "mask_digest", "num_kept", "base_digest", "scored_digest"),
        *("extra_digest", "stage"),
    )
    return "; ".join(
        f"{name} is {getattr(made, name)}, the journal has {getattr(fact, name)}"
        for name in named
        if getattr(made, name) != getattr(fact, name)
    )


def _result(step: Step, verdict: StepVerdict, state: RunState, problem: str = "") -> StepResult:
    clients = step.uploads if step.closed is None else step.closed
    return StepResult(
        step.number, step.work, step.round_number, step.attempt, len(clients), verdict,
        state.mask_digest, state.base_digest, problem,
    )  # fmt: skip
