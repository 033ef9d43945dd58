"""Strategies and criteria from files and from other packages."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ssfl import api
from ssfl.client.coding import check_strategy as client_checks
from ssfl.client.config import ClientConfig
from ssfl.client.errors import Refused
from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ProgramError
from ssfl.program.settings.command_line import HelpText, help_text
from ssfl.program.settings.options import options_of
from ssfl.server.errors import StrategyMismatch
from ssfl.server.rpc.request_checks import check_strategy
from ssfl.simulator.processes import Inherited
from ssfl.strategies import registry
from ssfl.strategies.registry import (
    check_settings,
    criterion_for,
    file_of,
    given_files,
    identity,
    rule_for,
    strategy_for,
    use_criterion,
    use_strategy,
)

RULE = """
from dataclasses import dataclass
from ssfl.method.settings import setting
from ssfl.strategies.contract import Rule

@dataclass(frozen=True)
class Own:
    strength: float = setting(0.5, "how much")

class Twice(Rule):
    Options = Own
"""
ENDS_EARLY = """
from ssfl.strategies.contract import Rule

class TwoRounds(Rule):
    def plan(self, position, clients):
        return None if position.rounds_done == 2 else super().plan(position, clients)
"""
CRITERION = """
from ssfl.strategies.criteria import Criterion

class Same(Criterion):
    def score(self, site, request):
        return request.whole[:3]
