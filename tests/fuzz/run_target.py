"""Feed one target with inputs that reach ever more of its code, until one breaks it.

    python tests/fuzz/run_target.py reference -max_total_time=300 NEW tests/fuzz/corpus/reference

Everything behind the target's name goes to libFuzzer: NEW is a folder (it must exist) that takes
inputs which reached something new; the others are only read. An input that breaks the target is
written to ./crash-…: mend the decoder and put the file into the target's corpus, so that
test_fuzz.py runs it forever. To make a corpus small again, or to begin one:

    python tests/fuzz/make_seeds.py reference SEEDS
    python tests/fuzz/run_target.py reference -merge=1 EMPTY SEEDS NEW tests/fuzz/corpus/reference
"""

import shlex
import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
INSTRUMENTED = ["ssfl.codec", "ssfl.method.manifest"]
# A decoder has no use for more memory or time than this on inputs of a few thousand bytes.
LIMITS = ("-rss_limit_mb=512", "-timeout=25", "-max_len=4096")


def main(arguments: list[str]) -> None:
    """Run until libFuzzer ends the process, with an exit code other than 0 after a crash."""
    import atheris  # here, as it is not everywhere

    sys.path.insert(0, str(TESTS))
    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.targets import TARGETS
    if not arguments or arguments[0] not in TARGETS:
        sys.exit(f"which target? one of {', '.join(TARGETS)}")
    warnings.simplefilter("error")  # as the tests do
    target = TARGETS[arguments[0]]
    again = shlex.join([sys.executable, __file__, arguments[0]])  # how -merge starts children
    atheris.Setup([again, *LIMITS, *arguments[1:]], lambda data: target(data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
