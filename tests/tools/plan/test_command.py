"""`ssfl plan` as a command."""

import json
import re
import shlex
from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode
from ssfl.tools import main as tools

MODEL = ["plan", "--model", "cnn", "--input", "1x8x8"]


def test_a_table_has_a_column_for_every_sparsity(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--sparsity", "0.5,0.9", "--link", "20mbit/50ms", "--clients", "12"]
    assert tools.main([*MODEL, *flags]) == ExitCode.DONE
    shown = capsys.readouterr().out
    for text in ("dense", "0.5 sparse", "0.9 sparse", "22,416", "11,208", "2,241", "all transfers"):
        assert text in shown
    assert "take 2 turns" in shown  # of 8 upload slots
    assert "Every client has its own link" in shown


def test_a_plan_without_a_link_has_bytes_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.main(MODEL) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "all transfers" not in shown
    assert "--link 20mbit/50ms" in shown


def test_a_lossy_plan_of_sampled_clients_names_the_setting_that_saves_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = [*MODEL, "--value-type", "int8", "--clients", "100", "--clients-per-round", "10"]
    shown = []
    for more in ([], ["--downloads", "values"], ["--clients-per-round", "0"]):
        assert tools.main([*few, *more]) == ExitCode.DONE
        shown.append("With --downloads values" in capsys.readouterr().out)
    assert shown == [True, False, False]
    assert tools.main([*MODEL, "--downloads", "values"]) == ExitCode.USAGE
    assert "needs a lossy --value-type, such as int8" in capsys.readouterr().err


def test_json_holds_bytes_and_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--up", "5mbit", "--down", "50mbit", "--rtt", "40ms", "--reference-coding", "off"]
    assert tools.main([*MODEL, *flags, "--json"]) == ExitCode.DONE
    document = json.loads(capsys.readouterr().out)
    assert document["link"] == {
        "up_bits_per_s": 5e6, "down_bits_per_s": 50e6, "rtt_s": 0.04,
    }  # fmt: skip
    (sparse,) = document["sparse"]
    values = 4 * (2241 + 186)
    assert sparse["update"]["payload_bytes"] == {"low": values, "high": values, "most": values}
    assert sparse["seconds"]["update"]["high"] > 0.04
    assert document["dense"]["num_kept"] == 22_416


def test_the_model_of_a_task_is_built_from_a_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main(["shards", "--clients", "2", "--out", str(tmp_path)]) == ExitCode.DONE
    task = tmp_path / "my_task.py"
    task.write_text(
        "from torch import nn\n"
        "from ssfl.learning.image_task import load_shard, loss, metrics\n"
        "OWN_WEIGHTS = True\n"
        "def build_model(settings, shard):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, shard.num_classes))\n"
    )
    capsys.readouterr()
    where = ["--task", str(task), "--data", "shard_00", "--data-root", str(tmp_path)]
    assert tools.main(["plan", *where, "--json"]) == ExitCode.DONE
    document = json.loads(capsys.readouterr().out)
    assert (document["num_masked"], document["num_unmasked"]) == (640, 10)
    sent = next(row for row in document["dense"]["ledger"] if row["phase"] == "initial")
    assert sent["payload_bytes"]["high"] == 4 * 650


def test_the_commands_of_the_page_work(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
    (block,) = re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert program == "ssfl"
        assert tools.main(words) == ExitCode.DONE, line
        assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "cnn"], "--input is missing"),
        (["--input", "8by8"], "--input must be sizes"),
        (["--input", "999999999x999999999"], "is more than 2147483648 values"),
        (["--input", "1x8x8", "--sparsity", "90"], "write 0.9 for 90 %"),
        (["--input", "1x8x8", "--sparsity", "0.9,,0.5"], "sparsity must be a number"),
        (["--input", "1x8x8", "--sparsity", "0.9999999"], "keeps none"),
        (["--input", "1x8x8", "--link", "fast"], "--link: a link is a rate"),
        (["--input", "1x8x8", "--link", "5mbit/1ms", "--up", "1mbit"], "one or the other"),
        (["--input", "1x8x8", "--up", "1mbit"], "give all three"),
        (["--input", "1x8x8", "--coordinator-link", "1gbit"], "give --link"),
        (["--input", "1x8x8", "--clients-per-round", "11"], "more than --clients 10"),
        (["--input", "1x8x8", "--rounds", "0"], "--rounds must be at least 1"),
        (["--input", "1x8x8", "--task", "mine.py"], "--task needs --data"),
    ],
)
def test_invalid_flags_are_named(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main(["plan", *flags]) == ExitCode.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--input", "1x2x2"], "cnn needs images of at least 4x4"),
        (["--input", "64", "--model", "resnet18"], "needs images"),
        (["--input", "9999x999x9", "--model", "mlp"], "the limit is 2,147,483,648"),
        (["--data", "shard_00", "--data-root", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_a_model_that_cannot_be_built_is_bad_data(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main(["plan", *flags]) == ExitCode.BAD_DATA
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "heading"),
    [
        ("--strategy feddst --feddst.every 2 --sparsity 0.5,0.9", "feddst, 0.9 sparse"),
        ("--strategy sub-fedavg --sub-fedavg.step 0.2", "sub-fedavg, 0.9 sparse"),
        ("--strategy ditto --criterion none", "ditto, dense"),
        ("--strategy fedpm", "fedpm, dense"),
        ("--criterion client-random --sparsity 0.5,0.9", " 0.9 sparse"),
    ],
    ids=["moving masks", "masks of clients", "dense", "bits", "masks from the seed"],
)
def test_a_plan_has_a_strategy_with_its_own_settings(
    flags: str, heading: str, capsys: pytest.CaptureFixture[str]
) -> None:
    link = ["--link", "20mbit/50ms"]
    assert tools.main([*MODEL, *flags.split(), *link]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert heading in shown
    moves = "ditto" not in flags and "client-random" not in flags
    assert ("Masks that rounds move" in shown) == moves
    assert tools.main([*MODEL, *flags.split(), *link, "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["sparse"][-1]["seconds"]["run"]["high"] > 0


def test_an_unknown_setting_of_a_strategy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.main([*MODEL, "--strategy=ditto", "--ditto.strenth=1"]) == ExitCode.USAGE
    assert "it has: --ditto.strength" in capsys.readouterr().err


def test_a_robust_mean_is_planned_with_all_clients_of_a_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--strategy=robust", "--robust.kind=krum", "--clients=8"]
    assert tools.main([*MODEL, *flags]) == ExitCode.DONE, capsys.readouterr().err