"""


@pytest.fixture(autouse=True)
def _no_files_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_GIVEN_RULES", {})
    monkeypatch.setattr(registry, "_GIVEN_CRITERIA", {})
    strategy_for.cache_clear()


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_has_the_name_of_its_strategy(tmp_path: Path) -> None:
    path = written(tmp_path, "at_twice.py", RULE)
    assert use_strategy(path) == "at-twice"
    assert given_files() == ((path,), ())
    assert file_of("strategy", "at-twice") == path
    assert file_of("strategy", "ssfl") == "ssfl"
    settings = RunSettings(strategy="at-twice", strategy_options="at-twice.strength=2")
    assert strategy_for(settings).rule.options.strength == 2.0
    assert rule_for("at-twice").__name__ == "Twice"


def test_a_strategy_can_end_the_run(tmp_path: Path) -> None:
    path = written(tmp_path, "two_rounds.py", ENDS_EARLY)
    done = api.simulate(api.digits(clients=2), strategy=path, model="mlp", rounds=5, local_steps=1)
    assert done.history.rounds.tolist() == [0, 1]
    assert done.history.document["ended_early"] == "the strategy planned no further round"


def test_a_name_stays_a_name() -> None:
    assert (use_strategy("ditto"), use_criterion("grasp")) == ("ditto", "grasp")
    assert given_files() == ((), ())


def test_values_cannot_be_coded_for_all_if_every_client_has_its_own_mask(tmp_path: Path) -> None:
    own = RULE + "    def client_state(self, client, state): return state\n"
    name = use_strategy(written(tmp_path, "own_masks.py", own))
    settings = RunSettings(strategy=name, value_type="int8")
    check_settings(settings)
    with pytest.raises(SettingsError, match=r"--downloads values codes one model .* own-masks"):
        check_settings(replace(settings, downloads="values"))


def test_a_file_can_have_a_criterion(tmp_path: Path) -> None:
    assert use_criterion(written(tmp_path, "same.py", CRITERION)) == "same"
    assert criterion_for("same").name == "same"
    digest = identity(RunSettings(criterion="same"))
    assert digest.startswith("same sha256:") and len(digest) == len("same sha256:") + 64


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.py", "", "must define one subclass of Rule, but has 0"),
        ("two.py", RULE + "class Other(Rule): pass", "one subclass of Rule, but has 2"),
        ("odd.py", "x =", "cannot be imported: SyntaxError"),
        ("fails.py", "1 / 0", "cannot be imported: ZeroDivisionError"),
        ("ditto.py", RULE, "ditto is built in: rename the file"),
    ],
)
def test_a_file_that_is_not_one_strategy_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        use_strategy(written(tmp_path, name, text))
    assert given_files() == ((), ())


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*absent.py: No such file"):
        use_strategy("absent.py")


def test_a_site_gives_files_not_names(tmp_path: Path) -> None:
    (option,) = (each for each in options_of(ClientConfig) if each.name == "strategy")
    assert option.parse(written(tmp_path, "twice.py", RULE), "--strategy") == "twice"
    with pytest.raises(
        ProgramError, match=r"'ditto' is not a \.py file\. The run already has its strategy"
    ):
        option.parse("ditto", "--strategy")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"one of d-psgd, .*ditto, .*, or a file; got 'dito'"):
        rule_for("dito")
    with pytest.raises(SettingsError, match=r"one of saliency, .*, or a file; got 'magic'"):
        criterion_for("magic")


def test_built_in_strategies_are_compared_by_their_contract() -> None:
    assert identity(RunSettings()) == ""
    assert identity(RunSettings(strategy="fedavg")) == ""
    assert identity(RunSettings(strategy="ditto")) == "ditto contract 1"


def test_a_client_that_does_not_know_the_settings_of_images_is_refused_by_their_names() -> None:
    settings = RunSettings(augment="crop-flip", normalize="0.5/0.5")
    assert identity(settings) == "augment contract 1, normalize contract 1"
    check_strategy("", settings)  # its first Join, before it knows the settings
    check_strategy(identity(settings), settings, knows_run=True)
    with pytest.raises(StrategyMismatch, match="this run has augment contract 1, normalize"):
        check_strategy("", settings, knows_run=True)
    check_strategy("", RunSettings(), knows_run=True)
    with pytest.raises(Refused, match="augment contract 1, and this client has ssfl"):
        client_checks(identity(RunSettings(augment="auto")), RunSettings())  # as it reads them


def test_a_client_with_another_file_is_refused_with_both_digests(tmp_path: Path) -> None:
    use_strategy(written(tmp_path, "twice.py", RULE))
    settings = RunSettings(strategy="twice")
    ours = identity(settings)
    check_strategy(ours, settings)
    check_strategy("", settings)  # before it knows the settings
    assert use_strategy(written(tmp_path, "twice.py", RULE + "# changed")) == "twice"
    theirs = identity(settings)
    assert theirs != ours
    with pytest.raises(StrategyMismatch, match=theirs) as refused:
        check_strategy(ours, settings)
    assert ours in str(refused.value)


@pytest.mark.parametrize("base", ["ditto.Ditto", "fedprox.FedProx"])
def test_a_file_that_extends_a_built_in_strategy_has_its_contract_number_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    method, name = base.split(".")
    text = f"from ssfl.strategies.methods import {method}\n\nclass Own({base}): pass\n"
    use_strategy(written(tmp_path, "own.py", text))
    settings = RunSettings(strategy="own", local_epochs=2)
    ours = identity(settings)
    assert ours.startswith("own sha256:") and ours.endswith(f", {method} contract 1")
    (built_in,) = (one for one in rule_for("own").__mro__ if one.__name__ == name)
    monkeypatch.setattr(built_in, "contract", 2)
    assert identity(settings) == ours.removesuffix("1") + "2"
    with pytest.raises(StrategyMismatch, match=f"{method} contract 1"):
        check_strategy(ours, settings)


def test_a_file_that_extends_only_the_rule_has_no_contract_number(tmp_path: Path) -> None:
    path = written(tmp_path, "twice.py", RULE)
    use_strategy(path)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert identity(RunSettings(strategy="twice")) == f"twice sha256:{digest}"


def test_help_has_the_settings_of_a_strategy(tmp_path: Path) -> None:
    name = use_strategy(written(tmp_path, "twice.py", RULE))
    options, text = tuple(options_of(RunSettings)), HelpText("prog", "about")
    assert "--twice.strength X" in help_text(options, text, name)
    assert "Strategy fedavg has no settings of its own." in help_text(options, text, "fedavg")


def test_an_edit_after_the_start_does_not_change_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    use_strategy(written(tmp_path, "twice.py", RULE))
    settings = RunSettings(strategy="twice")
    before = identity(settings)
    path.write_text(RULE + "# changed")
    assert identity(settings) == before, "the code that runs is that of the start"
    path.unlink()
    assert identity(settings) == before
    assert not list(tmp_path.glob("__pycache__"))


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    use_strategy(written(tmp_path, "twice.py", RULE))
    with pytest.raises(SettingsError, match=r"twice\.py have the same name: rename one of them"):
        use_strategy(written(tmp_path / "other", "twice.py", RULE))


def test_a_worker_refuses_a_file_that_has_changed(tmp_path: Path) -> None:
    use_strategy(written(tmp_path, "twice.py", RULE))
    inherited = Inherited()
    inherited.apply()
    written(tmp_path, "twice.py", RULE + "# changed")
    with pytest.raises(SettingsError, match="has changed since the command started"):
        inherited.apply()


def test_a_package_names_strategies_in_its_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice_package.py").write_text(RULE)
    about = tmp_path / "twice-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: twice\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[ssfl.strategies]\ntwo-fold = twice_package:Twice\nwrong = twice_package:Own\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._outside().installed_names.cache_clear()
    assert {"two-fold", "wrong"} <= set(registry.strategy_names())
    assert rule_for("two-fold").__name__ == "Twice"
    assert identity(RunSettings(strategy="two-fold")).startswith("two-fold sha256:")
    with pytest.raises(SettingsError, match="is not a subclass of Rule"):
        rule_for("wrong")
    monkeypatch.undo()
    sys.modules.pop("twice_package")
    registry._outside().installed_names.cache_clear()
