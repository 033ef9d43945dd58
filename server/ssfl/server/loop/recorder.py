"""Records published facts in the history, in the log and for the status page."""

from ssfl.method.model_state import ModelState
from ssfl.server.history.live_entries import LiveEntries
from ssfl.server.history.run_history import Newest
from ssfl.server.history.run_log import log_fact, log_mask
from ssfl.server.loop.refusals import OUTLIER, Refusals
from ssfl.server.run import facts
from ssfl.server.run.state import RunState


class Recorder:
    """Keeps the history of one run."""

    def __init__(self, history: Newest, live_entries: LiveEntries, refusals: Refusals) -> None:
        self.history = history
        self._live_entries = live_entries
        self._refusals = refusals

    def add(
        self, fact: facts.Fact, state: RunState, model: ModelState | None, journal_bytes: int
    ) -> None:
        """Record a fact; `state` and `model` are those after it."""
        self.history.add(fact)
        log_fact(fact, state, self.history)
        if isinstance(fact, facts.StepCommitted):
            self._add_commit(fact, model, journal_bytes)

    def _add_commit(
        self, fact: facts.StepCommitted, model: ModelState | None, journal_bytes: int
    ) -> None:
        history = self.history
        if entry := history.newest_entry:
            self._live_entries.add(entry, journal_bytes)
        if model and model.mask and history.newest_mask.get("step") == fact.step:
            log_mask(model.mask, model.manifest, history)
        for client in fact.report.get("outliers", []):
            self._refusals.count(client, OUTLIER, f"the scores of {client} did not count")
