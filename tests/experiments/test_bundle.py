"""Packed results: what a check accepts, and what it finds."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssfl.experiments import bundle
from ssfl.experiments.bundle import MANIFEST, _seal, check, differences, pack
from ssfl.experiments.contract import Experiment, Runs
from ssfl.experiments.recipe import Recipe
from ssfl.method.streams import Stream
from ssfl.program.exits import ExitCode
from ssfl.program.settings.loading import Setting
from ssfl.study.data import DataSpec
from ssfl.study.errors import StudyError
from ssfl.study.run_spec import RunSpec, digest_of
from ssfl.study.summary import write_summary
from ssfl.study.sweep import run_all
from ssfl.tools.main import main

pytestmark = pytest.mark.system
Members = dict[str, bytes]


def specs(recipe: Recipe) -> list[RunSpec]:
    small: dict[str, Setting] = {"rounds": 2, "model": "mlp", "width": 4, "local_steps": 1}
    data = DataSpec(clients=3, samples_per_client=20)
    return [
        RunSpec(name, data, {**small, "sparsity": sparsity}, seed)
        for name, sparsity in (("half", "0.5"), ("most", "0.9"))
        for seed in recipe.seeds
    ]


TINY = Experiment(
    "tiny",
    "Tiny",
    "None.",
    specs,
    lambda _recipe, runs: {
        "rows": [runs.difference("half − most", "half", "most", measure="mean")]
    },
    lambda _result, _path: None,
)


@pytest.fixture(scope="module", autouse=True)
def _tiny() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "EXPERIMENTS", {"tiny": TINY})
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a summary, an experiment, four runs and a chart."""
    place, recipe = tmp_path_factory.mktemp("results"), Recipe.quick((0, 1), "digits")
    results = run_all(specs(recipe), place, workers=1)
    write_summary(place, results)
    document = {**TINY.document(recipe, Runs(results)), "software": "0", "scale": "small"}
    document["runs"] = [f"runs/{result.path.name}" for result in results]
    (place / "tiny.json").write_text(json.dumps(document))
    (place / "tiny.png").write_bytes(b"a chart")
    (place / "other.json").write_text("[]")
    return place


@pytest.fixture(scope="module")
def packed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("packed") / "results.zip"
    assert pack(folder, file).runs == 4
    return file.read_bytes()


def members_of(archive: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(archive)) as found:
        return {name: found.read(name) for name in found.namelist()}


