"""`ssfl demo --crash` at a small scale, and a demo that is killed itself."""

import re

import psutil
import pytest

from system.programs import Programs, journal, until

pytestmark = pytest.mark.system


def test_the_kills_happen_and_the_model_is_the_same(programs: Programs) -> None:
    demo = programs.run(
        "ssfl", "demo", "--crash", "--clients", "2", "--rounds", "3", "--out", "demo"
    )
    assert demo.ends() == 0, demo.out + demo.err
    lines = demo.out.splitlines()
    killed = [line for line in lines if re.match(r" +[\d.]+ s  .* killed", line)]
    assert [re.sub(r" +[\d.]+ s  |, .*", "", line) for line in killed] == [
        "scoring: coordinator killed",
        "scoring: shard_00 killed as well",
        "round 0: shard_00 killed in mid-upload",
        killed[-1].split("  ")[-1].partition(",")[0],
    ]
    assert re.search(r"round \d: coordinator killed, 1 of 2 updates accepted", killed[-1])
    had, total = re.findall(r"has ([\d,]+) of ([\d,]+) bytes", killed[2])[0]
    assert 0 < number(had) < number(total)
    (back,) = [line for line in lines if "resumed at byte" in line]
    assert f"resumed at byte {had}, sent the other {number(total) - number(had):,}" in back
    assert "sent twice: 0 bytes" in back
    assert "10 reports counted, each once; 6 updates trained, none twice" in lines
    digests = [re.sub(r"\w+ +", "", line) for line in lines if re.match("(un)?disturbed  ", line)]
    assert len(digests) == 2 and len(set(digests)) == 1
    assert "same model: yes" in lines
    state = programs.folder / "demo" / "disturbed" / "state"
    facts = journal(state / "journal")
    assert [fact for fact in facts if fact["fact"] == "StepVoided"] == []
    audit = programs.run("ssfl", "audit", str(state))
    assert audit.ends() == 0
    assert audit.out.splitlines()[-1] == "same model: yes"


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_a_demo_that_is_killed_takes_its_processes_with_it(programs: Programs) -> None:
    demo = programs.start("ssfl", "demo", "--clients", "2", "--rounds", "5000", "--out", "demo")
    me = psutil.Process(demo.process.pid)
    until(lambda: demo.running and len(me.children(recursive=True)) == 4, "four processes run")
    until(lambda: "round 0/5000" in demo.out, "the run is on the screen")
    children = me.children(recursive=True)
    demo.kill()
    until(lambda: not any(is_alive(child) for child in children), "all of them have ended")


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
