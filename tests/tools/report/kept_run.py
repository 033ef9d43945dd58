"""A simulated run with the state directory of a coordinator with --keep-uploads."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ssfl.codec import values_only
from ssfl.datasets.shards.shard_file import Shard
from ssfl.learning.load_task import load_task
from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.server.run import events, facts
from ssfl.server.run.apply import newest_counted
from ssfl.server.storage.journal import Journal
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.spool import Spool
from ssfl.simulator.federation import SimulatedFederation


class KeptRun(SimulatedFederation):
    """Writes the journal and the files of a run, without its processes."""

    def __init__(self, root: Path, shards: Mapping[str, Shard], settings: RunSettings) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self._journal = Journal(root / "journal")
        self._store = Store(root, settings.seed)
        self._spool = Spool(root / "spool", root / "accepted")
        self._write(facts.RunOpened("r1", asdict(settings), "0.1.0"))
        super().__init__(load_task("image"), shards, settings, reference_coding=False)
        self._store.save_initial(self.model.manifest, self.model.initial)

    def finish(self) -> str:
        """Run to the end; return the digest of the final model."""
        while self.next_work is not None:
            self.run_step()
        self.close()
        self._journal.close()
        return self.model.base_digest.hex()

    def _write(self, fact: facts.Fact) -> None:
        self._journal.append([facts.to_json(fact)])

    def _with_accounting(self, fact: facts.Fact) -> facts.Fact:
        self._write(fact)
        return super()._with_accounting(fact)

    def _post(self, event: events.Event, model: ModelState | None = None) -> None:
        if isinstance(event, events.UploadReceived) and event.digest:
            digest, stored = bytes.fromhex(event.digest), self._received[event.client]
            part = self._spool.part(event.step, event.client, digest)
            part.path.write_bytes(bytes(values_only.encode(stored.values)) + stored.bits)
            self._spool.keep(part, part.values)
        if isinstance(event, events.StepReduced) and model is not None:
            self._store.save_step(event.step, model)
        best = self.state.best
        super()._post(event, model)
        self._spool.set_aside(*newest_counted(self.state))
        if self.state.best and self.state.best != best:
            self._store.keep_best(self.state.best.step)
        state = self.state
        self._store.drop_older(state.model_step, state.mask_epoch, state.extra_digest)
