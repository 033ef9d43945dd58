"""The pods of every overlay, run as local processes (pods.py)."""

import base64
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from datasets.small_shard import small_shard
from deploy.manifests import find, overlay, variant
from deploy.pods import POD_IP, Cluster, Pod
from program.tls.pems import make
from ssfl.datasets.shards.shard_file import write_shard
from ssfl.program.exits import ExitCode
from system.programs import SCRIPTS, Program, environment, until

pytestmark = pytest.mark.system

SITES = ("hospital-a", "hospital-b")
OPERATOR = "/etc/ssfl/operator.toml"
Place = Callable[..., Pod]


@pytest.fixture
def place() -> Iterator[Place]:
    """Create pods that end with the test."""
    made: list[Pod] = []

    def new(cluster: Cluster, kind: str, index: int = 0) -> Pod:
        made.append(Pod(cluster, find(cluster.documents, kind), index))
        return made[-1]

    try:
        yield new
    finally:
        for pod in made:
            if pod.running and pod.running.running:
                pod.running.kill()
            if pod.running:
                print(f"--- {pod.name}\n{pod.running.out}{pod.running.err}")


def status(coordinator: Pod) -> dict[str, Any]:
    """Return the output of `kubectl exec … -- ssfl status`, as in k8s/README.md."""
    mounts = [mount["mountPath"] for mount in coordinator.container["volumeMounts"]]
    config = ["--config", OPERATOR] if OPERATOR in mounts else []
    admin = f"--admin=localhost:{coordinator.ports[50052]}"
    asked = coordinator.execute("ssfl", "status", "--json", admin, *config)
    assert asked.ends() == 0, asked.err
    answer: dict[str, Any] = json.loads(asked.out)
    return answer


def models(*pods: Pod) -> list[bytes]:
    """Return the final models in the pods' volumes."""
    folders = {pod.path("/var/lib/ssfl/runs") for pod in pods}
    return [
        file.read_bytes() for folder in folders for file in folder.glob("*/*/model.safetensors")
    ]


def test_the_local_overlay_runs_a_federation_stays_up_and_resumes(
    tmp_path: Path, place: Place
) -> None:
    cluster = Cluster(tmp_path, overlay("local"))
    coordinator = place(cluster, "StatefulSet")
    coordinator.start()
    coordinator.waits_for("startupProbe")
    coordinator.waits_for("readinessProbe")
    cluster.serve(coordinator)

    job = find(cluster.documents, "Job")["spec"]
    assert job["completions"] == job["parallelism"] == 4
    clients = [place(cluster, "Job", index) for index in range(job["completions"])]
    clients[0].prepare()
    for client in clients[1:]:
        client.prepare(like=clients[0])  # the same data, by the same seed
    for client in clients:
        client.start()
    for client in clients:
        client.waits_for("startupProbe")
        assert client.succeeds("livenessProbe")
    assert [client.program.ends() for client in clients] == [ExitCode.DONE] * 4
    assert page(coordinator)["phase"] == "finished"
    assert {client["client_id"] for client in status(coordinator)["clients"]} == {
        "shard_00", "shard_01", "shard_02", "shard_03",
    }  # fmt: skip

    # The coordinator of a finished run stays up; after a restart it serves the same run.
    assert coordinator.program.running
    assert coordinator.succeeds("readinessProbe")
    assert coordinator.terminate() == ExitCode.TERMINATED
    coordinator.start()
    coordinator.waits_for("readinessProbe")
    assert status(coordinator)["phase"] == "finished"
    assert coordinator.succeeds("livenessProbe")
    found = models(coordinator, *clients)
    assert len(found) == 5
    assert len(set(found)) == 1


def test_production_and_sites_run_under_mutual_tls_through_a_crash(
    tmp_path: Path, place: Place
) -> None:
    certs = make(tmp_path / "certs", *SITES, "prometheus", hosts=("ssfl-coordinator",))
    cluster = Cluster(tmp_path / "coordinator", overlay("production"))
    for name in ("coordinator", "admin", "prometheus"):
        cluster.tls_secret(f"ssfl-{name}-tls", certs, name)
    # Settings of a small run, as an operator would edit run.env.
    cluster.settings("ssfl-run").update(SSFL_CLIENTS="2", SSFL_ROUNDS="4", SSFL_MODEL="mlp")
    coordinator = place(cluster, "StatefulSet")
    coordinator.start()
    coordinator.waits_for("startupProbe")
    coordinator.waits_for("readinessProbe")
    assert status(coordinator)["phase"] == "gathering"

    sites = [site(tmp_path / name, name, coordinator, certs, place) for name in SITES]
    sites[0].start()
    until(lambda: joined(coordinator), "a site has joined")
    before = status(coordinator)
    coordinator.program.kill()
    coordinator.start()
    coordinator.waits_for("readinessProbe")
    answer = scraped(cluster, coordinator)
    assert " 200 " in answer.splitlines()[0] and "ssfl_run_phase{" in answer
    cluster.tls_secret("ssfl-prometheus-tls", certs, SITES[0])  # a site may not read about others
    with suppress(OSError):  # closed, with or without a response
        assert scraped(cluster, coordinator) == ""
    assert page(coordinator)["run_id"] == before["run_id"]
    assert joined(coordinator) == [SITES[0]]
    assert status(coordinator)["run_id"] == before["run_id"]

    # A pod of the same Job with the same volume is the same client.
    sites[0].waits_for("startupProbe")
    assert sites[0].terminate() == ExitCode.TERMINATED
    for pod in sites:
        pod.start()
    assert [pod.program.ends() for pod in sites] == [ExitCode.DONE] * 2
    assert coordinator.succeeds("livenessProbe")
    found = models(coordinator, *sites)
    assert len(found) == 3
    assert len(set(found)) == 1
    assert coordinator.terminate() == ExitCode.TERMINATED


