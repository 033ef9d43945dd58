"""`ssfl report` of a state directory whose run has a strategy or a criterion from a file."""

from pathlib import Path

import pytest

from ssfl.program.exits import ExitCode
from ssfl.strategies import registry
from ssfl.strategies.registry import strategy_for
from ssfl.tools import main as tools
from tools.report.report_fixtures import document, make_state

RULE = "from ssfl.strategies.contract import Rule\n\nclass Own(Rule): pass\n"
CRITERION = """
from ssfl.strategies.criteria import Saliency

class Same(Saliency): pass
"""


@pytest.mark.parametrize(
    ("kind", "text"), [("strategy", RULE), ("criterion", CRITERION)], ids=["strategy", "criterion"]
)
def test_a_state_directory_is_reported_with_the_file_of_its_strategy_or_criterion(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    text: str,
) -> None:
    def forget() -> None:
        monkeypatch.setattr(registry, "_GIVEN_RULES", {})
        monkeypatch.setattr(registry, "_GIVEN_CRITERIA", {})
        strategy_for.cache_clear()

    file = tmp_path / "mine.py"
    file.write_text(text)
    forget()
    use = {"strategy": registry.use_strategy, "criterion": registry.use_criterion}[kind]
    state = make_state(tmp_path / "state", **{kind: use(str(file))})
    forget()  # as in another process
    assert tools.main(["report", str(state), "--json"]) == ExitCode.BAD_DATA
    assert f"--{kind} must be one of" in capsys.readouterr().err
    found = document(capsys, state, f"--{kind}", file)
    assert {row["name"]: row["value"] for row in found["settings"]}[kind] == "mine"
    assert found["rounds_done"] == 3
    forget()
