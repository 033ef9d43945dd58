from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ssfl.method.initialize import initial_vector
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.method.model_state import ModelState, values_digest
from ssfl.server.errors import StateError
from ssfl.server.run.state import Best
from ssfl.server.storage.model_store import Store
from ssfl.strategies.contract import ClientId

SEED = 5


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, SEED)


@pytest.fixture
def sent() -> Manifest:
    """A model whose initial weights do not follow from the seed."""
    return Manifest((TensorSpec("w", (3,), Role.MASKED, Init("sent")),))


def load(store: Store, model: ModelState, step: int = 7) -> ModelState:
    assert model.mask is not None
    begun = ModelState(model.manifest, model.initial)
    return store.load_step(
        step, begun, model.mask_epoch, model.mask.digest.hex(), model.base_digest.hex()
    )


def test_a_stored_model_is_loaded_unchanged(store: Store, model: ModelState) -> None:
    store.save_initial(model.manifest, model.initial)
    store.save_step(7, model)
    manifest = store.load_manifest(model.manifest.digest.hex())
    assert manifest == model.manifest
    initial = store.load_initial(manifest, model.initial_digest.hex())
    assert initial.tobytes() == model.initial.tobytes()
    again = load(store, model)
    assert (again.mask, again.mask_epoch) == (model.mask, model.mask_epoch)
    assert again.base_digest == model.base_digest


@pytest.mark.parametrize("trouble", ["missing", "damaged", "short"])
def test_initial_weights_are_rebuilt_from_the_seed_if_their_file_is_missing_or_damaged(
    store: Store, model: ModelState, trouble: str
) -> None:
    store.save_initial(model.manifest, model.initial)
    (path,) = store.root.glob("initial-*.f32")
    assert path.read_bytes() == model.initial.tobytes()
    match trouble:
        case "missing":
            path.unlink()
        case "damaged":
            path.write_bytes(b"\x01" + path.read_bytes()[1:])
        case _:
            path.write_bytes(path.read_bytes()[:-3])
    again = store.load_initial(model.manifest, model.initial_digest.hex())
    assert again.tobytes() == model.initial.tobytes()


def test_released_vectors_of_a_lean_state_are_read_again(store: Store, model: ModelState) -> None:
    whole = model.initial + np.float32(1)
    rich = replace(model, scored=whole, scored_digest=b"", resting=whole)
    store.save_initial(model.manifest, model.initial)
    store.save_step(7, rich)
    lean = store.lean(rich)
    for _ in range(2):
        assert lean.initial.tobytes() == model.initial.tobytes()
        assert lean.whole.tobytes() == rich.whole.tobytes()
        assert (lean.initial_digest, lean.whole_digest) == (rich.initial_digest, rich.whole_digest)
        lean.release()
    assert lean.scored is lean.resting, "one vector, not two"
    assert store.lean(lean) is lean
    (store.root / "scored-1.f32").unlink()
    with pytest.raises(StateError, match=r"scored-1\.f32 is missing"):
        _ = lean.whole


def test_a_damaged_or_missing_change_is_none(store: Store, model: ModelState) -> None:
    store.save_step(7, replace(model, change=memoryview(b"coded")))
    found = store.load_change(7)
    assert found is not None and bytes(found) == b"coded"
    path = store.root / "change-7.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert store.load_change(7) is None
    store.drop_older(8, 1)
    assert not path.exists()
    assert store.load_change(7) is None


def test_uploaded_initial_weights_are_loaded_bit_for_bit(store: Store, sent: Manifest) -> None:
    initial = np.array([0x80000000, 0x3F800000, 1], dtype=np.uint32).view(np.float32)
    store.save_initial(sent, initial)
    again = store.load_initial(sent, values_digest(initial).hex())
    assert again.tobytes() == initial.tobytes()


