"""Tables as Markdown, LaTeX and CSV, from a table and from results written by hand."""

import csv
import io
import math
from typing import Any

import pytest

from ssfl.study.result_tables import equal_place, runs_by_name, tables_of
from ssfl.study.tables import Number, Table, csv_text, escaped, latex, markdown

TABLE = Table(
    "some", "Some & more",
    ["name", "accuracy %", "MB"],
    [["a_b | c", Number(91.26, 0.333), Number(1234.5, digits=2)], ["50 %", None, None]],
    ["A *note*."],
)  # fmt: skip


def test_markdown_aligns_numbers_and_escapes_bars() -> None:
    assert markdown([TABLE]) == (
        "## Some & more\n\n"
        "| name | accuracy % | MB |\n"
        "|---|---:|---:|\n"
        "| a_b \\| c | 91.3 ± 0.3 | 1,234.50 |\n"
        "| 50 % | · | · |\n\n"
        "A *note*.\n"
    )


def test_latex_escapes_what_has_a_meaning_there() -> None:
    text = latex([TABLE])
    assert r"\caption{Some \& more. A \emph{note}.}" in text
    assert r"name & accuracy \% & MB \\" in text
    assert r"a\_b \textbar{} c & 91.3 $\pm$ 0.3 & 1,234.50 \\" in text
    assert text.count(r"\begin{tabular}{lrr}") == text.count(r"\end{tabular}") == 1
    assert escaped("`a`~^\\{#$}") == (
        r"a\textasciitilde{}\textasciicircum{}\textbackslash{}\{\#\$\}"
    )


def test_csv_has_all_digits_and_the_deviation_in_a_column_of_its_own() -> None:
    head, first, second = csv.reader(io.StringIO(csv_text(TABLE)))
    assert head == ["name", "accuracy %", "accuracy % sd", "MB"]
    assert first == ["a_b | c", "91.26", "0.333", "1234.5"]
    assert second == ["50 %", "", "", ""]


def run(name: str, seed: int, curve: list[list[Any]], **more: Any) -> dict[str, Any]:
    rounds, sent, updates, pooled, mean, loss = curve[-1]
    return {
        "name": name, "seed": seed, "error": "", "rounds": rounds, "curve": curve,
        "pooled": pooled, "mean": mean, "loss": loss, "metrics": {}, "personal": 0.99,
        "pooled_last_10": pooled, "mean_last_10": mean, "bytes_training": sent,
        "client_updates": updates, "has_personal_models": False, "gossip": {},
        "learning_rate": 0.1, "target_density": 0.1, "density_tested": 0.1,
        "density_up_last": 0.1, "spec": {"settings": {"strategy": name}}, **more,
    }  # fmt: skip


def curve(step_bytes: int, first: float, rounds: int = 4) -> list[list[Any]]:
    return [
        [done, done * step_bytes, 10 * done, first + 0.1 * done, first + 0.1 * done, 1.0]
        for done in range(1, rounds + 1)
    ]


SPARSE = [run("sparse", seed, curve(1_000_000, 0.3 + 0.02 * seed)) for seed in (0, 1)]
DENSE = [
    run("dense", seed, curve(2_000_000, 0.4), target_density=None, density_tested=1.0)
    for seed in (0, 1)
]
OWN = [
    run("own", seed, curve(1_500_000, 0.35), density_up_last=0.34, has_personal_models=True,
        keeps_personal_models=True)
    for seed in (0, 1)
]  # fmt: skip
GOSSIP = [run("gossip", 0, [[2, 9_000_000, 200, None, None, None]], gossip={"relay_up": 3_000_000})]


def tables(*groups: list[dict[str, Any]], **more: Any) -> dict[str, Table]:
    runs = [one for group in groups for one in group]
    return {table.name: table for table in tables_of({"runs": runs, **more})}


def cell(table: Table, row: str, column: str) -> Any:
    (found,) = (one for one in table.rows if one[0] == row)
    return found[list(table.columns).index(column)]


