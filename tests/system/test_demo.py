"""`ssfl demo` at a small scale: real processes, the last screen, Ctrl-C."""

import json
import re
import signal
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from ssfl.learning.models import build_model
from ssfl.program.exits import ExitCode
from system.programs import Programs, until

pytestmark = pytest.mark.system


def test_the_demo_ends_with_a_table_a_digest_and_the_artifacts(programs: Programs) -> None:
    flags = ("--clients=2", "--rounds=2", "--out=demo", "--status-port=0")
    demo = programs.run("ssfl", "demo", *flags)
    assert demo.ends() == 0, demo.err
    urls = re.findall(r"^(.*): status page  http://127\.0\.0\.1:\d+/$", demo.out, re.MULTILINE)
    assert urls == ["90% sparse", "dense"]
    for word in ("accuracy", "MB up", "MB down", "one-off MB", "s/round", "server MB"):
        assert word in demo.out
    lines = [line for line in demo.out.splitlines() if "│" in line]
    assert [line.split()[1] for line in lines] == ["dense", "ssfl"]
    out = programs.folder / "demo"
    for plot in ("accuracy.png", "layers.png", "timeline.png"):
        assert (out / plot).read_bytes()[:4] == b"\x89PNG"
    (folder,) = out.glob("ssfl/models/*/coordinator")
    history = json.loads((folder / "history.json").read_text())
    assert history["rounds_done"] == 2
    assert f"model digest  {history['model_digest']}" in demo.out
    compared_in, done = demo.out.splitlines()[-2:]
    assert compared_in == "comparison    demo/comparison.html"
    assert re.fullmatch(r"all done in \d+ s", done)
    compared = json.loads((out / "comparison.json").read_text("utf-8"))
    assert compared["names"] == ["dense", "ssfl"]
    assert compared["overlap"]["why_not"] == "strategy fedavg has no mask"
    _loads_into_plain_pytorch(folder / "model.safetensors", history["mask"]["num_kept"])


def _loads_into_plain_pytorch(path: Path, num_kept: int) -> None:
    """Load the model as in the README."""
    model = build_model("cnn", (1, 8, 8), 10)
    model.load_state_dict(load_file(path))
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    assert sum(int(weight.count_nonzero()) for weight in weights) <= num_kept


def test_ctrl_c_ends_every_process(programs: Programs) -> None:
    demo = programs.start("ssfl", "demo", "--clients", "2", "--rounds", "5000", "--out", "demo")
    me = psutil.Process(demo.process.pid)
    until(lambda: demo.running and len(me.children(recursive=True)) == 4, "four processes run")
    until(lambda: "train" in demo.out, "the first round is on the screen")
    children = me.children(recursive=True)
    demo.signal(signal.SIGINT)
    assert demo.ends() == ExitCode.INTERRUPTED
    assert "interrupted" in demo.err
    assert [child for child in children if child.is_running()] == []
