"""Fuzz one target with coverage-guided inputs until one breaks it.

    python tests/fuzz/run_target.py reference -max_total_time=300 NEW tests/fuzz/corpus/reference

All arguments after the target's name are passed to libFuzzer. NEW is an existing folder for inputs
that reach new code; the other folders are only read. An input that breaks the target is written to
./crash-…: fix the decoder and add the file to the target's corpus, so that test_fuzz.py runs it. To
minimise or to start a corpus:

    python tests/fuzz/make_seeds.py reference SEEDS
    python tests/fuzz/run_target.py reference -merge=1 EMPTY SEEDS NEW tests/fuzz/corpus/reference
"""

import shlex
import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
INSTRUMENTED = ["ssfl.codec", "ssfl.method.manifest"]
# No decoder needs more memory or time for inputs of a few thousand bytes.
LIMITS = ("-rss_limit_mb=512", "-timeout=25", "-max_len=4096")


def main(arguments: list[str]) -> None:
    """Run until libFuzzer ends the process; its exit code is not 0 after a crash."""
    import atheris  # not available on every platform

    sys.path.insert(0, str(TESTS))
    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.targets import TARGETS
    if not arguments or arguments[0] not in TARGETS:
        sys.exit(f"which target? one of {', '.join(TARGETS)}")
    warnings.simplefilter("error")  # as the tests do
    target = TARGETS[arguments[0]]
    again = shlex.join([sys.executable, __file__, arguments[0]])  # -merge starts children with it
    atheris.Setup([again, *LIMITS, *arguments[1:]], lambda data: target(data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