def test_sites_behind_an_ingress_use_a_join_token_and_no_certificate(
    tmp_path: Path, place: Place
) -> None:
    """Behind the proxy, which terminates TLS and has no client certificate."""
    certs = make(tmp_path / "certs", hosts=("ssfl-coordinator",))
    (tmp_path / "kustomize").mkdir()
    documents = variant("production", "ingress", tmp_path / "kustomize")
    cluster = Cluster(tmp_path / "coordinator", documents)
    for name in ("coordinator", "admin"):
        cluster.tls_secret(f"ssfl-{name}-tls", certs, name)
    cluster.secret("ssfl-join-token", token=b"0123456789abcdef" * 4)
    cluster.settings("ssfl-run").update(
        SSFL_CLIENTS="1", SSFL_MIN_CLIENTS="1", SSFL_ROUNDS="1", SSFL_MODEL="mlp"
    )
    coordinator = place(cluster, "StatefulSet")
    coordinator.start()
    coordinator.waits_for("startupProbe")
    assert status(coordinator)["phase"] == "gathering"

    token, shard = tmp_path / "token", tmp_path / "shard.npz"
    write_shard(shard, small_shard())
    command: list[str | Path] = [
        SCRIPTS / "ssfl-client", f"--data={shard}", f"--join-token-file={token}",
        f"--coordinator=localhost:{coordinator.ports[50051]}", f"--tls-ca={certs / 'ca.pem'}",
    ]  # fmt: skip
    token.write_text("another" * 8)
    stranger = Program("stranger", [*command, "--client-id=stranger"], tmp_path, environment())
    assert stranger.ends() == ExitCode.REFUSED
    token.write_text("0123456789abcdef" * 4)
    client = Program("client", command, tmp_path, environment())
    assert client.ends() == ExitCode.DONE
    assert joined(coordinator) == ["shard"]


def page(coordinator: Pod) -> dict[str, Any]:
    """Return the status page's document by `kubectl port-forward`."""
    code, body = coordinator.forwarded(8080, "/api/v1/status")
    assert code == 200
    answer: dict[str, Any] = json.loads(body)
    return answer


def joined(coordinator: Pod) -> list[str]:
    return [client["client_id"] for client in status(coordinator)["clients"]]


def site(folder: Path, name: str, coordinator: Pod, certs: Path, place: Place) -> Pod:
    """Return the pod of a site, with its secret, its data and its site.env."""
    cluster = Cluster(folder, overlay("site"))
    cluster.serve(coordinator, coordinator.cluster)
    cluster.tls_secret("ssfl-client-tls", certs, name)
    settings = cluster.settings("ssfl-site")
    assert settings["SSFL_CLIENT_ID"] == SITES[0]
    settings["SSFL_CLIENT_ID"] = name
    pod = place(cluster, "Job")
    write_shard(pod.path("/data") / settings["SSFL_DATA"], small_shard())
    return pod


def scraped(cluster: Cluster, coordinator: Pod) -> str:
    """Request the metrics as the ServiceMonitor configures it; return the whole response."""
    (endpoint,) = find(cluster.documents, "ServiceMonitor")["spec"]["endpoints"]
    service = find(cluster.documents, "Service", "ssfl-coordinator")["spec"]
    (port,) = [
        service_port
        for service_port in service["ports"]
        if service_port["name"] == endpoint["port"]
    ]
    number = coordinator.ports[coordinator.port_number(port["targetPort"])]
    tls = endpoint["tlsConfig"]
    files = {
        key: secret_file(cluster, reference) for key, reference in
        (("ca", tls["ca"]["secret"]), ("cert", tls["cert"]["secret"]), ("key", tls["keySecret"]))
    }  # fmt: skip
    context = ssl.create_default_context(cafile=files["ca"])
    context.load_cert_chain(files["cert"], files["key"])
    with (
        socket.create_connection((POD_IP, number), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=tls["serverName"]) as link,
    ):
        link.sendall(f"GET {endpoint['path']} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: link.recv(65536), b"")).decode()


def secret_file(cluster: Cluster, reference: dict[str, str]) -> Path:
    """Return a file with one key of a secret."""
    text = find(cluster.documents, "Secret", reference["name"])["data"][reference["key"]]
    file = cluster.folder / f"{reference['name']}-{reference['key']}"
    file.write_bytes(base64.b64decode(text))
    return file
