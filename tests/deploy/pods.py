"""Pods without Kubernetes: the commands, variables, probes and volumes of containers as processes.

This does the work of a node: $(VARIABLES) are filled in, volumes are folders, secrets are files,
init containers run first, probes go to the pod's address (POD_IP, where a port on the pod's
loopback is not found), and SIGTERM has the pod's grace period. A client reaches a pod by the name
and port of its Service, or from outside by the Gateway and its route. Three things differ from a
cluster, each in one place: paths below a mount are in the test's folder, ports are free ones of
this machine, and service names are `localhost`. The real program detects flags, paths, ports and
keys that do not fit.
"""

import base64
import http.client
import re
import shutil
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.image import Image, image
from deploy.manifests import Document, find
from system.programs import SCRIPTS, Program, environment, until

PORT_FLAG = re.compile(r"(--(?:[a-z]+-)?port=)(\d+)")
ADDRESS = re.compile(r"\b([a-z0-9.-]+):(\d+)\b")
POD_IP = "127.0.0.2"
READ_ONLY = Path("/proc/read-only")  # does not exist and cannot be created


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Cluster:
    """Manifests, secrets, claims and service addresses that the pods of a test share."""

    folder: Path
    documents: list[Document]
    called: dict[str, int] = field(default_factory=dict)  # host:port -> port of this machine

    def serve(self, pod: "Pod", cluster: "Cluster | None" = None) -> None:
        """Let this cluster's pods call `pod`, perhaps of another `cluster`, by service name."""
        documents = (cluster or self).documents
        inside = {}
        for service in (document for document in documents if document["kind"] == "Service"):
            assert service["spec"]["selector"].items() <= pod.labels.items()
            for port in service["spec"]["ports"]:
                number = pod.ports.get(pod.port_number(port["targetPort"]))
                if number is not None:
                    inside[f"{_name(service)}:{port['port']}"] = number
        self.called |= inside if cluster is None else _from_outside(documents, inside)

    def secret(self, name: str, **files: bytes) -> None:
        """Add a secret, as `kubectl create secret` does, or replace it."""
        self.documents = [
            document
            for document in self.documents
            if (document["kind"], _name(document)) != ("Secret", name)
        ]
        data = {key: base64.b64encode(value).decode() for key, value in files.items()}
        metadata = {"name": name}
        self.documents.append({"kind": "Secret", "metadata": metadata, "data": data})

    def tls_secret(self, name: str, certs: Path, owner: str) -> None:
        """Add a secret in the layout of kubernetes.io/tls, from the files of `ssfl certs`."""
        files = {
            "tls.crt": certs / f"{owner}.pem",
            "tls.key": certs / f"{owner}-key.pem",
            "ca.crt": certs / "ca.pem",
        }
        self.secret(name, **{key: file.read_bytes() for key, file in files.items()})

    def settings(self, name: str) -> dict[str, str]:
        """Return the ConfigMap that kustomize generated for this name; tests may edit it."""
        (found,) = [
            document["data"]
            for document in self.documents
            if document["kind"] == "ConfigMap"
            and re.fullmatch(rf"{name}-[a-z0-9]+", _name(document))
        ]
        settings: dict[str, str] = found
        return settings


def _name(document: Document) -> str:
    name: str = document["metadata"]["name"]
    return name


