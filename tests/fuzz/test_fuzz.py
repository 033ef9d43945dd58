"""No bytes break a decoder: stored inputs run everywhere, new ones for a few seconds per target.

New inputs come from atheris, guided by coverage. run_target.py explains longer searches.
"""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.targets import TARGETS

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
SECONDS = 60 // len(TARGETS)  # each: together about a minute
# In instrumented code, atheris leaks the result of every comparison of arrays: 5 KB per run of
# bfloat16. More runs than this would reach run_target's limit of memory on a fast machine.
RUNS = 60_000
MAX_FILES, MAX_BYTES = 60, 4096  # of a corpus and of a file, to keep runs short

# The platforms for which pyproject.toml requires atheris; others have no wheel.
HAS_WHEEL = (
    sys.version_info < (3, 13) and sys.platform == "linux" and platform.machine() == "x86_64"
)
BROKEN = """
import atheris
from fuzz import run_target, targets
@atheris.instrument_func
def fails_deep_inside(data):
    if data[:1] == b"b" and data[1:2] == b"u" and data[2:3] == b"g":
        raise IndexError("found")
targets.TARGETS["broken"] = fails_deep_inside
run_target.main(["broken", "-max_total_time=60", "-seed=1"])
"""


def stored(target: str) -> list[Path]:
    return sorted((CORPUS / target).iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_stored_inputs_decode_or_are_a_typed_error(target: str) -> None:
    decoded = [TARGETS[target](file.read_bytes()) for file in stored(target)]
    assert any(decoded), "has the format changed? make_seeds.py writes payloads of today"


@pytest.mark.parametrize("target", TARGETS)
def test_a_corpus_exists_and_is_small(target: str) -> None:
    files = stored(target)
    assert 0 < len(files) <= MAX_FILES
    assert max(file.stat().st_size for file in files) <= MAX_BYTES


def test_every_corpus_has_a_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.system
@pytest.mark.skipif(not HAS_WHEEL, reason="atheris has no wheel for this Python or platform")
@pytest.mark.parametrize("target", TARGETS)
def test_fresh_inputs_decode_or_are_a_typed_error(target: str, tmp_path: Path) -> None:
    found = tmp_path / "found"
    found.mkdir()
    limits = [f"-max_total_time={SECONDS}", f"-runs={RUNS}"]
    command = [sys.executable, str(HERE / "run_target.py"), target, *limits]
    folders = [str(found), str(CORPUS / target)]
    # From a shell: a process counts the memory of the one it was forked from as its own peak, and
    # a pytest that has run thousands of tests is larger than the fuzzer's limit.
    shell = ("sh", "-c", '"$@"; exit $?', "sh")
    done = subprocess.run(
        [*shell, *command, "-seed=1", f"-artifact_prefix={tmp_path}/", *folders],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    crashes = [f"{file.name}: {file.read_bytes().hex()}" for file in tmp_path.glob("*-*")]
    assert (done.returncode, crashes) == (0, []), done.stdout[-2000:] + done.stderr[-4000:]
    assert "Done " in done.stderr, "nothing was run"


@pytest.mark.system
@pytest.mark.skipif(not HAS_WHEEL, reason="atheris has no wheel for this Python or platform")
def test_the_fuzzer_finds_an_untyped_error_behind_three_branches(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(HERE.parent)},
        timeout=120,
    )
    assert done.returncode != 0 and "IndexError: found" in done.stdout + done.stderr
    (crash,) = tmp_path.glob("crash-*")
    assert crash.read_bytes()[:3] == b"bug"