def written(members: Members, file: Path, *, sealed: bool = False) -> Path:
    """Write members as an archive; `sealed` writes the manifest that fits them."""
    if sealed:
        manifest = json.loads(members[MANIFEST])
        others = {name: data for name, data in members.items() if name != MANIFEST}
        manifest["files"] = {name: _seal(data) for name, data in others.items()}
        members = {**members, MANIFEST: json.dumps(manifest).encode()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file


def changed(members: Members, name: str, change: Callable[[Any], object]) -> Members:
    document = json.loads(members[name])
    change(document)
    return {**members, name: json.dumps(document).encode()}


def a_run(members: Members) -> str:
    return min(name for name in members if name.startswith("runs/"))


def test_results_agree_with_themselves_and_have_no_chart(packed: bytes, tmp_path: Path) -> None:
    file = tmp_path / "results.zip"
    file.write_bytes(packed)
    checked = check(file)
    assert checked.problems == [] and checked.runs == 4 and checked.concluded == ["tiny"]
    members = members_of(packed)
    others = {"manifest.json", "summary.json", "tiny.json"}
    assert {name for name in members if not name.startswith("runs/")} == others
    manifest = json.loads(members[MANIFEST])
    assert manifest["torch"] and manifest["software"] and len(manifest["code"]) == 12


def test_the_same_results_give_the_same_file(packed: bytes, folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed


def test_a_changed_byte_of_any_member_is_found_and_named(packed: bytes, tmp_path: Path) -> None:
    members = members_of(packed)
    for name in members:
        if name == MANIFEST:
            continue
        data = bytearray(members[name])
        data[len(data) // 2] ^= 1
        checked = check(written({**members, name: bytes(data)}, tmp_path / "changed.zip"))
        assert checked.problems == [f"{name} has changed: its SHA-256 is another one"]


def test_a_changed_byte_of_the_file_changes_no_result_unnoticed(
    packed: bytes, tmp_path: Path
) -> None:
    members, file = members_of(packed), tmp_path / "changed.zip"
    for place in Stream(0, "changed bytes").choose(len(packed), 60):
        data = bytearray(packed)
        data[place] ^= 0x55
        file.write_bytes(bytes(data))
        try:
            found = check(file).problems
        except StudyError:
            continue
        assert found or members_of(bytes(data)) == members, place


def test_a_result_that_does_not_follow_from_its_run_is_named(packed: bytes, tmp_path: Path) -> None:
    members = members_of(packed)

    def better(run: dict[str, Any]) -> None:
        run["history"]["evaluations"][-1]["pooled"] += 0.125

    forged = changed(members, a_run(members), better)
    found = check(written(forged, tmp_path / "forged.zip", sealed=True)).problems
    assert found and all(text.startswith("summary.json: ") for text in found)
    assert any("configurations[0].pooled.mean: " in text for text in found)


def test_a_row_that_does_not_follow_from_the_runs_is_named(packed: bytes, tmp_path: Path) -> None:
    def better(document: dict[str, Any]) -> None:
        document["rows"][0]["mean"] = 0.5

    forged = changed(members_of(packed), "tiny.json", better)
    (found,) = check(written(forged, tmp_path / "forged.zip", sealed=True)).problems
    assert found.startswith("tiny.json: rows[0].mean: 0.5 is stored, ")


def test_other_settings_than_those_of_the_digest_are_named(packed: bytes, tmp_path: Path) -> None:
    members = members_of(packed)
    name = a_run(members)

    def rounds(run: dict[str, Any]) -> None:
        run["spec"]["settings"]["rounds"] = 3

    forged = changed(members, name, rounds)
    found = check(written(forged, tmp_path / "forged.zip", sealed=True)).problems
    assert f"{name}: settings.rounds: 3 is stored, 2 was computed" in found

    def everywhere(run: dict[str, Any]) -> None:
        rounds(run)
        run["ingredients"]["settings"]["rounds"] = run["history"]["settings"]["rounds"] = 3

    forged = changed(members, name, everywhere)
    (found_digest,) = check(written(forged, tmp_path / "forged.zip", sealed=True)).problems
    assert found_digest == (
        f"{name}: the digest in its name is not that of its settings, data and code"
    )


def test_a_missing_and_a_further_member_are_named(packed: bytes, tmp_path: Path) -> None:
    members = members_of(packed)
    name = a_run(members)
    without = {key: data for key, data in members.items() if key != name}
    checked = check(written({**without, "more.json": b"{}"}, tmp_path / "other.zip"))
    assert checked.problems == ["more.json is not in the manifest", f"{name} is missing"]


@pytest.mark.parametrize(
    "name",
    ["../x.json", "/x.json", "runs/../x.json", "runs\\x.json", "a/b.json", ".x.json", "x.py"],
)
def test_a_name_outside_of_the_archive_is_refused_before_anything_is_read(
    packed: bytes, tmp_path: Path, name: str
) -> None:
    file = written({**members_of(packed), name: b"{}"}, tmp_path / "bad.zip", sealed=True)
    with pytest.raises(StudyError, match="has a member with a wrong name"):
        check(file)
    assert list(tmp_path.iterdir()) == [file]


def test_a_member_that_is_too_large_is_refused(
    packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.zip"
    file.write_bytes(packed)
    monkeypatch.setattr(bundle, "MAX_BYTES", 1000)
    with pytest.raises(StudyError, match=r"is too large: [\d,]+ bytes"):
        check(file)
    monkeypatch.setattr(bundle, "MAX_BYTES", 1 << 28)
    monkeypatch.setattr(bundle, "MAX_TOTAL", 1000)
    with pytest.raises(StudyError, match="is too large"):
        check(file)


def test_no_file_that_a_run_names_is_loaded(packed: bytes, tmp_path: Path) -> None:
    members, marker = members_of(packed), tmp_path / "loaded"
    rule = tmp_path / "rule.py"
    rule.write_text(f"open({str(marker)!r}, 'w')")
    name = a_run(members)
    for change, named in (
        (lambda run: run["spec"]["settings"].update(strategy=str(rule)), str(rule)),
        (lambda run: run["spec"].update(task=str(rule)), str(rule)),
        (lambda run: run["spec"]["data"].update(source="/etc"), "/etc"),
    ):

        def sealed_run(run: dict[str, Any], change: Callable[[Any], object] = change) -> None:
            change(run)
            run["ingredients"] = {**run["ingredients"], **run["spec"]}

        forged = changed(members, name, sealed_run)
        run = json.loads(forged[name])
        other = f"runs/half-0-{digest_of(run['ingredients'])}.json"
        forged = {other if key == name else key: data for key, data in forged.items()}
        found = check(written(forged, tmp_path / "forged.zip", sealed=True)).problems
        assert found == [f"{other} cannot be checked: it uses {named}, which is not part of ssfl"]
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"{}", b"[]", b"not json", b'{"format": 1, "spec": 1}'])
def test_malformed_members_are_named(packed: bytes, tmp_path: Path, content: bytes) -> None:
    members = members_of(packed)
    name = a_run(members)
    found = check(written({**members, name: content}, tmp_path / "bad.zip", sealed=True)).problems
    assert found and all(text.startswith(name) for text in found)
    for wrong in (content, b'{"files": [], "format": 1}', b'{"files": {"a": 1}, "format": 1}'):
        file = written({**members, MANIFEST: wrong}, tmp_path / "bad.zip")
        try:
            assert check(file).problems
        except StudyError as error:
            assert MANIFEST in str(error)


def test_differences_name_the_place_and_leave_new_keys_out() -> None:
    assert list(differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3, "c": 4}]})) == [
        "a[1].b: 2 is stored, 3 was computed"
    ]
    assert list(differences({"a": 1}, {})) == ["a was not computed"]
    assert list(differences({"a": 1}, {}, both=True)) == []
    assert list(differences([1], [1, 2], "rows")) == ["rows: [1] is stored, [1, 2] was computed"]