class Pod:
    """One pod of a StatefulSet or Job. A restart keeps its volumes."""

    def __init__(self, cluster: Cluster, owner: Document, index: int = 0) -> None:
        self.cluster = cluster
        self.owner = owner
        self.index = index
        self.name = f"{_name(owner)}-{index}"
        self.spec: Document = owner["spec"]["template"]["spec"]
        self.labels: dict[str, str] = owner["spec"]["template"]["metadata"]["labels"]
        self.folder = cluster.folder / self.name
        self.volumes = {volume["name"]: self._volume(volume) for volume in self._volumes()}
        self.ports: dict[int, int] = {}  # as in the manifest -> on this machine
        self.starts = 0
        (self.container,) = self.spec["containers"]
        self.running: Program | None = None
        self._localize_files()

    # -- lifecycle

    def prepare(self, like: "Pod | None" = None) -> None:
        """Run the init containers to their end, or copy the results of a similar pod."""
        for container in self.spec.get("initContainers", []):
            if like is None:
                assert self._run(container).ends() == 0, f"{self.name}: {container['name']}"
                continue
            for name in (mount["name"] for mount in container["volumeMounts"]):
                shutil.copytree(like.volumes[name], self.volumes[name], dirs_exist_ok=True)

    def start(self) -> Program:
        """Start or restart the container, with the same ports and volumes."""
        self.starts += 1
        self.running = self._run(self.container)
        return self.running

    @property
    def program(self) -> Program:
        assert self.running
        return self.running

    def succeeds(self, probe: str) -> bool:
        """Return True if a probe of the container succeeds now."""
        asked = self.container[probe]["httpGet"]
        port = self.ports[self.port_number(asked["port"])]
        try:
            timeout_s = self.container[probe]["timeoutSeconds"]
            link = http.client.HTTPConnection(POD_IP, port, timeout=timeout_s)
            link.request("GET", asked["path"])
            return 200 <= link.getresponse().status < 400
        except OSError:
            return False

    def forwarded(self, port: int, path: str) -> tuple[int, bytes]:
        """Request a path on the pod's loopback, like `kubectl port-forward`; return the answer."""
        link = http.client.HTTPConnection("localhost", self.ports[port], timeout=10)
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.read()

    def waits_for(self, probe: str) -> None:
        """Wait until a probe succeeds; test_manifests.py checks the real deadlines."""

        def answered() -> bool:
            assert self.program.running, f"{self.name} ended:\n{self.program.err}"
            return self.succeeds(probe)

        until(answered, f"{probe} of {self.name}")

    def terminate(self) -> int:
        """End the pod like Kubernetes, within its grace period; return the exit code."""
        grace_s = self.spec["terminationGracePeriodSeconds"]
        began_s = time.monotonic()
        self.program.signal(signal.SIGTERM)
        code = self.program.ends(grace_s)
        assert time.monotonic() - began_s < grace_s
        return code

    def execute(self, command: str, *arguments: str) -> Program:
        """Run a command to its end, like `kubectl exec`."""
        name = f"{self.name}-exec-{self.starts}-{command}"
        local = [self._local(word, self.container) for word in arguments]
        words: list[str | Path] = [SCRIPTS / command, *local]
        program = Program(name, words, self._folder(), self._environment(self.container))
        program.ends()
        return program

    # -- what the node does with the manifest

    def _run(self, container: Document) -> Program:
        variables = self._variables(container)
        words = [*container.get("command", self._image(container).entrypoint)]
        words += container.get("args", [])
        command, *arguments = [self._local(_filled(word, variables), container) for word in words]
        script = SCRIPTS / command
        assert script.is_file(), f"{self.name}: there is no command {command}"
        name = f"{self.name}-{container['name']}-{self.starts}"
        return Program(name, [script, *arguments], self._folder(), self._environment(container))

    def _environment(self, container: Document) -> dict[str, str]:
        local = {
            name: self._local(text, container, READ_ONLY)
            for name, text in self._variables(container).items()
        }
        return environment() | {"TMPDIR": str(self.path("/tmp", container))} | local

    def _variables(self, container: Document) -> dict[str, str]:
        variables = dict(self._image(container).environment)
        if self.spec.get("enableServiceLinks", True):
            variables["SSFL_COORDINATOR_PORT"] = "tcp://10.0.0.1:50051"
        for source in container.get("envFrom", []):
            variables |= self._find("ConfigMap", source["configMapRef"]["name"])["data"]
        own: list[Document] = [*container.get("env", [])]
        for variable in own:
            assert isinstance(variable["value"], str)
            variables[variable["name"]] = _filled(variable["value"], variables)
        if self.owner["kind"] == "Job":  # added after the container's own
            variables["JOB_COMPLETION_INDEX"] = str(self.index)
        return variables

    def _image(self, container: Document) -> Image:
        place, _, _ = container["image"].rpartition(":")
        return image(place.rpartition("/")[2].removeprefix("ssfl-"))

    def _find(self, kind: str, name: str) -> Document:
        return find(self.cluster.documents, kind, name)

    def port_number(self, port: str | int) -> int:
        named = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        return named[port] if isinstance(port, str) else port

    def _volumes(self) -> list[Document]:
        claims = self.owner["spec"].get("volumeClaimTemplates", [])
        templates = [{"name": claim["metadata"]["name"], "own": {}} for claim in claims]
        return [*templates, *self.spec["volumes"]]

    def _volume(self, volume: Document) -> Path:
        name, source = volume["name"], next(key for key in volume if key != "name")
        folder: Path = self.folder / "volumes" / name
        if source == "persistentVolumeClaim":
            claim = self._find("PersistentVolumeClaim", volume[source]["claimName"])
            folder = self.cluster.folder / "claims" / _name(claim)
        folder.mkdir(parents=True, exist_ok=True)
        if source == "secret":
            for key, text in self._find("Secret", volume[source]["secretName"])["data"].items():
                (folder / key).write_bytes(base64.b64decode(text))
        elif source == "configMap":
            for key, text in self._find("ConfigMap", volume[source]["name"])["data"].items():
                (folder / key).write_text(text, "utf-8")
        else:
            assert source in ("own", "emptyDir", "persistentVolumeClaim"), source
        return folder

    # -- differences from a cluster

    def path(
        self, inside: str, container: Document | None = None, elsewhere: Path | None = None
    ) -> Path:
        """Return the local path for a path inside the container or an init container.

        `elsewhere`: folder for paths outside all volumes; without it there must be none.
        """
        mounts: list[tuple[str, Path]] = [
            (mount["mountPath"], self.volumes[mount["name"]] / mount.get("subPath", ""))
            for mount in (container or self.container)["volumeMounts"]
        ]
        for mount, folder in sorted(mounts, key=lambda pair: -len(pair[0])):
            if inside == mount or inside.startswith(f"{mount}/"):
                return folder / inside.removeprefix(mount).lstrip("/")
        if elsewhere:
            return elsewhere / inside.lstrip("/")
        raise AssertionError(f"{self.name}: {inside} is in no volume, and the rest is read-only")

    def _localize_files(self) -> None:
        """Replace paths in settings files from ConfigMaps by local ones."""
        for volume in self._volumes():
            for file in self.volumes[volume["name"]].iterdir() if "configMap" in volume else ():
                text = file.read_text("utf-8")
                text = re.sub(r'(?<=")/[^"]+(?=")', lambda found: str(self.path(found[0])), text)
                file.write_text(text, "utf-8")

    def _folder(self) -> Path:
        return self.path(self._image(self.container).folder)

    def _local(self, word: str, container: Document, elsewhere: Path | None = None) -> str:
        """Return a word of the command, or a variable, with local paths and ports."""
        flag, equals, value = word.rpartition("=")
        if value.startswith("/"):
            return f"{flag}{equals}{self.path(value, container, elsewhere)}"
        if found := PORT_FLAG.fullmatch(word):
            port = self.ports.setdefault(int(found[2]), free_port())
            return f"{found[1]}{port}"
        if ADDRESS.fullmatch(value) and value in self.cluster.called:
            return f"{flag}{equals}localhost:{self.cluster.called[value]}"
        return word


def _from_outside(documents: list[Document], inside: dict[str, int]) -> dict[str, int]:
    """Return the targets of a Gateway's listeners, by the routes that refer to them."""
    found = {}
    gateway, route = find(documents, "Gateway"), find(documents, "TLSRoute")
    (parent,) = route["spec"]["parentRefs"]
    assert parent["name"] == _name(gateway)
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    for listener in gateway["spec"]["listeners"]:
        if listener["name"] == parent["sectionName"]:
            assert listener["hostname"] in route["spec"]["hostnames"]
            place = f"{listener['hostname']}:{listener['port']}"
            found[place] = inside[f"{backend['name']}:{backend['port']}"]
    return found


def _filled(word: str, variables: dict[str, Any]) -> str:
    """Return a word with its $(VARIABLES) replaced; unknown ones stay."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), word)
