"""The operator's pages: runbook entries for all alerts, JSON as documented, fields of privacy."""

import re

import pytest
import yaml

from docs.pages import ROOT
from ssfl.program.exits import ExitCode
from ssfl.tools.operate.clients_view import clients_document
from ssfl.v1 import admin_pb2, coordinator_pb2, saliency_pb2, update_pb2

OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
PRIVACY = (ROOT / "docs" / "privacy.md").read_text("utf-8")
PARTS = ("- **Means.** ", "- **Urgent.** ", "- **Look at.** ", "- **Do.** ")
RULES = yaml.safe_load((ROOT / "monitoring" / "rules.yml").read_text("utf-8"))["groups"]
ALERTS = {
    rule["alert"]: str(rule["labels"]["severity"]).capitalize()
    for group in RULES
    for rule in group["rules"]
    if "alert" in rule
}

# The fields that a client sends, and the words of the privacy page for each. Fields that only
# identify a message (run, step, digests) or check it say nothing about the data.
NAMES_ONLY = {
    "protocol_version", "token", "manifest_digest", "caller", "step", "initial_digest",
    "mask_digest", "mask_epoch", "base_digest", "round_number", "attempt",
}  # fmt: skip
DOCUMENTED = {
    "client_id": "its client id",
    "own_mask": "a mask of its own",
    "vectors": "further vectors",
    "numbers": "numbers of the strategy",
    "num_samples": "number of training samples",
    "manifest": "the model's description",
    "fingerprint": "a fingerprint (versions of torch and numpy",
    "class_counts": "`--share-class-counts`",
    "encodings": "encodings",
    "software": "version of ssfl",
    "labels": "`--share-labels`",
    "strategy": "version or SHA-256 of the strategy",
    "initial": "weights, if they do not follow from the seed",
    "scores": "|gradient · weight\\|",
    "work_s": "seconds",
    "values": "the trained values inside the mask",
    "base_evaluation": "how the base and the trained model do",
    "personal_evaluation": "how the base and the trained model do",
    "training_loss": "training loss",
    "coding_error": "the relative error of a lossy code",
    "correct": "(number correct, number of samples, sum of losses, sums of other metrics)",
    "total": "(number correct, number of samples, sum of losses, sums of other metrics)",
    "loss_sum": "(number correct, number of samples, sum of losses, sums of other metrics)",
    "metric_sums": "(number correct, number of samples, sum of losses, sums of other metrics)",
    "evaluation": "for the test split",
    "validation": "the validation split",
    "personal": "counts and sums of both models",
    "steps_done": "number of steps done",
    "steps_all": "of all steps",
    "reason": "why",
    "detail": "a sentence of at most 200 characters",
}
SENT = (
    coordinator_pb2.JoinRequest, coordinator_pb2.InitialModel, saliency_pb2.SaliencyReport,
    update_pb2.SparseUpdate, update_pb2.Evaluation, coordinator_pb2.ReportEvaluationRequest,
    coordinator_pb2.ProgressRequest, coordinator_pb2.LeaveRequest, coordinator_pb2.CheckQuestion,
)  # fmt: skip


def section(name: str) -> str:
    found = re.search(rf"^### {name}\n(.*?)(?=^### |\Z)", OPERATIONS, flags=re.M | re.S)
    assert found, f"docs/operations.md has no section {name}"
    return found[1]


@pytest.mark.parametrize("name", [*ALERTS, "Node lost, coordinator pod stuck Terminating"])
def test_every_alert_has_a_runbook_entry_with_all_its_parts(name: str) -> None:
    text = section(name)
    places = [text.find(part) for part in PARTS]
    assert -1 not in places and places == sorted(places)
    assert f"{PARTS[1]}{ALERTS.get(name, 'As')}" in text


def test_the_runbook_has_no_entry_for_an_unknown_alert() -> None:
    entries = re.findall(r"^### (Ssfl\w+)$", OPERATIONS, flags=re.M)
    assert sorted(entries) == sorted(ALERTS)


def test_the_pages_have_the_right_number_of_alerts() -> None:
    assert len(ALERTS) == 14
    for page in ("README.md", "docs/monitoring.md"):
        assert "fourteen alerts" in (ROOT / page).read_text("utf-8")


def test_a_site_restarts_after_the_codes_that_its_job_retries() -> None:
    """By systemd and in Kubernetes: final exit codes are not retried, all others are."""
    job = yaml.safe_load((ROOT / "k8s" / "base" / "client" / "job.yaml").read_text("utf-8"))
    _, fail = job["spec"]["podFailurePolicy"]["rules"]
    found = re.search(r"starts its client, .* a code other than ([\d, or]+) \|", OPERATIONS)
    assert found is not None
    codes = [int(code) for code in re.findall(r"\d+", found[1])]
    assert codes == [ExitCode.DONE, *fail["onExitCodes"]["values"]]
    assert set(codes) < {int(code) for code in ExitCode}


def test_the_json_of_ssfl_clients_is_as_documented() -> None:
    status = admin_pb2.GetStatusResponse(clients=[admin_pb2.ClientStatus(client_id="a")])
    document = clients_document(status)
    (row,) = [line for line in OPERATIONS.splitlines() if line.startswith("| `ssfl clients` |")]
    assert re.findall(r"`(\w+)`", row.rpartition(" | ")[2]) == list(document)
    (client,) = document["clients"]
    found = re.search(r"A client in `ssfl clients --json` has (.*?)\n\n", OPERATIONS, flags=re.S)
    assert found is not None
    assert re.findall(r"`(\w+)`", found[1]) == list(client)


@pytest.mark.parametrize("message", SENT, ids=lambda message: message.DESCRIPTOR.name)
def test_the_privacy_page_covers_every_field_that_a_client_sends(message: type) -> None:
    names = {field.name for field in message.DESCRIPTOR.fields} - NAMES_ONLY  # type: ignore[attr-defined]
    assert names <= DOCUMENTED.keys(), "document the new field in docs/privacy.md"
    plain = " ".join(PRIVACY.split())
    assert [name for name in sorted(names) if DOCUMENTED[name] not in plain] == []
