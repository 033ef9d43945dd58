"""The manifests as they are applied: each overlay rendered once, its documents found by kind."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deploy.kubectl import ROOT, kustomize

K8S = ROOT / "k8s"
OVERLAYS = ("local", "production", "site")
Document = dict[str, Any]


@cache
def _rendered(folder: Path) -> str:
    return kustomize(folder)


def render(folder: Path) -> list[Document]:
    """Return the documents that a folder makes; they are the caller's to change."""
    return [document for document in yaml.safe_load_all(_rendered(folder)) if document]


def overlay(name: str) -> list[Document]:
    return render(K8S / "overlays" / name)


def variant(name: str, component: str, folder: Path) -> list[Document]:
    """Return an overlay with a component that it leaves out by default, switched on as its
    kustomization.yaml says; `folder` is empty.
    """
    for tree in (K8S, K8S.parent / "monitoring"):
        shutil.copytree(tree, folder / tree.name)
    file = folder / "k8s" / "overlays" / name / "kustomization.yaml"
    text = file.read_text()
    left_out = f"  # - ../../components/{component}\n"
    assert left_out in text
    text = text.replace("  - ../../components/gateway\n", "")  # one way in at a time
    file.write_text(text.replace(left_out, left_out.replace("# ", "")))
    return render(file.parent)


def find(documents: list[Document], kind: str, name: str = "") -> Document:
    """Return the one document of a kind, and of a name; a generated name may have a suffix."""
    found = [
        document
        for document in documents
        if document["kind"] == kind and name in ("", document["metadata"]["name"])
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def pod_of(document: Document) -> Document:
    """Return the pod's spec of a StatefulSet or Job."""
    spec: Document = document["spec"]["template"]["spec"]
    return spec


def workloads(documents: list[Document]) -> list[Document]:
    return [document for document in documents if document["kind"] in ("StatefulSet", "Job")]
