"""The commands of k8s/README.md that can be checked without a cluster."""

import re
import shlex
from pathlib import Path

import kubernetes_validate
import yaml

from deploy.kubectl import ROOT
from deploy.manifests import K8S, OVERLAYS, Document, find, overlay, pod_of, workloads
from docs.pages import blocks_of
from ssfl.tools.main import main

PAGE = (K8S / "README.md").read_text("utf-8")


def commands() -> list[list[str]]:
    """Return every command of the shell blocks, with continued lines joined."""
    blocks = [block.text for block in blocks_of(PAGE) if block.kind == "sh"]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def test_every_folder_in_a_command_exists() -> None:
    applied = [words[-1] for words in commands() if words[:2] == ["kubectl", "apply"]]
    assert sorted(applied) == [f"k8s/overlays/{name}" for name in OVERLAYS]
    for folder in applied:
        assert (ROOT / folder / "kustomization.yaml").is_file()


def test_the_data_pod_of_the_readme_fits_the_mounts_of_a_site() -> None:
    (block,) = [block.text for block in blocks_of(PAGE) if block.kind == "yaml"]
    pod = yaml.safe_load(block)
    for version in ("1.29", "1.37"):
        kubernetes_validate.validate(pod, version, strict=True)
    assert f"# {pod['metadata']['name']}.yaml" in block
    client = pod_of(find(overlay("site"), "Job"))
    for name, value in pod["spec"]["securityContext"].items():
        assert client["securityContext"][name] == value
    assert pod["spec"]["containers"][0]["image"] == client["containers"][0]["image"]
    (mount,) = pod["spec"]["containers"][0]["volumeMounts"]
    (volume,) = pod["spec"]["volumes"]
    assert {"name": "data", "mountPath": mount["mountPath"], "readOnly": True} in [
        {key: mount.get(key) for key in ("name", "mountPath", "readOnly")}
        for mount in client["containers"][0]["volumeMounts"]
    ]
    claim = volume["persistentVolumeClaim"]
    assert {"name": "data", "persistentVolumeClaim": {**claim, "readOnly": True}} in client[
        "volumes"
    ]
    (copied,) = [words[-1] for words in commands() if "shard.npz" in words]
    data = find(overlay("site"), "ConfigMap", next(iter(_sources(client))))["data"]["SSFL_DATA"]
    assert copied == f"{pod['metadata']['name']}:{mount['mountPath']}/{data}"


def _sources(pod: Document) -> list[str]:
    """Return the names of the ConfigMaps whose keys are variables of a pod."""
    return [source["configMapRef"]["name"] for source in pod["containers"][0]["envFrom"]]


def test_every_file_and_folder_in_the_readme_exists() -> None:
    for name in re.findall(r"`((?:base|overlays|components)[\w./-]*|\w+\.(?:yaml|env))`", PAGE):
        assert list(K8S.rglob(name.rpartition("/")[2])) or (ROOT / name).exists(), name


def test_the_operator_file_is_mounted_in_the_production_pod() -> None:
    """test_pods.py runs `ssfl status` with it."""
    executed = [words for words in commands() if words[3:4] == ["exec"]]
    assert [words[words.index("--") + 1 :] for words in executed] == [
        ["ssfl", "status"],
        ["ssfl", "status", "--config", "/etc/ssfl/operator.toml"],
    ]
    (coordinator,) = workloads(overlay("production"))
    (container,) = pod_of(coordinator)["containers"]
    assert "/etc/ssfl/operator.toml" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_the_forwarded_port_is_the_status_port() -> None:
    (command,) = [words for words in commands() if words[3:4] == ["port-forward"]]
    for name in ("local", "production"):
        (container,) = pod_of(find(overlay(name), "StatefulSet"))["containers"]
        assert f"--status-port={command[5]}" in container["args"]


def test_the_certificates_and_secrets_of_the_readme_are_mounted(tmp_path: Path) -> None:
    (made,) = [words[1:] for words in commands() if words[:2] == ["ssfl", "certs"]]
    made[made.index("--out") + 1] = str(tmp_path)
    assert main(made) == 0
    secrets = {f"ssfl-{name}-tls" for name in ("coordinator", "admin", "prometheus")}
    for name in ("coordinator", "admin", "prometheus", "hospital-a"):
        assert (tmp_path / f"{name}.pem").is_file()
        assert (tmp_path / f"{name}-key.pem").is_file()
    created = [words for words in commands() if words[3:6] == ["create", "secret", "generic"]]
    assert [words[6] for words in created] == ["ssfl-$name-tls", "ssfl-client-tls"]
    assert "for name in coordinator admin prometheus; do" in PAGE
    mounted = {
        volume["secret"]["secretName"]
        for name in OVERLAYS
        for workload in workloads(overlay(name))
        for volume in pod_of(workload)["volumes"]
        if "secret" in volume
    }
    assert mounted == secrets - {"ssfl-prometheus-tls"} | {"ssfl-client-tls"}
