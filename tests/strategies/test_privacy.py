"""What strategies read and send, as docs/privacy.md says."""

from pathlib import Path

from ssfl.method.settings import RunSettings
from ssfl.strategies.registry import rule_for, strategy_names
from strategies.scripted_site import manifest_of

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text("utf-8")
TASKS = ("", "adjust", "move", "warm-up")


def rows() -> dict[str, str]:
    """Return the lines of the table by strategy."""
    found = {}
    for line in PAGE.split("What a strategy adds")[1].split("Never sent")[0].splitlines():
        for name in line.split("|")[1].split(",") if line.startswith("| `") else ():
            found[name.strip(" `")] = line
    return found


def test_every_strategy_has_a_row() -> None:
    assert set(rows()) | {"ssfl", "fedavg"} == set(strategy_names())


def test_the_page_names_the_strategies_that_read_single_uploads() -> None:
    read = {name for name, line in rows().items() if "read alone" in line}
    assert read == {name for name in strategy_names() if rule_for(name).reads_single_uploads}


def test_no_strategy_sends_numbers_of_its_own() -> None:
    for name in strategy_names():
        kind = rule_for(name)
        rule = kind(RunSettings(strategy=name, sparsity="0.5"), kind.Options())
        assert not any(rule.parts(task, manifest_of(8, 8)).num_numbers for task in TASKS), name
