"""The rendered manifests: each overlay rendered once, documents found by kind."""

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
    """Return the documents of a folder, as copies that the caller may change."""
    return [document for document in yaml.safe_load_all(_rendered(folder)) if document]


def overlay(name: str) -> list[Document]:
    return render(K8S / "overlays" / name)


def variant(name: str, component: str, folder: Path) -> list[Document]:
    """Return an overlay with an optional component, enabled as its kustomization.yaml explains;
    `folder` is empty.
    """
    for tree in (K8S, K8S.parent / "monitoring"):
        shutil.copytree(tree, folder / tree.name)
    file = folder / "k8s" / "overlays" / name / "kustomization.yaml"
    text = file.read_text()
    left_out = f"  # - ../../components/{component}\n"
    assert left_out in text
    text = text.replace("  - ../../components/gateway\n", "")  # only one kind of access
    file.write_text(text.replace(left_out, left_out.replace("# ", "")))
    return render(file.parent)


def find(documents: list[Document], kind: str, name: str = "") -> Document:
    """Return the document of a kind and name; a generated name may have a suffix."""
    found = [
        document
        for document in documents
        if document["kind"] == kind and name in ("", document["metadata"]["name"])
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def pod_of(document: Document) -> Document:
    """Return the pod spec of a StatefulSet or Job."""
    spec: Document = document["spec"]["template"]["spec"]
    return spec


def workloads(documents: list[Document]) -> list[Document]:
    return [document for document in documents if document["kind"] in ("StatefulSet", "Job")]