def test_the_command_packs_and_checks(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.zip"
    assert main(["paper", "--pack", str(file), "--out", str(folder)]) == ExitCode.DONE
    assert "4 runs, 7 files" in capsys.readouterr().out
    assert main(["paper", "--check", str(file)]) == ExitCode.DONE
    output = capsys.readouterr().out
    assert "All digests and the settings of all runs agree" in output
    assert "Computed again from their runs: tiny." in output
    members = members_of(file.read_bytes())
    written({**members, "tiny.json": b"{}"}, file)
    assert main(["paper", "--check", str(file)]) == ExitCode.BAD_DATA
    assert capsys.readouterr().err == (
        "ssfl paper: tiny.json has changed: its SHA-256 is another one\n"
    )


def test_a_wrong_folder_or_file_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.zip").write_text("no archive")
    for argv, text in (
        (["--pack", "x.zip", "--out", str(tmp_path)], "has no results of `ssfl paper`"),
        (["--check", str(tmp_path / "missing.zip")], "cannot be read: No such file"),
        (["--check", str(tmp_path / "text.zip")], "is not an archive of `ssfl paper --pack`"),
        (["--check", "a", "--pack", "b"], "give one of them"),
    ):
        assert main(["paper", *argv]) == ExitCode.USAGE
        assert text in capsys.readouterr().err
