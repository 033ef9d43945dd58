"""The status page's answers: documents, bounds, headers, and secrets it never includes."""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.core_harness import World
from server.run_loop_harness import C1, C2, SETTINGS, answer_all, begin, conduct
from ssfl.method.manifest import Manifest
from ssfl.method.settings import RunSettings
from ssfl.program.monitor.log_buffer import LogBuffer
from ssfl.program.monitor.web import Request, Response, guarded
from ssfl.server.history.live_entries import Following
from ssfl.server.loop.coordinator import Coordinator
from ssfl.server.run import events
from ssfl.server.storage.journal import Journal
from ssfl.server.watch import status_documents
from ssfl.server.watch.status_documents import Documents, thinned
from ssfl.server.watch.status_page import FILES, page_file, page_routes
from ssfl.strategies.contract import ClientId

HERE = {"host": "localhost:8080"}
API = tuple(
    f"/api/v1/{name}"
    for name in ("status", "clients", "rounds", "timeline", "layers", "events", "look")
)
Ask = Callable[..., Any]


def asking(coordinator: Coordinator) -> Ask:
    """Return a function that requests a document and parses it."""
    found = page_routes(Documents(coordinator, LogBuffer(), Path("runs")))

    def ask(name: str, **query: str) -> Any:
        answer = found[f"/api/v1/{name}"](Request(name, query, HERE))
        return json.loads(answer.body) if answer.status == 200 else answer

    return ask