def test_all_methods_are_read_at_the_bytes_of_the_cheapest() -> None:
    summary = {"runs": [*SPARSE, *DENSE]}
    assert equal_place(runs_by_name(summary), "bytes") == 4_000_000
    table = tables(SPARSE, DENSE)["global-model"]
    assert cell(table, "sparse", "pooled % at 4 MB").mean == pytest.approx(71)
    assert cell(table, "dense", "pooled % at 4 MB").mean == pytest.approx(60), "after two rounds"
    assert cell(table, "dense", "pooled %").mean == pytest.approx(80)
    assert cell(table, "dense", "pooled % at 40 client-updates").mean == pytest.approx(80)
    assert cell(table, "sparse", "pooled %").sd == pytest.approx(100 * 0.02 / math.sqrt(2))


def test_a_method_with_no_test_up_to_the_place_has_no_value() -> None:
    late = [run("late", 0, [[4, 9_000_000, 40, 0.9, 0.9, 0.1]])]
    table = tables(SPARSE, late)["global-model"]
    assert cell(table, "late", "pooled % at 4 MB") is None
    assert "| late | 1 | 90.0 | 90.0 | · | · |" in markdown([table])


def test_personal_and_global_accuracy_are_in_different_tables() -> None:
    found = tables(SPARSE, OWN)
    assert not any("personal" in name for name in found["global-model"].columns)
    personal = found["personal-models"]
    assert [row[0] for row in personal.rows] == ["own"], "the others have no personal models"
    assert cell(personal, "own", "personal %").mean == pytest.approx(99)
    assert cell(personal, "own", "personal model") == "kept by the method"
    assert not any("pooled" in name or "mean" in name for name in personal.columns)
    for table in found.values():
        measured = {"personal %", "pooled %"} & set(table.columns)
        assert len(measured) < 2
    tuned = run("tuned", 0, curve(1, 0.1), has_personal_models=True, personalize_epochs=1)
    table = tables([tuned])["personal-models"]
    assert cell(table, "tuned", "personal model") == "the global model, trained for 1 more epoch"


def test_personal_models_are_counted() -> None:
    def row(*counts: int, asked: int = 100) -> Any:
        shown = {"has_personal_models": True, "keeps_personal_models": True, "own_models_of": asked}
        runs = [
            run("own", seed, curve(1, 0.1), own_models=count, **shown)
            for seed, count in enumerate(counts)
        ]
        return cell(tables(runs)["personal-models"], "own", "clients that have one")

    assert row(62) == row(62, 62) == "62 of 100"
    assert row(60, 65, 62) == "60–65 of 100"
    assert "clients that have one" not in tables(OWN)["personal-models"].columns, "an old summary"


def test_a_row_says_that_the_sparsity_was_not_reached() -> None:
    table = tables(SPARSE, DENSE, OWN)["global-model"]
    assert cell(table, "own", "note") == "sparsity 90 % not reached: sends 34 % of the weights"
    assert cell(table, "sparse", "note") == ""
    assert cell(table, "dense", "note") == "", "a dense method has no target"
    shared = run("shared", 0, curve(1, 0.1), density_tested=0.34, density_up_last=0.34)
    assert note_of(shared) == "sparsity 90 % not reached: sends 34 % of the weights"
    bits = run("bits", 0, curve(1, 0.1), density_tested=0.5, density_up_last=None)
    assert note_of(bits) == "sparsity 90 % not reached: tests 50 % of the weights"


def note_of(one: dict[str, Any]) -> Any:
    table = tables([one])["global-model"]
    (row,) = table.rows
    return dict(zip(table.columns, row, strict=True)).get("note", "")


