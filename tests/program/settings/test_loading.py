from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ssfl.method.errors import SettingsError
from ssfl.method.settings import RunSettings
from ssfl.program.exits import ExitCode, ProgramError
from ssfl.program.settings.command_line import closest
from ssfl.program.settings.loading import changed, describe, load, setting_names

ELSEWHERE = "is a setting of the run: set it on the coordinator"


def setting(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, slots=True)
class Coordinator:
    port: int = setting(50051, "port to listen on", le=65535)
    state: Path = Path("runs/state")
    wait_s: float = setting(30.0, "longest long-poll", unit="s", positive=True)
    token: str | None = setting(None, "100% secret")
    run: RunSettings = field(default_factory=RunSettings)

    def validate(self) -> None:
        if self.port == 13:
            raise SettingsError("--port 13 is unlucky")


@dataclass(frozen=True, slots=True)
class Client:
    data: Path = field(metadata={"help": "the shard", "positional": True, "metavar": "SHARD"})
    threads: int = setting(1, "torch threads", ge=1)


def coordinator(*argv: str, environ: Mapping[str, str] | None = None) -> Coordinator:
    return load(Coordinator, argv, environ or {}, "ssfl-coordinator", "Coordinate a run.")


def client(*argv: str, environ: Mapping[str, str] | None = None) -> Client:
    elsewhere = dict.fromkeys(setting_names(RunSettings), ELSEWHERE)
    return load(Client, argv, environ or {}, "ssfl-client", "Train.", known_elsewhere=elsewhere)


def refusal(*argv: str, environ: Mapping[str, str] | None = None, of: Any = coordinator) -> str:
    with pytest.raises(ProgramError) as caught:
        of(*argv, environ=environ)
    assert caught.value.exit_code == ExitCode.USAGE
    return str(caught.value)


def toml(folder: Path, text: str) -> str:
    file = folder / "run.toml"
    file.write_text(text)
    return str(file)


def test_defaults_apply_without_given_values() -> None:
    assert coordinator() == Coordinator()


def test_a_flag_overrides_a_variable_overrides_the_file_overrides_the_default(
    tmp_path: Path,
) -> None:
    file = toml(tmp_path, "rounds = 1\nseed = 1\nlocal_epochs = 1\n")
    environ = {"SSFL_ROUNDS": "2", "SSFL_SEED": "2", "SSFL_CONFIG": file, "HOME": "/"}
    run = coordinator("--rounds", "3", environ=environ).run
    assert (run.rounds, run.seed, run.local_epochs, run.batch_size) == (3, 2, 1, 16)


def test_the_config_flag_overrides_its_variable(tmp_path: Path) -> None:
    file = toml(tmp_path, "port = 7")
    config = coordinator("--config", file, environ={"SSFL_CONFIG": "/nowhere.toml"})
    assert config.port == 7


def test_every_type_is_parsed_alike_from_all_three_sources(tmp_path: Path) -> None:
    wanted = Coordinator(
        port=1,
        state=Path("x"),
        wait_s=0.5,
        token="t",
        run=RunSettings(reproducible=True, clients=2, sparsity="0.90"),
    )
    text = """
        port = 1
        state = "x"
        wait-s = 0.5
        token = "t"
        reproducible = true
        clients = 2
        sparsity = 0.90
    """
    variables = {
        "SSFL_PORT": "1",
        "SSFL_STATE": "x",
        "SSFL_WAIT_S": ".5",
        "SSFL_TOKEN": "t",
        "SSFL_REPRODUCIBLE": "Yes",
        "SSFL_CLIENTS": "2",
        "SSFL_SPARSITY": "0.90",
    }
    flags = "--port 1 --state x --wait-s=0.5 --token t --reproducible --clients 2 --sparsity 0.90"
    assert coordinator("--config", toml(tmp_path, text)) == wanted
    assert coordinator(environ=variables) == wanted
    assert coordinator(*flags.split()) == wanted


def test_a_switch_can_be_turned_off_again() -> None:
    environ = {"SSFL_REPRODUCIBLE": "1", "SSFL_CLIENTS": "2"}
    assert coordinator(environ=environ).run.reproducible
    assert not coordinator("--no-reproducible", environ=environ).run.reproducible


def test_an_empty_variable_is_unset() -> None:
    assert coordinator(environ={"SSFL_ROUNDS": ""}) == Coordinator()


def test_the_home_folder_is_understood_where_no_shell_expands_it() -> None:
    assert coordinator(environ={"SSFL_STATE": "~/x"}).state == Path.home() / "x"


def test_a_positional_setting_has_no_flag() -> None:
    assert client("shards/a") == Client(Path("shards/a"))
    assert client(environ={"SSFL_DATA": "shards/a"}) == Client(Path("shards/a"))
    assert refusal(of=client) == "SHARD is required: the shard"
    assert refusal("a", "b", of=client) == "unexpected argument 'b'"


