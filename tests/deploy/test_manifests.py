"""The manifests as documents: their schemas and cross-references."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy.crds import SCHEMAS
from deploy.image import image
from deploy.manifests import K8S, OVERLAYS, Document, find, overlay, pod_of, variant, workloads
from ssfl.client.config import ClientConfig, settings_elsewhere
from ssfl.program import settings
from ssfl.program.exits import ExitCode
from ssfl.server.config import CoordinatorConfig, client_settings
from ssfl.server.main import DRAIN_S

VERSIONS = ("1.29", "1.33", "1.37")  # the oldest with all features in use, and the newest known
LABELS = {"name", "instance", "component", "part-of"}
MARGIN_S = 5  # after the drain: last files, and the end of the interpreter


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Document]]:
    """All overlays, also with their optional components."""
    found = {name: overlay(name) for name in OVERLAYS}
    for name, component in (("production", "ingress"), ("site", "gpu")):
        folder = tmp_path_factory.mktemp(component)
        found[f"{name} with {component}"] = variant(name, component, folder)
    return found


CASES = (*OVERLAYS, "production with ingress", "site with gpu")


def containers(pod: Document) -> list[Document]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def check(document: Document, version: str) -> None:
    """Raise an error for an invalid document."""
    ours = SCHEMAS.get((document["apiVersion"], document["kind"]))
    if ours:
        jsonschema.validate(document, ours)
    else:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_document_fits_the_kubernetes_schema(
    everything: dict[str, list[Document]], case: str, version: str
) -> None:
    assert everything[case]
    for document in everything[case]:
        check(document, version)


@pytest.mark.parametrize("kind", ["StatefulSet", "ServiceMonitor", "Gateway", "TLSRoute"])
def test_an_unknown_field_is_refused(kind: str) -> None:
    document = find(overlay("production"), kind)
    check(document, VERSIONS[-1])
    document["spec"]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError):
        check(document, VERSIONS[-1])


@pytest.mark.parametrize("case", CASES)
def test_every_pod_meets_the_restricted_security_standard(
    everything: dict[str, list[Document]], case: str
) -> None:
    namespace = find(everything[case], "Namespace")["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == "restricted"
    for workload in workloads(everything[case]):
        pod = pod_of(workload)
        user, _, group = image("client").user.partition(":")
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))
        assert security["fsGroup"] == int(group)  # else only root can read secrets and volumes
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
        assert kinds <= {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert set(container["resources"]) == {"requests", "limits"}


@pytest.mark.parametrize("case", CASES)
def test_programs_write_only_to_writable_volumes(
    everything: dict[str, list[Document]], case: str
) -> None:
    for workload in workloads(everything[case]):
        (container,) = pod_of(workload)["containers"]
        target = workload["metadata"]["name"].removeprefix("ssfl-")
        words = [f"{name}={value}" for name, value in image(target).environment.items()]
        words += container["args"]
        for source in container.get("envFrom", []):
            data = find(everything[case], "ConfigMap", source["configMapRef"]["name"])["data"]
            words += [f"{name}={value}" for name, value in data.items()]
        folders = [
            word.rpartition("=")[2] for word in words if re.match(r".*(state|out).dir=", word, re.I)
        ]
        assert len(folders) >= 2
        for folder in (*folders, "/tmp"):
            mounts = [
                mount
                for mount in container["volumeMounts"]
                if folder == mount["mountPath"] or folder.startswith(f"{mount['mountPath']}/")
            ]
            assert [mount.get("readOnly", False) for mount in mounts] == [False], folder


@pytest.mark.parametrize("case", CASES)
def test_variables_of_services_are_not_read_as_settings(
    everything: dict[str, list[Document]], case: str
) -> None:
    """E.g. SSFL_COORDINATOR_PORT, which Kubernetes sets for a service of this name."""
    for workload in workloads(everything[case]):
        assert pod_of(workload)["enableServiceLinks"] is False


@pytest.mark.parametrize("case", OVERLAYS)
def test_everything_has_the_recommended_labels(
    everything: dict[str, list[Document]], case: str
) -> None:
    for document in everything[case]:
        if document["kind"] in ("Namespace", "ConfigMap", "PrometheusRule"):
            continue
        places = [document["metadata"]]
        if document in workloads(everything[case]):
            places.append(document["spec"]["template"]["metadata"])
        for place in places:
            names = {key.partition("app.kubernetes.io/")[2] for key in place["labels"]}
            assert names >= LABELS, document["kind"]


def test_immutable_fields_have_no_labels_that_change_with_a_release() -> None:
    stateful = find(overlay("production"), "StatefulSet")
    assert stateful["metadata"]["labels"]["app.kubernetes.io/version"]
    for claim in stateful["spec"]["volumeClaimTemplates"]:
        assert "app.kubernetes.io/version" not in claim["metadata"]["labels"]


@pytest.mark.parametrize("case", CASES)
def test_the_programs_accept_the_flags_of_every_variant(
    everything: dict[str, list[Document]], case: str
) -> None:
    """test_pods.py runs the overlays; this test covers the changes of their components."""
    for workload in workloads(everything[case]):
        (container,) = pod_of(workload)["containers"]
        variables = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        for source in container.get("envFrom", []):
            name = source["configMapRef"]["name"]
            variables |= find(everything[case], "ConfigMap", name)["data"]
        if workload["kind"] == "StatefulSet":
            config = settings.load(
                CoordinatorConfig, container["args"], variables, case, "",
                known_elsewhere=client_settings(),
            )  # fmt: skip
            assert bool(config.tls_ca) is (case == "production")
            assert bool(config.join_token_file) is (case == "production with ingress")
            assert (config.status_host, config.status_port) == ("127.0.0.1", 8080)
        else:
            settings.load(
                ClientConfig, container["args"], variables, case, "",
                known_elsewhere=settings_elsewhere(),
            )  # fmt: skip


@pytest.mark.parametrize("name", ["local", "production"])
def test_the_coordinator_is_one_pod_that_resumes_by_itself(name: str) -> None:
    stateful = find(overlay(name), "StatefulSet")
    pod = pod_of(stateful)
    assert stateful["spec"]["replicas"] == 1
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    (container,) = pod["containers"]
    words = [*container["args"], *settings_of(overlay(name), container)]
    assert not re.search("fresh|exit_when_done|exit-when-done", " ".join(words), re.IGNORECASE)
    assert pod["terminationGracePeriodSeconds"] >= DRAIN_S + MARGIN_S
    # The liveness probe has no delay; only readiness gives time to read a large state.
    startup = container["startupProbe"]
    assert startup["httpGet"]["path"] == "/readyz"
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert CoordinatorConfig().exit_when_done is False


def settings_of(documents: list[Document], container: Document) -> Iterator[str]:
    for source in container["envFrom"]:
        yield from find(documents, "ConfigMap", source["configMapRef"]["name"])["data"]
    yield from (variable["name"] for variable in container.get("env", []))


def test_the_pod_failure_policy_matches_the_exit_codes() -> None:
    """k8s/README.md documents the action for each code; the manifest must agree."""
    page = (K8S / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| (Complete|Count|FailIndex) \|", page, re.MULTILINE)
    actions = {int(code): action for code, action in rows}
    assert set(actions) == {int(code) for code in ExitCode}
    for name in ("local", "site"):
        spec = find(overlay(name), "Job")["spec"]
        ignore, fail = spec["podFailurePolicy"]["rules"]
        assert ignore["action"] == "Ignore"
        assert [condition["type"] for condition in ignore["onPodConditions"]] == [
            "DisruptionTarget"
        ]
        assert fail["action"] == "FailIndex"
        assert fail["onExitCodes"]["operator"] == "In"
        failing = {code for code, action in actions.items() if action == "FailIndex"}
        assert set(fail["onExitCodes"]["values"]) == failing
        (container,) = spec["template"]["spec"]["containers"]
        assert fail["onExitCodes"]["containerName"] == container["name"]
        assert spec["completionMode"] == "Indexed"
        assert spec["backoffLimitPerIndex"] > 0
        assert spec["podReplacementPolicy"] == "Failed"
        assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("case", CASES)
def test_references_between_documents_resolve(
    everything: dict[str, list[Document]], case: str
) -> None:
    documents = everything[case]
    for workload in workloads(documents):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        for container in pod_of(workload)["containers"]:
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe"):
                assert container[probe]["httpGet"]["port"] in ports
        for document in documents:
            selected = selector_of(document)
            if selected and selected.items() <= labels.items():
                assert set(ports_named(document)) <= ports, document["kind"]
    names = {
        document["metadata"]["name"] for document in documents if document["kind"] == "Service"
    }
    called = set(re.findall(r"'(?:service|backendRefs)': \[?\{'name': '([\w-]+)'", str(documents)))
    assert called <= names


def test_every_pod_selector_selects_a_pod() -> None:
    for name in OVERLAYS:
        documents = overlay(name)
        labels = [
            workload["spec"]["template"]["metadata"]["labels"] for workload in workloads(documents)
        ]
        labels += [
            document["metadata"]["labels"]
            for document in documents
            if document["kind"] == "Service"
        ]
        for document in documents:
            selected = selector_of(document)
            found = [pod_labels for pod_labels in labels if selected.items() <= pod_labels.items()]
            assert found, f"{document['kind']} of {name}"


def selector_of(document: Document) -> dict[str, str]:
    spec: Any = document.get("spec", {})
    if document["kind"] == "Service":
        return dict(spec["selector"])
    selector = spec.get("selector") or spec.get("podSelector") or {}
    return dict(selector.get("matchLabels", {}))


def ports_named(document: Document) -> Iterator[str]:
    """Yield the names of container ports that a Service or NetworkPolicy refers to."""
    spec = document["spec"]
    if document["kind"] == "Service":
        yield from (port["targetPort"] for port in spec["ports"])
    if document["kind"] == "NetworkPolicy":
        for rule in spec["ingress"]:
            yield from (port["port"] for port in rule["ports"])


@pytest.mark.parametrize("name", ["local", "site"])
def test_a_client_has_time_to_load_torch_and_to_exit(name: str) -> None:
    pod = pod_of(find(overlay(name), "Job"))
    (container,) = pod["containers"]
    startup, alive = container["startupProbe"], container["livenessProbe"]
    assert startup["httpGet"]["path"] == alive["httpGet"]["path"] == "/healthz"
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 300
    assert pod["terminationGracePeriodSeconds"] >= DRAIN_S + MARGIN_S


def test_a_site_can_connect_out_and_accepts_no_connections() -> None:
    documents = overlay("site")
    policy = find(documents, "NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["ingress"] == []
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    address = (K8S / "overlays/site/site.env").read_text("utf-8")
    (port,) = re.findall(r"^SSFL_COORDINATOR=.*:(\d+)$", address, re.MULTILINE)
    assert ports == {53, int(port)}
    assert not [
        document for document in documents if document["kind"] in ("Service", "StatefulSet")
    ]


def test_the_production_overlay_is_complete() -> None:
    kinds = {document["kind"] for document in overlay("production")}
    assert kinds >= {
        *{"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"},
        *{"PrometheusRule", "Gateway", "TLSRoute", "ConfigMap", "Namespace"},
    }
    assert "Job" not in kinds
    policy = find(overlay("production"), "NetworkPolicy")["spec"]
    assert policy["egress"] == []


def test_every_yaml_file_belongs_to_an_overlay_or_component() -> None:
    named = set()
    for file in K8S.rglob("kustomization.yaml"):
        document = yaml.safe_load(file.read_text("utf-8"))
        local = [*document.get("resources", []), *document.get("components", [])]
        local += [patch["path"] for patch in document.get("patches", []) if "path" in patch]
        for made in document.get("configMapGenerator", []):
            local += [*made.get("envs", []), *made.get("files", [])]
        named |= {(file.parent / Path(name)).resolve() for name in local}
    for file in K8S.rglob("*"):
        if file.suffix in (".yaml", ".env", ".toml") and file.name != "kustomization.yaml":
            assert file.resolve() in named, file