def test_two_clients_that_describe_their_models_at_once_do_not_overwrite_each_other(
    store: Store, sent: Manifest
) -> None:
    first, second = np.zeros(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    store.save_initial(sent, first)
    store.save_initial(sent, second)
    assert store.load_initial(sent, values_digest(first).hex()).tolist() == [0, 0, 0]
    assert store.load_initial(sent, values_digest(second).hex()).tolist() == [1, 1, 1]


def test_another_seed_or_version_that_builds_other_weights_is_refused(
    store: Store, model: ModelState
) -> None:
    other = initial_vector(model.manifest, SEED + 1)
    with pytest.raises(StateError, match="builds other initial weights from the seed"):
        store.load_initial(model.manifest, values_digest(other).hex())


def test_values_older_than_the_previous_step_are_dropped(store: Store, model: ModelState) -> None:
    for step in (2, 7, 10, 11):
        store.save_step(step, model)
    store.drop_older(10, 1)
    names = sorted(path.name for path in store.root.glob("values-*"))
    assert names == ["values-10.f32", "values-11.f32", "values-7.f32"]


def test_scored_models_of_older_masks_are_dropped(store: Store, model: ModelState) -> None:
    whole = model.initial + np.float32(1)
    for epoch in (2, 3):
        store.save_step(epoch, replace(model, mask_epoch=epoch, scored=whole, scored_digest=b""))
    store.drop_older(3, 3)
    names = sorted(path.name for path in store.root.iterdir())
    assert names == [
        "mask-2.bin", "mask-3.bin", "scored-3.f32", "values-2.f32", "values-3.f32",
    ], "masks stay"  # fmt: skip
    again = store.load_scored(3, values_digest(whole).hex())
    assert again.tobytes() == whole.tobytes()


def test_the_best_model_is_kept_until_a_better_one(store: Store, model: ModelState) -> None:
    assert model.mask is not None and model.values is not None
    store.save_step(4, model)
    store.keep_best(4)
    store.save_step(6, replace(model, values=model.values + 1))
    store.drop_older(6, 1)
    best = Best(
        4, 2, 1, model.mask.digest.hex(), model.base_digest.hex(), 0.5, 1.0, "test",
        (ClientId("c1"),),
    )  # fmt: skip
    newest = replace(model, mask=None, mask_epoch=9, values=None)
    again = store.load_best(best, newest)
    assert (again.mask, again.mask_epoch, again.base_digest) == (model.mask, 1, model.base_digest)
    store.keep_best(4)
    store.keep_best(6)
    assert [path.name for path in store.root.glob("best-*")] == ["best-6.f32"]
    with pytest.raises(StateError, match=r"best-4\.f32 is missing"):
        store.load_best(best, newest)


def test_values_of_a_later_step_replace_nothing(store: Store, model: ModelState) -> None:
    assert model.values is not None
    store.save_step(7, model)
    store.save_step(8, replace(model, values=model.values + 1))
    assert load(store, model, step=7).base_digest == model.base_digest


Damage = Callable[[Path], object]
DAMAGES: dict[str, Damage] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "one bit": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1])),
}


@pytest.mark.parametrize("pattern", ["manifest-*.json", "initial-*.f32", "mask-1.bin", "values-7*"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_missing_or_changed_file_is_refused_with_a_remedy(
    store: Store, sent: Manifest, model: ModelState, pattern: str, damage: str
) -> None:
    initial = np.ones(3, dtype=np.float32)
    store.save_initial(sent, initial)
    store.save_step(7, model)
    (path,) = store.root.glob(pattern)
    DAMAGES[damage](path)
    with pytest.raises(StateError) as caught:
        store.load_manifest(sent.digest.hex())
        store.load_initial(sent, values_digest(initial).hex())
        load(store, model)
    problem = "is missing" if damage == "missing" else "does not match the journal"
    assert str(caught.value) == (
        f"{path} {problem}: restore the state directory from a backup, "
        "or use --fresh to begin again"
    )


def test_a_mask_of_another_size_with_the_same_bits_is_refused(
    store: Store, model: ModelState
) -> None:
    store.save_step(7, model)
    wider = Manifest((TensorSpec("w", (7,), Role.MASKED, Init("zeros")),))
    with pytest.raises(StateError, match=r"mask-1\.bin does not match"):
        load(store, replace(model, manifest=wider))
