"""Planted bugs: a change of one line each, which the tests next to the code must catch.

    make mutants

Copies the product code, changes one line, runs the named tests on the copy, and expects them to
fail. simulation/planted_bugs.py has fourteen more, of crashes and races, which `make test` runs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PARTS = ("durable", "proto", "codec", "method", "strategies", "program", "datasets", "learning",
         "server", "client", "tools")  # fmt: skip
TIMEOUT_S = 600


class Mutant(NamedTuple):
    """A line of a file, the bug that replaces it, and the tests that must fail."""

    file: str
    line: str
    bug: str
    tests: str


MUTANTS = (
    Mutant(
        "client/ssfl/client/local_state.py",
        'for name in ("answer.json", "answer.bin"):',
        'for name in ("residual",):',
        "tests/client/test_local_state.py",
    ),
    Mutant(
        "client/ssfl/client/memory.py",
        'if counted_step is not None and counted_step != pending["step"]:',
        "if counted_step == -1:",
        "tests/client/test_memory.py",
    ),
    Mutant(
        "server/ssfl/server/uploads/update_parts.py",
        "if not 0 < message.num_kept <= most:",
        "if not 0 < message.num_kept <= size:",
        "tests/server/uploads/test_update_parts.py",
    ),
    Mutant(
        "client/ssfl/client/download.py",
        "if current and same and task.offset == current.receiver.offset:",
        "if current and same:",
        "tests/client",
    ),
    Mutant(
        "server/ssfl/server/run/quorum.py",
        "member.has_final_model or is_away(state, member.client)",
        "member.client in state.members",
        "tests/server/run tests/server/loop",
    ),
    Mutant(
        "server/ssfl/server/run/state.py",
        "return min(member.num_samples, settings.max_samples)",
        "return member.num_samples",
        "tests/server/run/test_weights.py",
    ),
    Mutant(
        "server/ssfl/server/storage/journal.py",
        "file = _create(path, _blocks(taken, length))",
        "file = _create(path, _blocks(taken, taken.stat().st_size))",
        "tests/server/storage/test_journal.py",
    ),
    Mutant(
        "server/ssfl/server/rpc/session_numbers.py",
        "return hmac.compare_digest(number.to_bytes(8), expected.to_bytes(8))",
        "return number > 0 < expected",
        "tests/server/rpc",
    ),
    Mutant(
        "server/ssfl/server/uploads/verify.py",
        "bad = ~(magnitudes <= VALUE_BOUND)",
        "bad = magnitudes > VALUE_BOUND",
        "tests/server/uploads",
    ),
    Mutant(
        "server/ssfl/server/uploads/verify.py",
        "if norm <= limit:",
        "if norm >= 0:",
        "tests/server/uploads tests/server/rpc",
    ),
    Mutant(
        "method/ssfl/method/exact_sum.py",
        "np.rint(x, out=x)",
        "np.trunc(x, out=x)",
        "tests/method/test_exact_sum.py",
    ),
    Mutant(
        "method/ssfl/method/exact_sum.py",
        "near: npt.NDArray[np.bool_] = np.abs(low) <= 4",
        "near: npt.NDArray[np.bool_] = np.abs(low) < 0",
        "tests/method/test_exact_sum.py",
    ),
    Mutant(
        "method/ssfl/method/mask.py",
        "kept: Bools = scores > threshold",
        "kept: Bools = scores >= threshold",
        "tests/method/test_mask.py",
    ),
    Mutant(
        "codec/ssfl/codec/chunks.py",
        "if zlib.crc32(data) != crc32:",
        "if crc32 < 0:",
        "tests/codec/test_chunks.py",
    ),
    Mutant(
        "codec/ssfl/codec/chunks.py",
        "if offset != self.offset:",
        "if offset > self.offset:",
        "tests/codec/test_chunks.py",
    ),
    Mutant(
        "codec/ssfl/codec/masks.py",
        "if size % 8 and bits[-1] >> (size % 8):",
        "if size < 0:",
        "tests/codec/test_masks.py",
    ),
    Mutant(
        "learning/ssfl/learning/pruned_weights.py",
        "            parameter.grad.mul_(kept)",
        "            parameter.grad.mul_(1)",
        "tests/learning",
    ),
    Mutant(
        "learning/ssfl/learning/own_fit.py",
        "            if parameter.requires_grad:",
        "            if not parameter.requires_grad:",
        "tests/learning/test_own_fit.py",
    ),
    Mutant(
        "program/ssfl/program/printable.py",
        '_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}',
        '_ESCAPED = {"Cs"}',
        "tests/program/test_printable.py",
    ),
    Mutant(
        "program/ssfl/program/monitor/web.py",
        "if is_loopback(served_on) and not is_loopback(name):",
        "if is_loopback(served_on) and not name:",
        "tests/program/monitor",
    ),
)


def plant(mutant: Mutant, folder: Path) -> None:
    """Copy the product code to `folder`, with the bug."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / mutant.file
    text = path.read_text("utf-8")
    if text.count(mutant.line) != 1:
        raise SystemExit(f"{mutant.file} does not have this line exactly once: {mutant.line}")
    path.write_text(text.replace(mutant.line, mutant.bug), "utf-8")


def is_caught(mutant: Mutant) -> bool:
    """Return True if the tests fail on the copy."""
    with tempfile.TemporaryDirectory(prefix="ssfl-mutant-") as folder:
        plant(mutant, Path(folder))
        roots = os.pathsep.join(str(Path(folder) / part) for part in PARTS)
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider",
             *mutant.tests.split()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": roots, "SAMPLE": "1"},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
    return run.returncode == 1


def main() -> int:
    missed = 0
    for mutant in MUTANTS:
        caught = is_caught(mutant)
        missed += not caught
        word = "caught" if caught else "MISSED"
        print(f"{word}  {mutant.file}: {mutant.bug.strip()}", flush=True)
    print(f"{len(MUTANTS) - missed} of {len(MUTANTS)} planted bugs caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
