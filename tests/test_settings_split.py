"""Every setting belongs to one program, and each program refuses the settings of the other."""

from dataclasses import fields, replace

import pytest
from google.protobuf.descriptor import FieldDescriptor

from ssfl.client import config as client_config
from ssfl.client.coding import read_settings
from ssfl.client.config import ClientConfig
from ssfl.client.errors import Refused
from ssfl.method.settings import RunSettings
from ssfl.program.settings.loading import setting_names
from ssfl.server import config as server_config
from ssfl.server.broadcast.tasks import settings_to_message
from ssfl.server.config import CoordinatorConfig
from ssfl.v1 import settings_pb2

CLIENT = set(setting_names(ClientConfig))
COORDINATOR = set(setting_names(CoordinatorConfig))
RUN = set(setting_names(RunSettings))
# Settings that both programs have, with separate values.
SHARED = {
    *{
        "state_dir",
        "out_dir",
        "log_format",
        "log_level",
        "give_up_after",
        "metrics_port",
        "metrics_host",
    },
    *{"tls_ca", "tls_cert", "tls_key", "join_token_file"},
}
# A site may give the file of the run's strategy or criterion.
FILES = {"strategy", "criterion"}

PROTO_TYPES = {
    int: FieldDescriptor.TYPE_UINT64,
    float: FieldDescriptor.TYPE_DOUBLE,
    str: FieldDescriptor.TYPE_STRING,
    bool: FieldDescriptor.TYPE_BOOL,
}


def test_only_the_coordinator_has_run_settings() -> None:
    assert RUN < COORDINATOR
    assert RUN & CLIENT == FILES


def test_both_programs_share_only_settings_of_output_log_metrics_and_tls() -> None:
    assert CLIENT & COORDINATOR == SHARED | FILES


def test_the_coordinator_lists_every_setting_that_only_the_client_has() -> None:
    assert len(set(server_config.CLIENT_SETTINGS)) == len(server_config.CLIENT_SETTINGS)
    assert set(server_config.CLIENT_SETTINGS) == CLIENT - COORDINATOR


def test_the_client_lists_every_setting_that_only_the_coordinator_has() -> None:
    names = client_config.COORDINATOR_SETTINGS
    assert len(set(names)) == len(names)
    assert set(names) == COORDINATOR - RUN - CLIENT


def test_each_program_refuses_the_others_settings_and_names_their_program() -> None:
    refused = server_config.client_settings()
    assert "ssfl status" in refused.pop("admin")
    assert set(refused) == CLIENT - COORDINATOR
    assert all("ssfl-client" in sentence for sentence in refused.values())
    refused = client_config.settings_elsewhere()
    assert "ssfl status" in refused.pop("admin")
    assert set(refused) == COORDINATOR - CLIENT
    assert all("coordinator" in sentence for sentence in refused.values())


def test_run_settings_have_the_same_names_and_types_in_the_proto() -> None:
    in_proto = {field.name: field.type for field in settings_pb2.RunSettings.DESCRIPTOR.fields}
    in_code = {field.name: PROTO_TYPES[type(field.default)] for field in fields(RunSettings)}
    assert in_proto == in_code


CHANGED = RunSettings(
    strategy="fedavg",
    strategy_options="fedavg.rate=2",
    model="mlp",
    norm="batch",
    width=8,
    sparsity="0.95",
    bytes_per_round="2MB",
    rounds=7,
    clients=4,
    clients_per_round=3,
    min_clients=1,
    local_epochs=2,
    local_steps=9,
    batch_size=8,
    learning_rate=0.3,
    lr_decay=0.5,
    momentum=0.9,
    weight_decay=0.1,
    clip_norm=1.5,
    seed=2**63 - 1,
    evaluate_every=3,
    reproducible=True,
    round_deadline_s=12.5,
    no_progress_s=3.5,
    scores="exact",
    value_type="grid",
    grid_bits=14,
    rounding="nearest",
    error_feedback=False,
    downloads="values",
    profile="paper",
    initialization="torch-default",
    sparsity_schedule="0:0.98,3:0.9",
    criterion="grasp",
    scoring_batches=6,
    scoring_samples="plain",
    score_weights="equal",
    layer_guard=0.01,
    warmup_rounds=2,
    refresh_rounds="3,5",
    refresh_every=4,
    refresh_on_new_labels=True,
    refresh_on_loss_jump=1.5,
    refresh_mode="grow",
    deactivated="reset",
    scoring_point="masked",
    client_fraction=0.5,
    newcomers_per_round=1,
    local_schedule="cosine",
    update_weights="equal",
    averaging="zeros",
    evaluate_last=2,
    target_accuracy=0.75,
    patience=3,
    personalize_epochs=4,
    personalize_lr="restart",
    scoring_quorum=3,
    over_selection=1.5,
    max_samples=1000,
    samples_over_max="clip",
    max_update_norm=2.5,
    score_outliers="keep",
    optimizer="adam",
    optimizer_options="betas=0.9:0.99",
    optimizer_state="keep",
    lr_schedule="cosine",
    lr_warmup_rounds=2,
    augment="crop-flip",
    normalize="0.5/0.25",
    scoring_augment=True,
)


def test_the_example_changes_every_setting() -> None:
    """A setting with its default value would not show that it is lost."""
    default = RunSettings()
    same = [n for n in sorted(RUN) if getattr(CHANGED, n) == getattr(default, n)]
    assert same == []


@pytest.mark.parametrize("settings", [RunSettings(), CHANGED], ids=["defaults", "changed"])
def test_run_settings_are_unchanged_by_the_wire(settings: RunSettings) -> None:
    wire = settings_to_message(settings).SerializeToString()
    message = settings_pb2.RunSettings.FromString(wire)
    sent = {name: getattr(message, name) for name in sorted(RUN)}
    absent = {name: "none" for name in ("augment", "normalize") if not sent[name]}
    assert RunSettings(**sent | absent) == settings


def test_settings_of_images_are_absent_from_the_wire_unless_they_are_set() -> None:
    sent = {field.name for field, _ in settings_to_message(RunSettings()).ListFields()}
    assert not sent & {"augment", "normalize", "scoring_augment"}
    assert read_settings(settings_to_message(RunSettings())) == RunSettings()


NEWER = {
    *("optimizer", "optimizer_options", "optimizer_state", "lr_schedule", "lr_warmup_rounds"),
    *("augment", "normalize", "scoring_augment"),
}


def test_settings_of_an_older_coordinator_have_the_defaults_of_newer_ones() -> None:
    default = RunSettings()
    sent = {name: getattr(default, name) for name in RUN - NEWER}
    settings = read_settings(settings_pb2.RunSettings(**sent))
    assert settings == default
    assert (settings.optimizer, settings.lr_schedule) == ("sgd", "decay")


def test_settings_that_a_client_cannot_use_are_refused() -> None:
    message = settings_to_message(replace(RunSettings(), optimizer="newton"))
    with pytest.raises(Refused, match="cannot use the run's settings: --optimizer must be one of"):
        read_settings(message)
