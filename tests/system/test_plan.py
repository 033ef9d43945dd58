"""`ssfl plan` compared with the ledger of a real run."""

import json

import pytest

from ssfl.server.accounting.ledger import PHASES
from ssfl.tools import main as tools
from system.federation import SHARDS, finish
from system.programs import Programs

KINDS = ("payload_bytes", "message_bytes")
pytestmark = pytest.mark.system


def test_the_bytes_of_a_run_match_its_plan(
    sites: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [
        "--model=mlp", "--rounds=5", "--clients=3", "--clients-per-round=2", "--evaluate-every=2",
        "--reference-coding=off", "--scores=exact",
    ]  # fmt: skip
    coordinator = sites.coordinator(*run, "--local-steps=1", "--exit-when-done")
    clients = [sites.client(shard, coordinator) for shard in SHARDS]
    ledger = finish(coordinator, clients).history["ledger"]

    where = ["--data", SHARDS[0], "--data-root", str(sites.folder / "shards")]
    assert tools.main(["plan", *run, *where, "--sparsity=0.9", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (plan,) = document["sparse"]
    planned = {(row["phase"], row["direction"]): row for row in plan["ledger"]}

    measured = {key: dict.fromkeys(KINDS, 0) for key in planned}
    for row in ledger:
        if row["phase"] in PHASES:
            for kind in KINDS:
                measured[row["phase"], row["direction"]][kind] += row[kind]
    for key, row in measured.items():
        for kind in KINDS:
            expected = planned[key][kind]
            if key[0] == "control":  # a client that waits longer gets more messages
                assert row[kind] >= 0.99 * expected["low"]
            else:
                assert 0.99 * expected["low"] <= row[kind] <= 1.01 * expected["high"], (key, kind)
                assert row[kind] <= 1.01 * expected["most"]
