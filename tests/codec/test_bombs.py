import subprocess
import sys
import tracemalloc

import pytest

from codec import bombs
from codec.bombs import BOMBS, SPARE_BYTES
from ssfl.codec import masks
from ssfl.codec.errors import CodecError, TruncatedPayload
from ssfl.codec.sections import SectionReader


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_allocation(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            BOMBS[name]()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_no_bomb_allocates_memory_outside_python() -> None:
    done = subprocess.run(
        [sys.executable, bombs.__file__], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert len(done.stdout.splitlines()) == len(BOMBS)


def test_a_huge_count_makes_the_payload_too_short() -> None:
    for name in BOMBS:
        if name.startswith("2^40") and name.endswith(", empty") and "mask" not in name:
            with pytest.raises(TruncatedPayload):
                BOMBS[name]()


def test_a_frame_too_short_for_the_size_it_states_is_refused() -> None:
    with pytest.raises(TruncatedPayload):
        SectionReader(bombs.section(bombs.frame_of_size(bombs.HUGE))).read(bombs.HUGE)
    with pytest.raises(TruncatedPayload):
        masks.decompress(bombs.frame_of_size(bombs.HUGE), 8 * bombs.HUGE)


def test_a_wide_window_alone_is_harmless() -> None:
    # The content is decoded directly into the 1000 bytes; no window is allocated.
    content = SectionReader(bombs.section(bombs.WIDE + bombs.ONE_RUN)).read(1000)
    assert content.tobytes() == bytes(1000)


def test_the_limit_is_below_what_a_bomb_claims() -> None:
    assert len(bombs.LARGE) < 1 << 14 and SPARE_BYTES < 1 << 26