def test_a_union_of_masks_is_no_missed_sparsity() -> None:
    union = run("union", 0, curve(1, 0.1), density_tested=0.62)
    assert note_of(union) == "the union of the clients' masks is tested, with 62 % of the weights"
    slow = run("slow", 0, curve(1, 0.1), density_tested=1.0, density_up_last=0.34)
    assert note_of(slow) == (
        "sparsity 90 % not reached: sends 34 % of the weights; "
        "the union of the clients' masks is tested, with 100 % of the weights"
    )


def test_the_tested_mean_of_a_gossip_method_says_nothing_about_its_sparsity() -> None:
    relay = {"relay_up": 3_000_000}
    reached = run("gossip", 0, curve(1, 0.1), density_tested=1.0, gossip=relay)
    assert note_of(reached) == ""
    unknown = run(
        "gossip", 0, curve(1, 0.1), density_tested=1.0, density_up_last=None, gossip=relay
    )
    assert note_of(unknown) == ""
    dense = run("gossip", 0, curve(1, 0.1), density_tested=1.0, density_up_last=0.2, gossip=relay)
    assert note_of(dense) == "sparsity 90 % not reached: sends 20 % of the weights"


def test_fewer_rounds_are_in_the_label_and_gossip_has_its_own_table() -> None:
    found = tables(SPARSE, GOSSIP)
    assert [row[0] for row in found["global-model"].rows] == ["sparse", "gossip (2 rounds)"]
    assert cell(found["gossip"], "gossip (2 rounds)", "relay up").mean == pytest.approx(3)
    assert "gossip" not in tables(SPARSE)


def test_failed_runs_are_left_out() -> None:
    broken = {"name": "sparse", "seed": 2, "error": "it broke"}
    assert cell(tables(SPARSE, [broken])["global-model"], "sparse", "seeds").mean == 2
    assert tables_of({"runs": [broken]}) == []


def test_the_settings_name_the_rate_and_its_trials() -> None:
    rates = {"methods": {"sparse": {"learning_rate": 0.1, "trials": {"0.1": 0.5, "0.3": 0.4}}}}
    table = tables(SPARSE, DENSE, rates=rates)["settings"]
    assert cell(table, "sparse", "rate") == "best of 2"
    assert cell(table, "dense", "rate") == "not chosen here"
    assert cell(table, "dense", "other settings") == "strategy dense"


def test_the_settings_name_the_native_hyper_parameters_of_a_method() -> None:
    given = {"strategy": "ditto", "strategy_options": "ditto.strength=0.5", "rounds": 4}
    runs = [
        run("Ditto", 0, curve(1, 0.1), spec={"settings": given}),
        run("Adam", 0, curve(1, 0.1), spec={"settings": {"strategy": "fedopt", "rounds": 4}}),
        run("SSFL", 0, curve(1, 0.1), spec={"settings": {"rounds": 4}}),
        run("ours", 0, curve(1, 0.1),
            spec={"settings": {"strategy": "mine", "strategy_options": "mine.size=3"}}),
    ]  # fmt: skip
    table = tables(runs)["settings"]
    assert cell(table, "Ditto", "native hyper-parameters") == (
        "ditto.strength=0.5, ditto.pull=gradient, ditto.personal_epochs=0, ditto.global_epochs=0"
    )
    assert cell(table, "Ditto", "other settings") == "strategy ditto, rounds 4"
    assert "fedopt.optimizer=adam, " in cell(table, "Adam", "native hyper-parameters")
    assert cell(table, "SSFL", "native hyper-parameters") == "", "it has none"
    assert cell(table, "ours", "native hyper-parameters") == "", "a file of another machine"
    assert cell(table, "ours", "other settings") == "strategy mine, mine.size=3"


def test_without_accuracy_the_tables_have_the_loss() -> None:
    points = [[1, 10, 1, None, None, 0.25]]
    table = tables([run("numbers", 0, points, metrics={"r2": 0.5})])["global-model"]
    assert cell(table, "numbers", "loss").mean == 0.25 and cell(table, "numbers", "r2").mean == 0.5
    assert "pooled %" not in table.columns
