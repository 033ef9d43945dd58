"""`ssfl report`: one run, two runs, runs that are not over; hostile names."""

import base64
import csv
import hashlib
import json
import re
import shutil
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssfl.program.exits import ExitCode
from ssfl.server.report import contents
from ssfl.server.report.from_state_dir import open_state
from ssfl.server.report.mask_image import MAX_BLOCKS, block_shares
from ssfl.server.report.run_view import CLIENT_COLUMNS, RunView
from ssfl.server.report.source import open_folder
from ssfl.server.report.traffic import DenseComparison, paper_break_even
from ssfl.tools import main as tools
from ssfl.tools.report.command import open_run
from tools.report.report_fixtures import MASKED, VALUES, document, history_of, make_state, rewrite

HOSTILE = "</script><script>alert('&')</script>\u2028<!--"


class Page(HTMLParser):
    """The elements of a page with their attributes, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.content: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = f"{tag} {dict(attrs).get('type', '')}".strip()

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.content[self._inside] = self.content.get(self._inside, "") + data

    def handle_endtag(self, _tag: str) -> None:
        self._inside = ""


def test_the_report_of_a_run_is_written_next_to_its_history(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.main(["report", str(run)]) == ExitCode.DONE
    folder = run / "coordinator"
    assert capsys.readouterr().out == f"report: {folder / 'report.html'}\n"
    page = Page((folder / "report.html").read_text("utf-8"))
    assert json.loads(page.content["script application/json"]) == json.loads(
        (folder / "report.json").read_text("utf-8")
    )
    with (folder / "rounds.csv").open(newline="") as file:
        rounds = list(csv.DictReader(file))
    history = history_of(run)
    assert [row["round"] for row in rounds] == ["0", "1", "2"]
    assert [float(row["accuracy"]) for row in rounds] == [e["pooled"] for e in history["rounds"]]
    with (folder / "evaluations.csv").open(newline="") as file:
        tests = list(csv.DictReader(file))
    assert [row["rounds_done"] for row in tests] == ["2", "3"]
    assert [float(row["loss"]) for row in tests] == [e["loss"] for e in history["evaluations"]]
    assert {(row["clients"], row["missing"]) for row in tests} == {("3", "0")}
    with (folder / "clients.csv").open(newline="") as file:
        clients = list(csv.DictReader(file))
    assert [row["client"] for row in clients] == sorted(history["clients"])
    assert {row["reported"] for row in clients} == {"3"}


def test_a_second_report_has_the_same_bytes(run: Path) -> None:
    files = ("report.html", "report.json", "rounds.csv", "evaluations.csv", "clients.csv")
    written = []
    for _ in range(2):
        assert tools.main(["report", str(run / "coordinator")]) == ExitCode.DONE
        written.append([(run / "coordinator" / name).read_bytes() for name in files])
    assert written[0] == written[1]


def test_the_page_is_self_contained_and_its_policy_blocks_other_sources(run: Path) -> None:
    text = contents.write_report(run / "coordinator").read_text("utf-8")
    page = Page(text)
    assert not [tag for tag, _ in page.elements if tag in ("link", "img", "iframe", "object")]
    assert not [given for _, given in page.elements if {"src", "style", "onload"} & set(given)]
    ((_, meta),) = [element for element in page.elements if "http-equiv" in element[1]]
    policy = str(meta["content"])
    for name, content in (
        ("style", page.content["style"]),
        ("script", page.content["script module"]),
    ):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    assert set(re.findall(r"https?://[^\s\"'`)]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_report_agrees_with_the_history(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history, found = history_of(run), document(capsys, run)
    assert found["verdict"] == {"word": "finished", "text": "finished all 3 rounds"}
    last = history["evaluations"][-1]
    assert found["quality"]["final"]["accuracy"] == last["pooled"]
    assert found["quality"]["best"]["chosen_accuracy"] == history["best"]["accuracy"]
    assert found["model_digest"] == history["model_digest"]
    kept = history["mask"]["num_kept"]
    assert sum(layer["kept"] for layer in found["layers"]) == kept
    changed = [row["name"] for row in found["settings"] if row["changed"]]
    assert [row["name"] for row in found["settings"][: len(changed)]] == changed
    assert "sparsity" in changed and "momentum" not in changed
    assert len(found["settings"]) == len(history["settings"])


def test_bytes_are_compared_with_the_formulas_of_the_paper(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, run)["bytes"]
    kept = history_of(run)["mask"]["num_kept"]
    lines = {line["what"]: line for line in found["formulas"]}
    updates = lines["updates up"]
    assert updates["transfers"] == 9
    assert updates["dense_bytes"] == 9 * 4 * VALUES
    assert updates["paper_bytes"] == round(9 * 4 * kept / MASKED * VALUES)
    assert updates["kept_bytes"] == 9 * 4 * (kept + VALUES - MASKED)
    ours = [row for row in found["rows"] if (row["phase"], row["direction"]) == ("values", "up")]
    assert updates["bytes"] == sum(row["payload_bytes"] for row in ours) > 0
    assert updates["to_dense"] == updates["bytes"] / updates["dense_bytes"]
    # Evaluations follow rounds 2 and 3; round 2 trains on the model that was tested before it. The
    # first model follows from the seed and is not sent.
    assert lines["models down"]["transfers"] == 9
    assert lines["models down"]["kept_bytes"] == lines["models down"]["bytes"]
    for what, way in (("updates up", "up"), ("models down", "down")):
        assert found[way]["ratio"] == lines[what]["to_dense"]
    assert lines["scores up"]["paper_bytes"] == 3 * 4 * MASKED
    assert lines["mask down"]["paper_bytes"] == 3 * MASKED // 8
    assert lines["initial model"]["paper_bytes"] == 3 * 4 * VALUES
    once = 4 * VALUES + 4 * MASKED + MASKED / 8
    assert found["break_even"]["paper"] == once / (8 * (MASKED - kept))


def test_rounds_before_the_first_mask_count_as_dense_by_the_formulas() -> None:
    against, view = DenseComparison(120, 100), RunView()
    kept = {2: 50, 3: 50, 4: 10}
    for number in range(5):
        entries: list[tuple[str, Any]] = []
        if number in kept:
            entries.append(("masks", {"num_kept": kept[number]}))
        row = {"client": "a", "num_samples": 1}
        tested: dict[str, Any] = {"pooled": None, "loss": 0.5, "rounds_done": number, "ledger": []}
        entries.append(("rounds", {"round": number, "clients": [row], "missing": [], **tested}))
        entries.append(("evaluations", {"clients": [row], **tested}))  # sent to test, not to train
        for name, entry in entries:
            view.add(name, entry)
            against.add(name, entry, view)
    assert against.kept_values_up == 120 + 120 + 70 + 70 + 30
    assert against.kept_values_down == 120 + 120 + (70 + 70) + (70 + 70) + (30 + 30)
    assert against.break_even == 1  # nothing was sent at all
    assert paper_break_even(120, 100, 100) is None


def test_the_image_of_a_mask_has_the_density_of_every_block() -> None:
    kept = np.zeros((130, 3), dtype=np.uint8)
    kept[:2, 0] = 1
    shares = block_shares(kept)
    assert shares.shape == (MAX_BLOCKS, 3)
    assert shares[0].tolist() == [1.0, 0.0, 0.0] and shares[1:].sum() == 0
    assert block_shares(np.ones((1, 1), dtype=np.uint8)).tolist() == [[1.0]]


def test_the_images_together_keep_as_many_weights_as_the_mask(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, run)
    sizes = {layer["name"]: layer for layer in found["layers"]}
    for picture in found["pictures"]:
        data = np.frombuffer(base64.b64decode(picture["data"]), dtype=np.uint8)
        assert data.size == picture["rows"] * picture["columns"]
        density = data.mean() / 255 * picture["most"]
        assert density == pytest.approx(sizes[picture["name"]]["density"], abs=0.01)
    assert len(found["pictures"]) == 3


def test_the_report_of_a_state_directory_equals_that_of_the_results(
    run: Path, reported_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, reported_state) == document(capsys, run)
    assert tools.main(["report", str(reported_state)]) == ExitCode.DONE
    assert sorted(file.name for file in Path().iterdir()) == [
        "report-r1-clients.csv", "report-r1-evaluations.csv", "report-r1-rounds.csv",
        "report-r1.html", "report-r1.json",
    ]  # fmt: skip
    assert tools.main(["report", str(run)]) == ExitCode.DONE
    for table in ("rounds", "evaluations", "clients"):
        ours = Path(f"report-r1-{table}.csv").read_bytes()
        assert ours == (run / "coordinator" / f"{table}.csv").read_bytes()


def test_a_run_in_progress_is_reported_as_such(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unfinished(history: dict[str, Any]) -> None:
        history.update(finished=False, rounds_done=1, best=None, mask=None)
        history["rounds"] = history["rounds"][:1]
        history["evaluations"] = []

    rewrite(run, unfinished)
    (run / "coordinator" / "mask.bin").unlink()
    found = document(capsys, run)
    assert found["verdict"]["text"] == "not finished: 1 of 3 rounds so far"
    assert found["quality"]["by"] == "the clients of the newest round"
    assert found["pictures"] == [] and found["mask"] is None
    assert tools.main(["report", str(run)]) == ExitCode.DONE


def test_a_run_before_its_first_round_has_a_report(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def empty(history: dict[str, Any]) -> None:
        history.update(finished=False, rounds_done=0, best=None, ledger=[], mask=None)
        history.update(rounds=[], masks=[], evaluations=[])

    rewrite(run, empty)
    (run / "coordinator" / "manifest.json").unlink()
    text = (run / "coordinator" / "history.json").read_text()
    (run / "coordinator" / "history.json").write_text(text.replace("[\n", "[").rstrip() + "\n")
    assert document(capsys, run)["quality"]["final"] is None
    assert tools.main(["report", str(run)]) == ExitCode.DONE


@pytest.mark.parametrize(
    ("change", "word"),
    [({"stopped": True}, "stopped"), ({"ended_early": "no improvement"}, "ended early")],
)
def test_the_verdict_names_how_a_run_ended(
    change: dict[str, Any], word: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(run, lambda history: history.update(change))
    assert document(capsys, run)["verdict"]["word"] == word


def test_a_history_without_times_and_metrics_is_accepted(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def older(history: dict[str, Any]) -> None:
        for name in ("votes", "not_voted", "densities", "personal", "num_void", "best"):
            del history[name]
        for entry in (*history["rounds"], *history["evaluations"]):
            for name in ("began", "phases", "last", "seconds", "metrics", "attempt", "personal"):
                entry.pop(name, None)

    rewrite(run, older)
    assert document(capsys, run)["times"]["mean_s"] is None
    assert tools.main(["report", str(run)]) == ExitCode.DONE


def test_a_history_on_one_line_is_accepted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = document(capsys, run)
    (run / "coordinator" / "history.json").write_text(json.dumps(history_of(run)))
    assert document(capsys, run) == expected


def test_hostile_names_are_escaped(run: Path) -> None:
    def hostile(history: dict[str, Any]) -> None:
        history["run_id"] = HOSTILE
        history["clients"][HOSTILE] = 5
        history["rounds"][0]["clients"][0]["client"] = HOSTILE
        history["mask"]["layers"][HOSTILE] = {"kept": 1, "size": 2}

    rewrite(run, hostile)
    text = contents.write_report(run / "coordinator").read_text("utf-8")
    assert "<script>alert" not in text and "<!--" not in text.replace("<!doctype", "")
    page = Page(text)
    scripts = [given.get("type") for tag, given in page.elements if tag == "script"]
    assert scripts == ["application/json", "module"]
    shown = json.loads(page.content["script application/json"])
    assert HOSTILE in [row["client"] for row in shown["clients"]]


def test_memory_does_not_grow_with_rounds(run: Path) -> None:
    folder = run / "coordinator"
    entry = history_of(run)["rounds"][1]
    entry.update(clients=entry["clients"][:1], ledger=entry["ledger"][:2])

    def peak(num_rounds: int) -> int:
        rounds = [{**entry, "round": number, "rounds_done": number} for number in range(num_rounds)]
        rewrite(run, lambda history: history.update(rounds=rounds, rounds_done=num_rounds))
        rounds.clear()
        tracemalloc.start()
        try:
            contents.write_report(folder)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    some, many = peak(2100), peak(5000)
    assert many < 1.3 * some
    assert len((folder / "rounds.csv").read_text().splitlines()) == 5001


def test_out_names_the_html_file_and_other_files_go_next_to_it(run: Path) -> None:
    assert tools.main(["report", str(run), "--out", "mine.html"]) == ExitCode.DONE
    assert sorted(file.name for file in Path().iterdir()) == [
        "mine-clients.csv", "mine-evaluations.csv", "mine-rounds.csv", "mine.html", "mine.json",
    ]  # fmt: skip
    assert not (run / "coordinator" / "report.html").exists()


def test_results_are_preferred_to_the_state_directory_next_to_them(
    run: Path, reported_state: Path, tmp_path: Path
) -> None:
    both = tmp_path / "both"
    shutil.copytree(reported_state, both / "state")
    assert open_run(both).folder == both / "state"
    shutil.copytree(run, both / "runs" / "another")
    assert open_run(both).folder == both / "state"  # it is not the same run
    shutil.copytree(run, both / "runs" / "r1")
    assert open_run(both).folder == both / "runs" / "r1" / "coordinator"


def test_the_report_has_start_and_end_of_the_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def timed(history: dict[str, Any]) -> None:
        for number, entry in enumerate(history["rounds"]):
            entry.update(began=1000.0 + 10 * number, seconds=8.0)
        history["evaluations"][-1].update(began=1030.0, seconds=4.0)

    rewrite(run, timed)
    found = document(capsys, run)["times"]
    assert (found["began"], found["ended"], found["whole_s"]) == (1000.0, 1034.0, 34.0)


def test_a_single_round_is_singular_in_the_verdict() -> None:
    document = {"rounds_done": 1, "settings": {"rounds": 1}, "finished": True}
    assert contents.verdict(document)["text"] == "finished its one round"


def test_a_comparison_lists_different_encodings_among_the_settings(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coded = tmp_path / "coded"
    shutil.copytree(run, coded)

    def otherwise(history: dict[str, Any]) -> None:
        for row in history["ledger"]:
            if (row["phase"], row["direction"]) == ("values", "up"):
                row["encoding"] = "reference"

    rewrite(coded, otherwise)
    assert document(capsys, run, coded)["settings"] == [
        {"name": "encoding of values up", "values": ["values_only", "reference"]}
    ]
    assert document(capsys, coded)["encodings"] == {"up": ["reference"], "down": ["values_only"]}


def test_a_dense_run_has_no_mask_to_compare(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dense = make_state(tmp_path / "dense", strategy="fedavg")
    assert document(capsys, dense, run)["overlap"]["why_not"] == "strategy fedavg has no mask"
    found = document(capsys, dense)
    assert found["bytes"]["up"]["ratio"] == found["bytes"]["down"]["ratio"] == 1.0
    assert found["bytes"]["break_even"]["round"] is None


def test_a_run_compared_with_itself_has_no_differences(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, run, run)
    assert found["settings"] == []
    assert [line["difference"] for line in found["at_equal_rounds"]] == [0, 0, 0, 0]
    assert {line["difference"] for line in found["at_equal_bytes"]} == {0}
    assert {line["ratio"] for line in found["ledger"]} <= {1.0, None}
    assert found["overlap"]["share"] == 1.0
    assert [layer["share"] for layer in found["overlap"]["layers"]] == [1.0, 1.0, 1.0]


def test_two_runs_are_compared(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_state(tmp_path / "other", sparsity="0.5", rounds=2)
    found = document(capsys, run, other)
    assert {row["name"]: row["values"] for row in found["settings"]} == {
        "sparsity": ["0.8", "0.5"],
        "rounds": [3, 2],
    }
    assert [line["at"] for line in found["at_equal_rounds"]] == [0, 1, 2]
    sources = [source.model for source in (open_folder(run / "coordinator"), open_state(other))]
    bits = [model[1].bools() for model in sources if model]
    both, either = int((bits[0] & bits[1]).sum()), int((bits[0] | bits[1]).sum())
    overlap = found["overlap"]
    assert overlap["common"] == both and overlap["share"] == both / either
    assert sum(layer["common"] for layer in overlap["layers"]) == both
    up = next(
        row for row in found["ledger"] if (row["phase"], row["direction"]) == ("values", "up")
    )
    assert up["ratio"] == up["payload_bytes"][1] / up["payload_bytes"][0]  # simulated: no messages
    assert tools.main(["report", str(run), str(other)]) == ExitCode.DONE
    assert sorted(file.name for file in Path().iterdir()) == ["comparison.html", "comparison.json"]


def test_models_of_different_shape_have_no_common_weights(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, run, make_state(tmp_path / "other", width=6, rounds=1))
    assert found["overlap"]["why_not"] == "the models have different tensors"


def test_the_docs_page_names_every_column_and_field(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "report.md").read_text("utf-8")
    columns = {
        "rounds": contents.ROUND_COLUMNS,
        "evaluations": contents.EVALUATION_COLUMNS,
        "clients": CLIENT_COLUMNS,
    }
    for name, expected in columns.items():
        (rows,) = re.findall(rf"^`{name}\.csv`:\n\n\| column .*\n\|.*\n((?:\|.*\n)+)", page, re.M)
        assert re.findall(r"^\| `(\w+)` \|", rows, re.M) == list(expected), name
    (rows,) = re.findall(r"^\| field \| what \|\n\|.*\n((?:\|.*\n)+)", page, re.M)
    fields = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in rows.splitlines()))
    assert sorted(fields) == sorted(document(capsys, run))