def test_the_status_shows_what_the_run_waits_for(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        ask = asking(coordinator)
        early = ask("status")
        assert (early["phase"], early["waiting_for"]) == (
            "gathering",
            "clients: 0 of 2 have joined",
        )
        assert early["rounds"] == {"done": 0, "all": 2} and early["step"] is None
        assert (early["strategy"], early["strategy_options"]) == ("ssfl", {})
        assert (early["has_mask"], early["moves_mask"]) == (True, False)
        assert early["round_mask"] is None and early["personal"] is None
        assert early["accuracy"] is None and early["bytes"]["up"]["ratio"] is None
        await begin(coordinator, manifest)
        document = await asyncio.to_thread(ask, "status")
        assert document["phase"] == "score" and document["waiting_for"] == "score of c1, c2"
        assert (document["step"]["asked"], document["step"]["reported"]) == (2, 0)
        assert document["clients"]["working"] == 2
        await coordinator.run.post(events.Lost(C2))
        coordinator.refusals.count("c1", "bad_values", "no")
        document = ask("status")
        assert document["phase"] == "waiting" and document["stall"]["missing"] == ["c2"]
        assert document["refusals"] == {"bad_values": 1}
        assert document["disk"]["free_bytes"] > 0 and document["memory"]["peak_bytes"] > 0

    conduct(tmp_path, script)


def test_500_clients_are_paged_sorted_and_filtered(tmp_path: Path, manifest: Manifest) -> None:
    settings = SETTINGS.__class__(clients=501, rounds=2, sparsity="0.5", seed=5)

    async def script(coordinator: Coordinator) -> None:
        presence, digest = coordinator.presence, manifest.digest.hex()
        for number in range(500):
            name = ClientId(f"site_{number:03}")
            await coordinator.run.post(events.Joined(name, "t", 1000 - number, digest, "cpu"))
            if number % 2:
                presence.heard(name, -float(number))
        await coordinator.run.post(events.Lost(ClientId("site_499")))
        ask = asking(coordinator)
        document = ask("clients")
        assert (document["all"], document["matching"], len(document["clients"])) == (500, 500, 50)
        assert document["states"]["lost"] == 1
        assert [row["name"] for row in document["clients"][:2]] == ["site_000", "site_001"]
        last = ask("clients", offset="490", limit="200")["clients"]
        assert [row["name"] for row in last] == [f"site_{n}" for n in range(490, 500)]
        fewest = ask("clients", sort="samples", limit="1")["clients"][0]
        assert (fewest["name"], fewest["samples"]) == ("site_499", 501)
        assert ask("clients", filter="E_49")["matching"] == 10
        assert [row["name"] for row in ask("clients", state="lost")["clients"]] == ["site_499"]
        silent = ask("clients", sort="last_seen_s", order="descending", limit="200")["clients"]
        assert silent[0]["last_seen_s"] == 499.0
        # Who was not heard of by this process comes last, whichever way it is sorted.
        for order in ("ascending", "descending"):
            end = ask("clients", sort="last_seen_s", order=order, offset="499")["clients"][0]
            assert end["last_seen_s"] is None
        assert len(json.dumps(ask("status"))) < 5000  # nothing in it grows with the clients

    conduct(tmp_path, script, settings)


@pytest.mark.parametrize(
    ("name", "query", "sentence"),
    [
        ("clients", {"limit": "201"}, "limit must be a whole number from 1 to 200"),
        ("clients", {"offset": "-1"}, "offset must be a whole number from 0 to"),
        ("clients", {"sort": "token"}, "sort must be one of: name, state, samples"),
        ("clients", {"order": "up"}, "order must be one of: ascending, descending"),
        ("clients", {"state": "asleep"}, "state must be one of: working, waiting"),
        ("rounds", {"points": "1001"}, "points must be a whole number from 2 to 1000"),
        ("events", {"after": "9" * 5000}, "after must be a whole number"),
        ("events", {"after": "٣"}, "after must be a whole number"),
    ],
)
def test_an_invalid_query_is_refused_with_the_reason(
    tmp_path: Path, name: str, query: dict[str, str], sentence: str
) -> None:
    async def script(coordinator: Coordinator) -> None:
        answer: Response = asking(coordinator)(name, **query)
        assert answer.status == 400
        assert answer.body.decode().startswith(sentence)

    conduct(tmp_path, script)


def test_every_answer_has_security_headers(tmp_path: Path) -> None:
    async def script(coordinator: Coordinator) -> None:
        routes = page_routes(Documents(coordinator, LogBuffer(), Path("runs")))
        assert set(routes) == {*API, *FILES}
        for path, route in routes.items():
            answer = route(Request(path, {}, HERE))
            assert answer.status == 200, path
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy and "http" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert not any(name.startswith("Access-Control") for name in answer.headers)
            is_api = path.startswith("/api/")
            assert (answer.content_type == "application/json; charset=utf-8") is is_api

    conduct(tmp_path, script)


@pytest.mark.parametrize(
    ("served_on", "host", "status"),
    [
        ("127.0.0.1", "localhost:8080", 200),
        ("127.0.0.1", "127.0.0.1", 200),
        ("::1", "[::1]:8080", 200),
        ("127.0.0.1", "evil.example:8080", 403),
        ("127.0.0.1", "localhost.evil.example", 403),
        ("127.0.0.1", "", 403),
        ("0.0.0.0", "coordinator.hospital.example:8080", 200),  # whose name we cannot know
    ],
)
def test_a_request_with_a_foreign_host_name_is_refused(
    tmp_path: Path, served_on: str, host: str, status: int
) -> None:
    async def script(coordinator: Coordinator) -> None:
        routes = page_routes(Documents(coordinator, LogBuffer(), Path("runs")))
        for path, route in routes.items():
            answer = guarded(route, served_on)(Request(path, {}, {"host": host}))
            assert answer.status == status, path
            assert status == 200 or b"run_id" not in answer.body

    conduct(tmp_path, script)


def test_an_unchanged_document_is_not_sent_again(tmp_path: Path, manifest: Manifest) -> None:
    async def script(coordinator: Coordinator) -> None:
        routes = page_routes(Documents(coordinator, LogBuffer(), Path("runs")))
        for path in ("/", "/app.js", "/api/v1/rounds", "/api/v1/timeline", "/api/v1/layers"):
            first = routes[path](Request(path, {}, HERE))
            known = {**HERE, "if-none-match": first.headers["ETag"]}
            again = routes[path](Request(path, {}, known))
            assert (again.status, again.body) == (304, b"")
        await begin(coordinator, manifest)
        assert routes["/api/v1/layers"](Request("", {}, known)).status == 304
        await answer_all(coordinator)  # there is a mask
        assert routes["/api/v1/layers"](Request("", {}, known)).status == 200
        assert routes["/app.js"](Request("", {}, known)).status == 200  # another file's

    conduct(tmp_path, script)


def test_no_answer_holds_what_clients_prove_their_names_with(
    tmp_path: Path, manifest: Manifest
) -> None:
    secret, hostile = "5ec2e75ec2e7", ClientId("<script>alert(1)</script>")

    async def script(coordinator: Coordinator) -> None:
        digest = manifest.digest.hex()
        for name in (C1, hostile):
            await coordinator.run.post(events.Joined(name, secret, 10, digest, f"cpu {secret}"))
        assert secret in coordinator.run.state.members[C1].token  # the run has it
        assert secret.encode() in coordinator.directory.journal.read_bytes()
        recent = LogBuffer()
        recent.begin()
        where = {"state_dir": str(tmp_path), "session_token": secret, "folder": tmp_path}
        logging.getLogger("ssfl.run").warning("cannot read %s", tmp_path / "x", extra=where)
        recent.end()
        routes = page_routes(Documents(coordinator, recent, Path("runs")))
        for path in API:
            answer = routes[path](Request(path, {}, HERE))
            assert secret.encode() not in answer.body
            assert b"token" not in answer.body and str(tmp_path).encode() not in answer.body
        (document,) = json.loads(routes["/api/v1/events"](Request("", {}, HERE)).body)["events"]
        assert (document["event"], document["fields"]) == ("cannot read x", {})
        # A name is data: the answer cannot be taken for a page, and the page shows it as text.
        document = json.loads(routes["/api/v1/clients"](Request("", {}, HERE)).body)
        assert hostile in [row["name"] for row in document["clients"]]

    conduct(tmp_path, script)


def test_a_lone_surrogate_does_not_break_the_page(tmp_path: Path) -> None:
    async def script(coordinator: Coordinator) -> None:
        recent = LogBuffer()
        recent.begin()
        logging.getLogger("ssfl.run").warning("a model called \ud800 was refused")
        recent.end()
        routes = page_routes(Documents(coordinator, recent, Path("runs")))
        look = json.loads(routes["/api/v1/look"](Request("", {}, HERE)).body)
        assert list(look) == ["status", "clients", "events"]
        (document,) = look["events"]["events"]
        assert document["event"] == r"a model called \ud800 was refused"
        later = json.loads(routes["/api/v1/look"](Request("", {"after": "1"}, HERE)).body)
        assert later["events"] == {"events": [], "last": 1}
        again = json.loads(routes["/api/v1/events"](Request("", {"after": "9"}, HERE)).body)
        assert again == {"events": [], "last": 1}, "its numbers have begun again"

    conduct(tmp_path, script)


def test_a_long_journal_is_read_in_several_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RunSettings(clients=3, rounds=4, evaluate_every=1)
    world = World(settings, [ClientId(f"c{n}") for n in range(3)])
    world.finish_calmly()
    (tmp_path / "long").mkdir()
    journal = Journal(tmp_path / "long" / "journal")
    journal.append(world.journal)
    journal.close()

    async def script(coordinator: Coordinator) -> None:
        documents = Documents(coordinator, LogBuffer(), Path("runs"))
        documents._following = Following(
            journal, coordinator.live_entries, lambda: journal.num_bytes
        )
        coordinator.run.published_journal_bytes = journal.num_bytes
        monkeypatch.setattr(status_documents, "READ_S", -1.0)  # one entry at a look
        read = [documents.status()["history"] for _ in range(12)]
        assert [one["read"] for one in read] == sorted(one["read"] for one in read)
        assert 0 < read[0]["read"] < 1 and read[-1]["read"] == 1.0
        assert read[0]["mark"] != read[1]["mark"] and read[-2] == read[-1]
        document = documents.rounds(400)
        assert [point["round"] for point in document["curve"]] == [0, 1, 2, 3]
        assert [point["rounds_done"] for point in document["evaluations"]] == [1, 2, 3, 4]
        assert [one["round"] for one in documents.timeline()["rounds"]] == [0, 1, 2, 3]
        assert len(documents.layers()["masks"]) == 1

    conduct(tmp_path, script)


def test_a_downsampled_curve_keeps_its_ends_and_its_order() -> None:
    points = [{"round": number} for number in range(1999)]
    found = [point["round"] for point in thinned(points, 400)]
    assert len(found) == 400 and (found[0], found[-1]) == (0, 1998)
    assert found == sorted(set(found))
    assert thinned(points[:3], 400) == points[:3]


def test_the_page_loads_nothing_but_its_own_files_and_has_no_inline_code() -> None:
    page = page_file("index.html").decode()
    for link in re.findall(r'(?:src|href)="([^"#]+)"', page):
        assert f"/{link}" in {*FILES, *API}, link
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"\son\w+=|\sstyle=|<style", page) == []
    for name, _ in FILES.values():
        text = page_file(name).decode().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"(?:https?:)?//[\w.]+\.\w", text) == [], name
    for name in ("app.js", "charts.js"):
        code = page_file(name).decode()
        assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", code) == []