def test_a_value_that_does_not_parse_is_reported_with_its_origin(tmp_path: Path) -> None:
    file = toml(tmp_path, 'rounds = "ten"')
    wanted = "must be a whole number, got 'ten'"
    assert refusal("--rounds", "ten") == f"--rounds {wanted}"
    assert refusal(environ={"SSFL_ROUNDS": "ten"}) == f"SSFL_ROUNDS {wanted}"
    assert refusal("--config", file) == f"rounds in {file} {wanted}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--rounds 0", "--rounds must be at least 1, got 0"),
        ("--rounds -1", "--rounds must be at least 1, got -1"),
        ("--rounds 1.5", "--rounds must be a whole number, got '1.5'"),
        ("--port 65536", "--port must be at most 65535, got 65536"),
        ("--port -1", "--port must be at least 0, got -1"),
        ("--wait-s 0", "--wait-s must be above 0, got 0.0"),
        ("--wait-s nan", "--wait-s must be a finite number, got nan"),
        ("--wait-s soon", "--wait-s must be a number, got 'soon'"),
        (
            "--model vgg",
            "--model must be one of mlp, cnn, cnn-small, lenet5, resnet18, resnet50, "
            "resnet8, resnet20, resnet32, resnet44, resnet56, resnet110, got 'vgg'",
        ),
        ("--port", "--port needs a value"),
        ("--lr 0.1", "unknown flag --lr; did you mean --learning-rate?"),
        ("--rouns 5", "unknown flag --rouns; did you mean --rounds?"),
        ("--no-reproducable", "unknown flag --no-reproducable; did you mean --no-reproducible?"),
        ("--xyzzy", "unknown flag --xyzzy; `--help all` lists every flag"),
        ("--round 5", "unknown flag --round; did you mean --rounds?"),
        ("-p 5", "unknown flag -p; `--help all` lists every flag"),
        ("start", "unexpected argument 'start'"),
        ("--port 13", "--port 13 is unlucky"),
        ("--sparsity 90", "--sparsity: sparsity must lie strictly between 0 and 1, got 90"),
    ],
)
def test_a_wrong_flag_gets_one_sentence(argv: str, message: str) -> None:
    assert refusal(*argv.split()).startswith(message)


def test_an_abbreviation_suggests_the_setting_or_nothing() -> None:
    known = ["--late-round", "--lr-decay", "--learning-rate", "--help", "--only"]
    assert closest("--lr", known) == "; did you mean --learning-rate?"
    assert closest("SSFL_LR", ["SSFL_LATE_ROUND", "SSFL_LEARNING_RATE"]).endswith("LEARNING_RATE?")
    assert closest("lr", ["late_round", "learning_rate"]).endswith("learning_rate?")
    for others in (["--help", "--only"], ["--rtt", "--runs"], ["--pool"]):
        assert closest("--lr", others) == ""


def test_a_wrong_switch_in_a_variable_is_refused() -> None:
    message = "SSFL_REPRODUCIBLE must be true or false, got 'maybe'"
    assert refusal(environ={"SSFL_REPRODUCIBLE": "maybe"}) == message


def test_a_broken_rule_across_settings_names_the_origin_of_each() -> None:
    message = refusal("--min-clients", "3", environ={"SSFL_CLIENTS": "2"})
    assert message.startswith("--clients 2 is below --min-clients 3")
    assert message.endswith("(--clients is set by SSFL_CLIENTS)")


def test_an_unknown_variable_names_the_closest() -> None:
    assert refusal(environ={"SSFL_ROUNS": "3"}) == (
        "the variable SSFL_ROUNS is not a setting of ssfl-coordinator; did you mean SSFL_ROUNDS?"
    )


def test_an_unknown_key_names_file_key_and_closest(tmp_path: Path) -> None:
    file = toml(tmp_path, "roundz = 3")
    assert refusal("--config", file) == (
        f"roundz in {file} is not a setting of ssfl-coordinator; did you mean rounds?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = ", "is not valid TOML: "),
        ("[run]\nrounds = 3", "run in "),
        ("rounds = [3]", "must be a plain value at the top level, got [3]"),
        ("rounds = true", "must be a whole number, got 'true'"),
        ("rounds = 3.0", "must be a whole number, got '3.0'"),
        ("local-epochs = 1\nlocal_epochs = 2", "given twice"),
    ],
)
def test_a_wrong_file_gets_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    assert message in refusal("--config", toml(tmp_path, text))


def test_a_missing_file_is_named() -> None:
    assert refusal("--config", "no.toml") == (
        "the settings file no.toml cannot be read: No such file or directory"
    )


def test_a_setting_of_another_program_is_refused_with_its_reason(tmp_path: Path) -> None:
    assert refusal("a", "--sparsity=0.5", of=client) == f"--sparsity {ELSEWHERE}"
    assert refusal("a", "--no-reproducible", of=client) == f"--no-reproducible {ELSEWHERE}"
    file = toml(tmp_path, "sparsity = 0.5")
    assert refusal("a", "--config", file, of=client) == f"sparsity in {file} {ELSEWHERE}"


def test_a_variable_of_another_program_is_ignored() -> None:
    assert client("a", environ={"SSFL_SPARSITY": "0.5"}) == Client(Path("a"))


def test_describe_is_flat_and_plain() -> None:
    flat = describe(coordinator("--rounds", "3"))
    assert flat["port"] == 50051
    assert flat["state"] == "runs/state"
    assert flat["rounds"] == 3
    assert tuple(flat) == setting_names(Coordinator)
    assert "run" not in flat


def test_changed_settings_are_those_that_differ_from_the_default() -> None:
    assert changed(coordinator()) == {}
    given = ("--rounds", "3", "--port", "50051", "--state", "elsewhere")
    assert changed(coordinator(*given)) == {"state": "elsewhere", "rounds": 3}


def test_two_settings_of_one_name_raise_type_error() -> None:
    @dataclass(frozen=True)
    class Twice:
        rounds: int = 1
        run: RunSettings = field(default_factory=RunSettings)

    with pytest.raises(TypeError, match="names of settings must be unique"):
        load(Twice, [], {}, "x", "")
