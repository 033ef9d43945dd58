"""Lossy runs: their code, the random words of rounding, and the committed values."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ssfl.codec import blocks
from ssfl.codec.grid import Grid
from ssfl.method.settings import VALUE_TYPES, RunSettings
from ssfl.method.value_types import (
    commit_change,
    commit_values,
    lossy_code,
    random_words,
    rounding_words,
)

Vector = npt.NDArray[np.float32]
LOSSY = [name for name in VALUE_TYPES if name != "float32"]
BASE_DIGEST = bytes(range(32))


def run_of(value_type: str, **changes: object) -> RunSettings:
    return replace(RunSettings(value_type=value_type), **changes)  # type: ignore[arg-type]


def walk(size: int = 1000) -> tuple[Vector, Vector]:
    """Return values, and others close to them."""
    rng = np.random.default_rng(3)
    base = rng.normal(0, 0.1, size).astype(np.float32)
    return base, (base + rng.normal(0, 1e-3, size)).astype(np.float32)


def test_every_value_type_has_its_code() -> None:
    names = {name: code.name if (code := lossy_code(run_of(name))) else "" for name in VALUE_TYPES}
    assert names == {"float32": "", **{name: name for name in LOSSY}}


def test_the_grid_is_as_fine_as_the_settings_say() -> None:
    assert lossy_code(run_of("grid", grid_bits=9)) == Grid(9)


def test_words_are_named_by_seed_purpose_and_name() -> None:
    words = random_words(7, 5, "rounding", "update", 3, "ann")
    assert (words.dtype.name, words.size) == ("uint32", 5), "also an odd number of them"
    assert random_words(7, 4, "rounding", "update", 3, "ann").tolist() == words[:4].tolist()
    others = [
        random_words(8, 5, "rounding", "update", 3, "ann"),
        random_words(7, 5, "scores", "update", 3, "ann"),
        random_words(7, 5, "rounding", "update", 4, "ann"),
        random_words(7, 5, "rounding", "update", 3, "bob"),
    ]
    assert len({words.tobytes(), *(other.tobytes() for other in others)}) == 5


def test_words_do_not_depend_on_the_machine() -> None:
    """The 64-bit words of the stream, the lower half of each first."""
    words = [0x5C1E3E48, 0xAB050119, 0xE015BAE3, 0xE05D3862]
    assert random_words(0, 4, "rounding", "update", 0, "ann").tolist() == words


def test_there_are_words_only_to_round_stochastically() -> None:
    assert rounding_words(run_of("int8", rounding="nearest"), 5, "update") is None
    words = rounding_words(run_of("int8", seed=7), 5, "update", 3, "ann")
    assert words is not None
    assert words.tolist() == random_words(7, 5, "rounding", "update", 3, "ann").tolist()


def test_an_exact_run_commits_the_mean() -> None:
    base, mean = walk()
    values, change = commit_change(run_of("float32"), base, mean, BASE_DIGEST)
    assert values is mean
    assert change is None


@pytest.mark.parametrize("value_type", LOSSY)
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_a_lossy_run_commits_what_every_client_will_have(value_type: str, rounding: str) -> None:
    settings = run_of(value_type, rounding=rounding)
    base, mean = walk()
    values, change = commit_change(settings, base, mean, BASE_DIGEST)
    code = lossy_code(settings)
    assert change is not None and code is not None
    received = blocks.decode(code, change, base.size, base)
    assert received.tobytes() == values.tobytes() != mean.tobytes()
    assert len(change) < 0.75 * mean.nbytes
    assert blocks.relative_error(mean, values, base) < 0.05
    again, same = commit_change(settings, base, mean, BASE_DIGEST)
    assert (again.tobytes(), same) == (values.tobytes(), change), "also after a restart"


def test_the_rounding_of_a_commit_follows_from_seed_and_base() -> None:
    base, mean = walk()
    settings = run_of("int8")
    commits = {
        commit_change(settings, base, mean, BASE_DIGEST)[0].tobytes(),
        commit_change(settings, base, mean, bytes(32))[0].tobytes(),
        commit_change(replace(settings, seed=1), base, mean, BASE_DIGEST)[0].tobytes(),
    }
    assert len(commits) == 3


def test_a_change_too_large_for_its_code_is_committed_as_it_is() -> None:
    """A fine grid only holds small changes; a large change must not end the run."""
    base = np.zeros(3, dtype=np.float32)
    mean = np.array([0, 1, 0.25], dtype=np.float32)  # on the grid 2^-40, 2^-9 is too much
    values, change = commit_change(run_of("grid", grid_bits=40), base, mean, BASE_DIGEST)
    assert values.tolist() == [0, 1, 0.25]
    assert change is None


@given(st.data())
def test_any_mean_of_updates_can_be_committed(data: st.DataObject) -> None:
    """Means are at most 1024, the bound of the sum; every type gives a close next base."""
    value = st.floats(-1024, 1024, width=32)
    base, mean = (data.draw(hnp.arrays(np.float32, 5, elements=value)) for _ in range(2))
    bits = data.draw(st.integers(1, 40))
    settings = run_of(data.draw(st.sampled_from(VALUE_TYPES)), grid_bits=bits)
    values, _ = commit_change(settings, base, mean, BASE_DIGEST)
    largest = float(np.abs(mean.astype(np.float64) - base).max())
    lost = np.abs(values.astype(np.float64) - mean)
    assert (lost <= max(largest / 120, 2.0**-bits) + 1e-3).all()


# -- downloads = values


def steps_of(values: Vector) -> Vector:
    """Return the int8 step of every value: the largest of its 256 / 127."""
    groups = [np.abs(values[at : at + 256]).max() / 127 for at in range(0, values.size, 256)]
    return np.repeat(groups, 256)[: values.size].astype(np.float32)


@pytest.mark.parametrize("value_type", LOSSY)
def test_coded_values_are_what_a_client_reads_without_any_base(value_type: str) -> None:
    settings = run_of(value_type, downloads="values")
    _, mean = walk()
    values, payload, residual = commit_values(settings, mean, None)
    code = lossy_code(settings)
    assert payload is not None and residual is not None and code is not None
    received = blocks.decode(code, payload, mean.size, None)
    assert received.tobytes() == values.tobytes() != mean.tobytes()
    assert (residual == mean - values).all()
    assert commit_change(settings, values, mean, BASE_DIGEST) == (mean, None), "not coded twice"


def test_coded_values_are_rounded_to_nearest_whatever_the_rounding_of_updates() -> None:
    _, mean = walk()
    settings = run_of("int8", downloads="values", rounding="stochastic")
    values, payload, residual = commit_values(settings, mean, None)
    nearest = commit_values(replace(settings, rounding="nearest"), mean, None)
    assert payload is not None and residual is not None
    assert (values.tobytes(), payload) == (nearest[0].tobytes(), nearest[1])
    assert (np.abs(residual) <= 0.501 * steps_of(mean)).all()
    assert len(payload) < 0.26 * mean.nbytes


def test_the_residual_makes_up_for_what_rounding_lost() -> None:
    """The values sent plus the residual follow the exact model, round by round."""
    settings = run_of("int8", downloads="values")
    rng = np.random.default_rng(9)
    exact, _ = walk()
    values, residual = exact, None
    for _ in range(20):
        update = rng.normal(0, 1e-5, exact.size).astype(np.float32)  # far below a step
        exact = exact + update
        values, _, residual = commit_values(settings, values + update, residual)
        assert residual is not None
        assert np.allclose(values + residual, exact, rtol=0, atol=1e-6)
        assert (np.abs(residual) <= 0.51 * steps_of(exact)).all(), "it does not grow"


def test_values_too_large_for_their_code_are_committed_exactly_with_the_residual() -> None:
    settings = run_of("grid", grid_bits=40, downloads="values")
    mean, residual = np.array([0, 1], dtype=np.float32), np.array([0.5, 0.25], dtype=np.float32)
    values, payload, left = commit_values(settings, mean, residual)
    assert (values.tolist(), payload, left) == ([0.5, 1.25], None, None)
