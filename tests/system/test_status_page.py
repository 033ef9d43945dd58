"""The status page in a real browser: 5 clients and a crash, 500 clients, phone, dark mode.

Screenshots are left in the test's folder.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import numpy as np
import pytest

from program.tls.pems import channel_credentials, flags, make
from ssfl.method.manifest import Init, Manifest, Role, TensorSpec
from ssfl.v1 import coordinator_pb2 as pb
from ssfl.v1 import transfer_pb2
from system.browsing import Browser
from system.light_run import LightRun
from system.programs import Programs, free_port, until
from system.raw_client import INITIAL, MASKED, UNMASKED, RawClient, Received, sha256

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = '<img src=x onerror="document.title=1">'  # a tensor may have any printable name
UNFOLD = "document.querySelectorAll('details').forEach((element) => { element.open = true; })"
# Responses to filter=client_4 wait for `release`, which returns the page's connection text.
# Changes of the note on clients are recorded.
HOLD_BACK = """(() => {
  const [ask, note] = [window.fetch, document.getElementById("clients-note")];
  Object.assign(window, { held: [], noted: [] });
  window.fetch = async (path, ...rest) => {
    const answer = await ask(path, ...rest);
    if (path.includes("filter=client_4&")) await new Promise((go) => window.held.push(go));
    return answer;
  };
  new MutationObserver(() => window.noted.push(note.textContent)).observe(note, {childList: true});
  window.release = () => {
    window.held.forEach((go) => go());
    return document.getElementById("connection").textContent;
  };
})()"""
LAYERS = 160  # as in a ResNet-50
WIDE: dict[str, Any] = {}
DARK = {"scheme": "dark"}
PHONE = {"width": 360, "height": 740}
WAYS = ("up", "down")
VALUES = MASKED + UNMASKED


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


def deep_manifest() -> Manifest:
    """Return a model of many layers, one with a hostile name."""
    names = [HOSTILE, *(f"layer{number // 9}.{number % 9}.weight" for number in range(1, LAYERS))]
    masked = [
        TensorSpec(name, (8 + number % 50,), Role.MASKED, Init("normal", 0.125))
        for number, name in enumerate(names)
    ]
    dense = TensorSpec("bias", (10,), Role.DENSE, Init("zeros"))
    return Manifest((*masked, dense), {"name": "deep"})


class ModelHoldingClient(RawClient):
    """Reports the digests of the payloads it holds, so that they are not sent again."""

    held_digest = held = b""

    def join(self, **changes: Any) -> pb.JoinResponse:
        encodings = [1, 2, 3, 4, transfer_pb2.ENCODING_REFERENCE]  # not used on loopback
        return super().join(encodings=encodings, **changes)

    def next_task(self, **fields: Any) -> Received:
        first = sha256(INITIAL.tobytes())
        got = super().next_task(base_digest=self.held_digest, initial_digest=first, **fields)
        work = getattr(got.task, got.kind)
        if got.kind not in ("train", "evaluate", "finish"):
            return got
        if work.HasField("base"):
            self.held = got.data[-work.base.num_bytes :]
        elif work.base_digest != self.held_digest:  # ones and zeros for any mask
            made = np.r_[np.ones(work.mask.num_kept), np.zeros(UNMASKED)]
            self.held = made.astype("<f4").tobytes()
        self.held_digest = work.base_digest
        assert sha256(self.held) == work.base_digest
        return got

    def trained(self, _got: Received) -> bytes:
        base = np.frombuffer(self.held, dtype="<f4")
        return bytes((base + self.delta).astype("<f4").tobytes())


@contextmanager
def joined(address: str) -> Iterator[list[RawClient]]:
    """Five clients that have joined and act only when the test makes them."""
    clients: list[RawClient] = [
        ModelHoldingClient(address, f"site_{number}") for number in range(5)
    ]
    try:
        for client in clients:
            client.join()
        yield clients
    finally:
        for client in clients:
            client.close()


def all_answer(clients: list[RawClient]) -> None:
    for client in clients:
        client.answer(client.next_task())


def is_back(client: RawClient) -> bool:
    try:
        client.join()
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return False
    return True


def examples() -> dict[str, Any]:
    """Return the documents in docs/status-page.md, by name."""
    page = (ROOT / "docs" / "status-page.md").read_text("utf-8")
    found = re.findall(r"^### /api/v1/(\w+)\n.*?^```json\n(.*?)^```$", page, re.M | re.S)
    return {name: json.loads(text) for name, text in found}


def same_shape(real: Any, shown: Any, where: str) -> None:
    """Fail unless both have the same fields; values that are empty or unknown may differ."""
    if isinstance(real, dict) and isinstance(shown, dict):
        if where.rpartition(".")[2] not in ("metrics", "refusals", "fields"):  # free keys
            assert list(real) == list(shown), where
            for name in real:
                same_shape(real[name], shown[name], f"{where}.{name}")
    elif isinstance(real, list) and isinstance(shown, list):
        if real and shown:
            same_shape(real[-1], shown[-1], where)
    elif real is not None and shown is not None:
        assert isinstance(real, str) == isinstance(shown, str), where


def asked(port: int, path: str) -> Any:
    with urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=20) as answer:
        return json.load(answer)


def look_at(browser: Browser, port: int, folder: Path, **looks: dict[str, Any]) -> None:
    """Open the page in several modes; fail on errors in the console, of axe, or in its width."""
    for look, how in looks.items():
        browser.do("open", url=f"http://127.0.0.1:{port}/", **how)
        browser.do("text", selector="#clients-note", fits="joined")
        browser.do("text", selector="#timeline-note", fits="^round [0-9]+ · ")
        browser.do("text", selector="#events li time", fits=":")
        browser.do("shot", file=str(folder / f"{look}.png"))
        browser.do("evaluate", code=UNFOLD)
        assert browser.do("axe") == [], look
        width = browser.do("evaluate", code="document.documentElement.scrollWidth - innerWidth")
        assert width <= 0, f"{look} has to be scrolled sideways"
        assert browser.do("messages") == [], look


def test_a_run_is_watched_through_a_crash_to_its_end(
    programs: Programs, browser: Browser, tmp_path: Path
) -> None:
    port, shown = free_port(), free_port()
    flags = ("--clients=5", "--rounds=9", "--evaluate-every=1", f"--status-port={shown}")
    coordinator = programs.coordinator(*flags, port=port)
    line = f"ssfl-coordinator status on 127.0.0.1:{shown}\n"
    until(lambda: line in coordinator.out, "the coordinator says where the page is")
    browser.do("open", url=f"http://127.0.0.1:{shown}/")
    browser.do("text", selector="#phase", fits="^Gathering clients$")
    browser.do("text", selector="#waiting", fits="0 of 5 have joined")
    with joined(coordinator.address) as clients:
        all_answer(clients[:1])  # describes the model
        for _ in range(7):
            all_answer(clients)  # the scores; three rounds, each with an evaluation
        all_answer(clients[:2])
        # Without a reload.
        browser.do("text", selector="#facts", fits="Round3 of 9")
        browser.do("text", selector="#waiting", fits="train of site_2, site_3, site_4$")
        browser.do("text", selector="#clients", fits="site_1reported.*site_2working")
        for name, document in examples().items():
            same_shape(asked(shown, name), document, name)
        check_bytes(asked(shown, "status"), updates=3 * 5, models=3 * 5)  # not the first base
        assert len(examples()) == 6
        look_at(browser, shown, tmp_path, phone=PHONE, dark=DARK, wide=WIDE)
        coordinator.kill()
        browser.do("text", selector="#away", fits="^Coordinator not reached since [0-9:]+")
        browser.do("text", selector="#facts", fits="Round3 of 9")  # known values stay
        browser.do("shot", file=str(tmp_path / "away.png"))
        assert browser.do("axe") == []
        again = programs.coordinator(*flags, port=port)
        for client in clients:
            until(lambda client=client: is_back(client), "the site is back")  # type: ignore[misc]
        all_answer(clients[2:])
        browser.do("text", selector="#connection", fits="^live")
        browser.do("text", selector="#facts", fits="Round4 of 9")
        assert browser.do("evaluate", code="document.getElementById('away').hidden")
        rounds = [point["round"] for point in asked(shown, "rounds")["curve"]]
        assert rounds == [0, 1, 2, 3]  # including those before the crash
        read = browser.do("attribute", selector="#accuracy .chart-plot", name="aria-valuetext")
        assert read == "rounds done 3: all clients 50 %"
        # The ledger had not been written for two of the updates.
        document = asked(shown, "status")
        assert document["bytes"]["up"]["dense"] == 20 * 4 * VALUES
        assert document["bytes"]["down"]["dense"] == 15 * 4 * VALUES
        programs.run("ssfl", "stop", f"--admin=localhost:{again.admin_port}")
        browser.do("text", selector="#phase", fits="^Stopped by an operator$")
        again.says("report written")
        (file,) = programs.folder.glob("runs/*/coordinator/report.json")
        report = json.loads(file.read_bytes())
        assert {way: report["bytes"][way] for way in WAYS} == {
            way: document["bytes"][way] for way in WAYS
        }
    # The browser itself reports failed fetches; there are no other messages.
    assert all("ERR_CONNECTION_REFUSED" in line for line in browser.do("messages"))


def check_bytes(status: Any, updates: int, models: int) -> None:
    """Fail unless the bytes are those of these transfers, at four per kept value."""
    mask = status["mask"]
    kept = mask["kept"] + mask["values"] - mask["masked"]
    for way, transfers in zip(WAYS, (updates, models), strict=True):
        assert status["bytes"][way] == {
            "values": 4 * kept * transfers,
            "dense": 4 * mask["values"] * transfers,
            "ratio": kept / mask["values"],
        }


def test_a_dense_run_without_accuracy_shows_no_mask_and_its_first_metric(
    programs: Programs, browser: Browser, tmp_path: Path
) -> None:
    shown = free_port()
    flags = ("--clients=5", "--rounds=4", "--evaluate-every=1", "--strategy=fedavg")
    coordinator = programs.coordinator(*flags, f"--status-port={shown}")
    with joined(coordinator.address) as clients:
        for client in clients:
            client.tested = {"total": 2, "loss_sum": 1.0, "metric_sums": {"mae": 0.5}}
        all_answer(clients[:1])
        for _ in range(4):
            all_answer(clients)
        browser.do("open", url=f"http://127.0.0.1:{shown}/", width=390, height=844)
        browser.do("text", selector="#facts", fits="Round2 of 4.*mae0.25Loss0.5000")
        facts = browser.do("text", selector="#facts", fits="Masknonestrategy fedavg")
        assert "Accuracy" not in facts and facts.count("100 %of dense values") == 2
        browser.do("text", selector="#accuracy-title", fits="^mae$")
        read = browser.do("attribute", selector="#accuracy .chart-plot", name="aria-valuetext")
        assert read == "rounds done 2: all clients 0.25"
        mask_card = "document.getElementById('layers').closest('.card')"
        assert browser.do("evaluate", code=f"{mask_card}.hidden")  # fedavg has no mask
        assert "initial, scores, masks" not in browser.do("text", selector="#bytes")
        browser.do("shot", file=str(tmp_path / "dense.png"))
        assert browser.do("evaluate", code="document.documentElement.scrollWidth - innerWidth") <= 0
        assert browser.do("messages") == []


def test_the_page_shows_neither_the_join_token_nor_paths(
    programs: Programs, tmp_path: Path
) -> None:
    certs, token = make(tmp_path / "certificates"), "a-token-of-twenty-six-chars"
    (tmp_path / "token file").write_text(token)
    shown, folders = free_port(), {"state-dir": tmp_path / "the state", "out-dir": tmp_path / "out"}
    coordinator = programs.coordinator(
        *flags(certs, "coordinator"),
        *(f"--{name}={folder}" for name, folder in folders.items()),
        f"--join-token-file={tmp_path / 'token file'}",
        f"--status-port={shown}",
    )
    coordinator.credentials = channel_credentials(certs, certs, "admin")
    with pytest.raises(grpc.RpcError):  # without the token
        RawClient(coordinator.address, "admin", credentials=coordinator.credentials).join()
    (certs / "coordinator-key.pem").write_text("no key")
    coordinator.status()
    admin = (f"--admin=localhost:{coordinator.admin_port}", *flags(certs, "admin"))
    assert programs.run("ssfl", "stop", *admin).ends() == 0
    coordinator.says("report written")
    answers = {name: json.dumps(asked(shown, name)) for name in examples()}
    for name, answer in answers.items():
        for secret in (tmp_path, programs.folder, token):
            assert str(secret) not in answer, name
    # The log shows these events; the page shows them without secrets and paths.
    for event in ("configuration", "new run", "call refused: ", "the new TLS files cannot be used"):
        assert event in answers["events"]
    assert coordinator.err.count(str(tmp_path)) >= 4


def test_500_clients_and_160_layers_stay_readable(
    programs: Programs, browser: Browser, tmp_path: Path
) -> None:
    shown = free_port()
    flags = ("--clients=500", "--rounds=1", "--evaluate-every=0", f"--status-port={shown}")
    coordinator = programs.coordinator(*flags)
    with LightRun(coordinator.port, 500, chunk_bytes=1 << 16, manifest=deep_manifest()) as light:
        light.finish()
    until(lambda: asked(shown, "status")["phase"] == "finished", "the run is over")
    look_at(browser, shown, tmp_path, phone_many=PHONE, wide_many=WIDE)
    browser.do("text", selector="#page-note", fits="^1 to 50 of 500$")
    assert browser.do("count", selector="#clients tbody tr") == 50
    browser.do("click", selector="#next")
    browser.do("text", selector="#page-note", fits="^51 to 100 of 500$")
    browser.do("fill", selector="#filter", value="client_49")
    browser.do("text", selector="#clients-note", fits="^10 of 500$")
    # A late response to an earlier query is not shown.
    browser.do("evaluate", code=HOLD_BACK)
    browser.do("fill", selector="#filter", value="client_4")
    until(lambda: browser.do("evaluate", code="window.held.length"), "the question is on its way")
    browser.do("fill", selector="#filter", value="client_49")
    browser.do("text", selector="#clients-note", fits="^10 of 500$")
    now = browser.do("evaluate", code="window.release()")
    until(lambda: browser.do("text", selector="#connection") != now, "the page has asked again")
    assert browser.do("evaluate", code="window.noted").count("100 of 500") == 0
    browser.do("click", selector="#clients th:nth-child(1) button")
    browser.do("text", selector="#clients tbody tr:first-child", fits="client_499")
    assert browser.do("attribute", selector="#clients th", name="aria-sort") == "descending"
    browser.do("text", selector="#timeline-note", fits="the slowest 40 of 500 clients")
    browser.do("select", selector="#round", value="0")
    browser.do("text", selector="#timeline-note", fits="^round 0")
    browser.do("focus", selector="#layers .chart-plot")
    browser.do("press", key="Home")
    assert HOSTILE in browser.do("text", selector="#layers .chart-tip")
    browser.do("press", key="ArrowRight")
    text = browser.do("attribute", selector="#layers .chart-plot", name="aria-valuetext")
    assert text.startswith("layer layer0.1.weight: ")
    assert browser.do("evaluate", code="document.title").startswith("Finished")
    assert browser.do("count", selector="img") == 0
    assert browser.do("messages") == []
