"""What a client keeps between its steps takes effect only if its step counted."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ssfl.client.memory import ClientMemory, Items, StepMemory, residual_items, residual_of
from ssfl.method.mask import Mask

ONE = np.array([0.5, -0.25, 0.0], dtype=np.float32)
MASK = Mask.from_bools(np.array([True, False, True]))
RUN = "run-1"


@pytest.fixture
def memory(tmp_path: Path) -> ClientMemory:
    return ClientMemory(tmp_path)


def listed(items: Items) -> dict[str, list[float]]:
    return {
        name: [float(x) for x in (one.bools() if isinstance(one, Mask) else one)]
        for name, one in items.items()
    }


def put(
    memory: ClientMemory, step: int, round_number: int, **puts: npt.NDArray[np.float32]
) -> None:
    memory.save_next(RUN, step, round_number, puts)


def test_a_step_sees_what_it_puts() -> None:
    step = StepMemory({"v": ONE})
    assert step.vector("v") is ONE and step.vector("none") is None and step.mask("v") is None
    step.put("v", ONE * 2)
    step.put("m", MASK)
    assert step.vector("v") is step.puts["v"] and step.mask("m") == MASK
    assert step.vector("m") is None


def test_puts_take_effect_when_the_step_counted(memory: ClientMemory) -> None:
    memory.save_next(RUN, 4, 0, {"v": ONE, "m": MASK})
    assert memory.load(RUN, 1) == {}
    memory.settle(5, 4)
    assert listed(memory.load(RUN, 1)) == {"v": [0.5, -0.25, 0.0], "m": [1.0, 0.0, 1.0]}
    assert memory.load("run-2", 1) == {}


def test_a_void_step_leaves_no_trace(memory: ClientMemory) -> None:
    put(memory, 4, 0, v=ONE)
    memory.settle(5, 4)
    put(memory, 5, 1, v=ONE * 2)
    memory.settle(6, 4)  # step 5 was void
    assert listed(memory.load(RUN, 1)) == {"v": [0.5, -0.25, 0.0]}
    put(memory, 6, 1, v=ONE * 4)
    memory.settle(7, 6)
    assert listed(memory.load(RUN, 2)) == {"v": [2.0, -1.0, 0.0]}


def test_a_step_asked_again_is_not_settled(memory: ClientMemory) -> None:
    put(memory, 4, 0, v=ONE)
    memory.settle(4, 0)
    memory.settle(5, 4)
    assert "v" in memory.load(RUN, 1)


def test_names_that_a_step_does_not_put_stay(memory: ClientMemory) -> None:
    put(memory, 1, 0, a=ONE, b=ONE * 2)
    memory.settle(2, 1)
    put(memory, 2, 1, b=ONE * 4)
    memory.settle(3, 2)
    assert listed(memory.load(RUN, 2)) == {"a": [0.5, -0.25, 0.0], "b": [2.0, -1.0, 0.0]}


def test_a_new_run_begins_without_memory(memory: ClientMemory) -> None:
    put(memory, 1, 0, a=ONE)
    memory.settle(2, 1)
    memory.save_next("run-2", 1, 0, {"b": ONE})
    memory.settle(2, 1)
    assert set(memory.load("run-2", 1)) == {"b"} and memory.load(RUN, 1) == {}


def test_two_steps_of_one_round_both_count(memory: ClientMemory) -> None:
    """A step that does not count as a round has the number of the round that follows."""
    put(memory, 1, 0, a=ONE)
    memory.settle(2, 1)
    assert "a" in memory.load(RUN, 0)


def test_without_a_report_the_receipt_decides_until_the_round_comes_again(
    memory: ClientMemory,
) -> None:
    """An older coordinator does not report which steps counted."""
    put(memory, 1, 0, v=ONE)
    memory.settle(2, None)
    assert memory.load(RUN, 0) == {}, "round 0 again: it was void"
    assert listed(memory.load(RUN, 1)) == {"v": [0.5, -0.25, 0.0]}
    put(memory, 2, 1, v=ONE * 2)
    memory.settle(3, None)
    assert listed(memory.load(RUN, 1)) == {"v": [0.5, -0.25, 0.0]}, "round 1 again"
    put(memory, 3, 1, v=ONE * 4)
    memory.settle(4, None)
    assert listed(memory.load(RUN, 1)) == {"v": [0.5, -0.25, 0.0]}, "and again"
    assert listed(memory.load(RUN, 2)) == {"v": [2.0, -1.0, 0.0]}


def test_a_damaged_or_missing_item_is_left_out(memory: ClientMemory, tmp_path: Path) -> None:
    memory.save_next(RUN, 1, 0, {"v": ONE, "m": MASK})
    memory.settle(2, 1)
    for path in (tmp_path / "memory").iterdir():
        data = path.read_bytes()
        path.write_bytes(b"x" + data)
        assert len(memory.load(RUN, 1)) == 1
        path.write_bytes(data)
    (tmp_path / "memory.json").write_bytes(b"{}")
    assert memory.load(RUN, 1) == {}


def test_items_that_no_index_names_are_deleted(memory: ClientMemory, tmp_path: Path) -> None:
    for step in range(1, 9):
        put(memory, step, step, v=ONE * step)
        memory.settle(step + 1, step)
    assert len(list((tmp_path / "memory").iterdir())) == 1


def test_a_residual_belongs_to_its_mask() -> None:
    items = residual_items(ONE, MASK)
    assert residual_of(items, MASK) is ONE
    assert residual_of(items, Mask.full(3)) is None
    assert residual_of({}, MASK) is None and residual_items(None, MASK) == {}
