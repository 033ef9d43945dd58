"""Recovery of a run from a state directory with real files."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest

from ssfl.method.model_state import ModelState
from ssfl.method.settings import RunSettings
from ssfl.server.accounting.ledger import Ledger
from ssfl.server.errors import StateError
from ssfl.server.recovery.recover import load_model, open_run
from ssfl.server.run import facts
from ssfl.server.run.state import RunState
from ssfl.server.storage.journal import Journal
from ssfl.server.storage.model_store import Store
from ssfl.server.storage.state_directory import StateDirectory
from ssfl.strategies.contract import ClientId, Work
from ssfl.strategies.registry import strategy_for
from strategies.steps import finish

SETTINGS = RunSettings(sparsity="0.5", seed=5)
C1 = ClientId("c1")
LEDGER = [
    {
        "phase": "scores", "direction": "up", "encoding": "dense",
        "payload_bytes": 24, "message_bytes": 30, "socket_bytes": None,
    },
]  # fmt: skip


def opened(folder: Path, settings: RunSettings = SETTINGS) -> RunState:
    journal = Journal(folder / "journal")
    try:
        return open_run(journal, settings, Ledger())[0]
    finally:
        journal.close()


def append(folder: Path, *recorded: facts.Fact) -> None:
    journal = Journal(folder / "journal")
    journal.append([facts.to_json(fact) for fact in recorded])
    journal.close()


def scored(model: ModelState) -> list[facts.Fact]:
    """Return the facts of a run whose mask was agreed in step 1."""
    assert model.mask is not None
    manifest, initial = model.manifest.digest.hex(), model.initial_digest.hex()
    mask, base = model.mask.digest.hex(), model.base_digest.hex()
    return [
        facts.ClientJoined(C1, 1, "t", 10, manifest, "cpu"),
        facts.ModelInitialized(C1, manifest, initial, 0, "", 0, ""),
        facts.RunStarted((C1,)),
        facts.StepStarted(1, Work.SCORE, "saliency", 0, 0, {C1: 10}),
        facts.UploadAccepted(1, C1, "d", 1.0),
        facts.StepClosed(1, (C1,), ()),
        facts.StepCommitted(1, 1, mask, 3, base, {"ledger": LEDGER}),
    ]


def test_an_empty_directory_begins_a_run_and_keeps_it(tmp_path: Path) -> None:
    state = opened(tmp_path)
    assert state.run_id
    assert opened(tmp_path).run_id == state.run_id


def test_two_new_runs_have_different_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert opened(tmp_path / "a").run_id != opened(tmp_path / "b").run_id


def test_a_run_is_recovered_with_its_model_history_and_bytes(
    tmp_path: Path, model: ModelState
) -> None:
    run_id = opened(tmp_path).run_id
    store = Store(tmp_path, seed=5)
    store.save_initial(model.manifest, model.initial)
    store.save_step(1, model)
    append(tmp_path, *scored(model))
    journal, ledger = Journal(tmp_path / "journal"), Ledger()
    state, history = open_run(journal, SETTINGS, ledger)
    journal.close()
    assert (state.run_id, state.mask_epoch, state.model_step) == (run_id, 1, 1)
    assert [vote["client"] for vote in history.votes] == ["c1"]
    assert ledger.rows() == LEDGER
    again = load_model(state, store)
    assert again is not None
    assert (again.mask, again.base_digest) == (model.mask, model.base_digest)
    assert again.initial.tobytes() == model.initial.tobytes()


@pytest.mark.parametrize("deactivated", ["keep", "reset"])
def test_a_refreshed_mask_is_recovered_with_its_scored_model(
    tmp_path: Path, model: ModelState, deactivated: str
) -> None:
    """It determines where pruned weights rest, so the next refresh scores the same bits."""
    settings = replace(SETTINGS, deactivated=deactivated)
    assert model.values is not None
    ssfl = strategy_for(settings)
    trained = finish(ssfl, Work.TRAIN, model, model.values + np.float32(1), 0)
    scores = np.array([9, 0, 9, 0, 9, 0], dtype=np.float32)
    renewed = finish(ssfl, Work.SCORE, trained, scores, 1)
    assert renewed.mask is not None and renewed.scored is not None
    opened(tmp_path, settings)
    store = Store(tmp_path, seed=5)
    store.save_initial(model.manifest, model.initial)
    for step, state in ((1, model), (2, trained), (3, renewed)):
        store.save_step(step, state)
    mask, base = renewed.mask.digest.hex(), renewed.base_digest.hex()
    append(
        tmp_path,
        *scored(model),
        facts.StepStarted(3, Work.SCORE, "saliency", 1, 0, {C1: 10}, reason="asked for"),
        facts.StepClosed(3, (), ()),
        facts.StepCommitted(3, 2, mask, 3, base, scored_digest=renewed.scored_digest.hex()),
    )
    again = load_model(opened(tmp_path, settings), store)
    assert again is not None
    assert (again.mask, again.mask_epoch) == (renewed.mask, 2)
    assert again.whole_digest == renewed.whole_digest
    assert again.resting_digest == renewed.resting_digest
    assert (again.resting is None) == (deactivated == "reset")
    assert again.first_base().tobytes() == renewed.first_base().tobytes()
    store.drop_older(3, 2)
    (tmp_path / "scored-2.f32").unlink()
    with pytest.raises(StateError, match=r"scored-2\.f32 is missing"):
        load_model(opened(tmp_path, settings), store)


def test_a_run_of_the_previous_version_resumes(tmp_path: Path, model: ModelState) -> None:
    """Its journal has neither the new settings nor the new fields of facts."""
    new = {one.name for one in fields(RunSettings)} - OLD_SETTINGS
    assert len(new) > 20
    old = {name: value for name, value in asdict(SETTINGS).items() if name in OLD_SETTINGS}
    recorded = [facts.RunOpened("r1", old, "0.1.0"), *scored(model)]
    trained = {"training_loss": 1.0, "evaluation": {"correct": 1, "total": 2, "loss_sum": 1.0}}
    recorded += [
        facts.StepStarted(2, Work.TRAIN, "", 0, 0, {C1: 10}),
        facts.UploadAccepted(2, C1, "d", 1.0, {**trained, "personal": trained["evaluation"]}),
        facts.StepClosed(2, (C1,), ()),
        facts.StepCommitted(2, 1, "k", 3, "b2", {}),
        facts.StepStarted(3, Work.EVALUATE, "", 1, 0, {C1: 10}),
        facts.UploadAccepted(3, C1, "", 0.0, {"evaluation": trained["evaluation"]}),
        facts.StepClosed(3, (C1,), ()),
        facts.StepCommitted(3, 1, "k", 3, "b2", {}),
    ]
    journal = Journal(tmp_path / "journal")
    journal.append([without_new_fields(facts.to_json(fact)) for fact in recorded])
    journal.close()
    state = opened(tmp_path)
    assert (state.run_id, state.rounds_done, state.rounds_evaluated) == ("r1", 1, 1)
    assert (state.mask_epoch, state.scored_digest, state.refresh_asked) == (1, "", False)
    assert state.losses == (1.0,), "of training, not of the test"
    assert state.best is not None and state.best.accuracy == 0.5
    assert state.settings == SETTINGS


OLD_SETTINGS = {
    *("strategy", "model", "norm", "width", "sparsity", "bytes_per_round", "rounds", "clients"),
    *("clients_per_round", "min_clients", "local_epochs", "local_steps", "batch_size"),
    *("learning_rate", "lr_decay", "momentum", "weight_decay", "clip_norm", "seed"),
    *("evaluate_every", "reproducible", "round_deadline_s", "no_progress_s", "scores"),
    *("value_type", "grid_bits", "rounding", "error_feedback"),
}


def without_new_fields(record: bytes) -> bytes:
    """Return a record as the previous version would have written it."""
    recorded = json.loads(record)
    for name in ("labels", "reducer", "equal_weights", "num_batches", "scored_digest"):
        recorded.pop(name, None)
    if recorded["fact"] in ("StepStarted", "RunFinished"):
        recorded.pop("reason", None)
    return json.dumps(recorded).encode()


def test_there_is_no_model_before_a_client_has_described_it(tmp_path: Path) -> None:
    assert load_model(opened(tmp_path), Store(tmp_path, seed=5)) is None


def test_before_the_first_step_the_model_is_the_strategys_initial_one(
    tmp_path: Path, model: ModelState
) -> None:
    opened(tmp_path)
    store = Store(tmp_path, seed=5)
    store.save_initial(model.manifest, model.initial)
    append(tmp_path, *scored(model)[:2])
    again = load_model(opened(tmp_path), store)
    assert again is not None and again.mask is None


def test_changed_settings_are_refused_and_each_is_named(tmp_path: Path) -> None:
    run_id = opened(tmp_path).run_id
    with pytest.raises(StateError) as caught:
        opened(tmp_path, replace(SETTINGS, rounds=31, batch_size=8))
    assert str(caught.value) == (
        f"the state directory holds run {run_id} with other settings: --rounds was 30, is 31; "
        "--batch-size was 16, is 8. Start with those settings to resume it, or use --fresh to "
        "begin a new run"
    )


def test_deadlines_may_change_between_two_starts(tmp_path: Path) -> None:
    run_id = opened(tmp_path).run_id
    patient = replace(SETTINGS, round_deadline_s=7200.0, no_progress_s=120.0)
    state = opened(tmp_path, patient)
    assert state.run_id == run_id
    assert state.settings.round_deadline_s == 7200.0


@pytest.mark.parametrize(
    "record",
    [
        b"{}",
        b"not json",
        facts.to_json(facts.RunStarted((C1,))).replace(b"RunStarted", b"RunBegun"),
        facts.to_json(facts.StepClosed(1, (), ())),
    ],
)
def test_a_journal_of_another_version_is_refused_with_a_remedy(
    tmp_path: Path, record: bytes
) -> None:
    opened(tmp_path)
    journal = Journal(tmp_path / "journal")
    journal.append([record])
    journal.close()
    with pytest.raises(StateError, match=r"cannot be replayed: .*Use --fresh"):
        opened(tmp_path)


def test_a_journal_that_does_not_begin_with_a_run_is_refused(tmp_path: Path) -> None:
    append(tmp_path, facts.RunStarted((C1,)))
    with pytest.raises(StateError, match="it does not begin with a run"):
        opened(tmp_path)


def test_an_old_state_is_moved_aside_except_the_lock(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    (state_dir / "spool" / "3").mkdir(parents=True)
    (state_dir / "lock").touch()
    opened(state_dir)
    moved = StateDirectory(state_dir).move_aside()
    assert moved is not None and moved.parent == tmp_path
    assert sorted(path.name for path in moved.iterdir()) == ["journal", "spool"]
    assert [path.name for path in state_dir.iterdir()] == ["lock"]


def test_nothing_is_moved_if_there_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    assert StateDirectory(tmp_path).move_aside() is None
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_an_interrupted_fresh_start_is_completed_by_the_next(tmp_path: Path) -> None:
    """The journal moves last, so the next --fresh moves the files that a crash left."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "mask-1.bin").write_bytes(b"old")
    (tmp_path / "state" / "lock").touch()
    moved = StateDirectory(tmp_path / "state").move_aside()
    assert moved is not None
    assert (moved / "mask-1.bin").read_bytes() == b"old"
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]
    assert StateDirectory(tmp_path / "state").move_aside() is None


@pytest.mark.parametrize(
    "name", ["mask-1.bin", "values-3.f32", "manifest-ab.json", "initial-ab.f32"]
)
def test_model_files_are_detected(tmp_path: Path, name: str) -> None:
    """A coordinator without its journal must not start a new run over them."""
    store = Store(tmp_path, seed=0)
    assert not store.holds_something()
    (tmp_path / name).touch()
    assert store.holds_something()
