"""CITATION.cff and LICENSE are complete and of this version."""

import hashlib
import tomllib

import yaml

from docs.pages import ROOT

# SHA-256 of the text as published by the Apache Software Foundation, without outer white space.
APACHE_2_0 = "283ea6cc2997a1a70da0049e09adf9317bb60ca1b51279b65196b83a69e1996b"


def test_the_citation_is_of_this_version_and_names_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert citation["type"] == "software"
    paper = citation["preferred-citation"]
    assert paper["title"].startswith("SSFL: Discovering Sparse Unified Subnetworks")
    for people in (citation["authors"], paper["authors"]):
        assert all(
            {"family-names", "given-names"} <= set(person) or "name" in person for person in people
        )


def test_the_license_is_the_complete_text() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8").strip()
    assert hashlib.sha256(text.encode()).hexdigest() == APACHE_2_0
