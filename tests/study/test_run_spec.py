import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssfl import api
from ssfl.datasets.published.digits import digits
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.write import make_shards
from ssfl.method.settings import RunSettings
from ssfl.study.data import DataSpec
from ssfl.study.errors import StudyError
from ssfl.study.one_run import run_one
from ssfl.study.run_spec import STUDY_SETTINGS, RunSpec, code_digest

BASE = RunSpec("a", DataSpec(clients=4), {"rounds": 2})


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, seed=1),
        replace(BASE, mode="fast"),
        replace(BASE, task="table"),
        replace(BASE, data=DataSpec(clients=5)),
        replace(BASE, settings={"rounds": 3}),
        replace(BASE, settings={"rounds": 2, "profile": "paper"}),
        replace(BASE, arrivals={"shard_03": 1}),
        replace(BASE, name="b"),
    ],
)
def test_anything_that_changes_a_run_changes_its_digest(other: RunSpec) -> None:
    assert other.digest() != BASE.digest()
    assert other.file_name() != BASE.file_name()


@pytest.mark.parametrize(
    "settings",
    [{"rounds": "2"}, {"rounds": 2, "sparsity": 0.9}, {"rounds": 2, "profile": "ours"}],
)
def test_equal_settings_in_another_form_have_the_same_digest(settings: dict[str, Any]) -> None:
    assert replace(BASE, settings=settings).digest() == BASE.digest()


def test_a_changed_task_file_changes_the_digest(tmp_path: Path) -> None:
    task = tmp_path / "mine.py"
    spec = replace(BASE, task=str(task))
    task.write_text("first = 1")
    before = spec.digest()
    task.write_text("second = 2")
    assert spec.digest() != before


def test_another_version_of_the_software_changes_the_digest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = BASE.digest()
    monkeypatch.setattr("ssfl.study.run_spec.version", lambda name: f"{name} of tomorrow")
    assert BASE.digest() != before


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the digest treats as the code of ssfl."""
    BASE.digest()  # imports all modules it needs
    with monkeypatch.context() as patch:
        patch.setattr("ssfl.__path__", [str(tmp_path)])
        code_digest.cache_clear()
        yield tmp_path
    code_digest.cache_clear()


@pytest.mark.parametrize(
    "part", ["codec", "method", "datasets", "learning", "client", "server", "simulator"]
)
def test_changed_code_changes_the_digest(code: Path, part: str) -> None:
    """A stored run of other code is not reused."""
    names: list[str] = []
    (code / part / "deep").mkdir(parents=True)
    for text in ("before = 1", "after = 2", "before = 1"):
        (code / part / "deep" / "some.py").write_text(text)
        code_digest.cache_clear()
        names.append(BASE.file_name())
    assert names[0] == names[2] != names[1]
    assert names[0].startswith("a-0-")


def test_the_digest_finds_the_code_of_ssfl() -> None:
    import ssfl.codec
    import ssfl.simulator

    roots = {Path(root).resolve() for root in ssfl.__path__}
    for package in (ssfl.codec, ssfl.simulator):
        assert any(Path(root).resolve().parent in roots for root in package.__path__)
    assert code_digest() != hashlib.sha256().hexdigest()[:12], "some code is found"


def test_a_folder_of_shards_is_read_by_the_task_and_its_content_changes_the_digest(
    tmp_path: Path,
) -> None:
    make_shards(tmp_path, digits(), Cut(clients=3))
    spec = RunSpec(
        "folder", DataSpec(source=str(tmp_path)), {"rounds": 1, "model": "mlp", "local_steps": 1}
    )
    spec.check()
    assert spec.run_settings().clients == 3
    done = api.simulate(api.read_shards(tmp_path), rounds=1, model="mlp", local_steps=1)
    assert run_one(spec)["model_digest"] == done.digest
    before = spec.digest()
    make_shards(tmp_path, digits(), Cut(clients=3, seed=1), overwrite=True)
    assert spec.digest() != before


def test_settings_count_only_the_clients_of_the_start() -> None:
    late = replace(BASE, data=DataSpec(clients=4, late_clients=1, late_round=5), seed=9)
    settings = late.run_settings()
    assert (settings.clients, settings.seed, settings.reproducible) == (3, 9, False)
    assert BASE.run_settings().reproducible
    assert late.late() == {"shard_03": 5}
    assert replace(BASE, arrivals={"shard_00": 2}).run_settings().clients == 3


def test_a_single_client_can_be_simulated() -> None:
    settings = replace(BASE, data=DataSpec(clients=1)).run_settings()
    assert (settings.clients, settings.min_clients) == (1, 1)


def test_given_settings_override_the_profile_which_overrides_the_defaults() -> None:
    spec = replace(BASE, settings={"profile": "paper", "sparsity": RunSettings().sparsity})
    assert spec.run_settings().sparsity == RunSettings().sparsity
    assert spec.run_settings().rounds == 500


@pytest.mark.parametrize("name", STUDY_SETTINGS)
def test_a_setting_that_a_study_replaces_is_refused(name: str) -> None:
    with pytest.raises(StudyError, match=f"^{name} is not a setting of a simulated run: "):
        replace(BASE, settings={name: 1}).run_settings()


def test_a_late_client_takes_part_from_its_round_on() -> None:
    data = DataSpec(clients=3, samples_per_client=20, late_clients=1, late_round=2)
    spec = RunSpec("late", data, {"rounds": 4, "model": "mlp", "local_steps": 1})
    document = run_one(spec)
    took_part = [[row["client"] for row in entry["clients"]] for entry in document["rounds"]]
    early = ["shard_00", "shard_01"]
    assert took_part == [early, early, [*early, "shard_02"], [*early, "shard_02"]]
    assert run_one(spec)["model_digest"] == document["model_digest"]
