from io import StringIO

from rich.console import Console

from ssfl.tools.operate.clients_view import MAX_SHOWN, clients_document, clients_view
from ssfl.v1 import admin_pb2 as pb


def status(*clients: pb.ClientStatus, **fields: object) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(run_id="r1", phase="train", clients=clients, **fields)  # type: ignore[arg-type]


def client(name: str, state: str, **fields: float) -> pb.ClientStatus:
    return pb.ClientStatus(client_id=name, state=state, num_samples=1234, **fields)  # type: ignore[arg-type]


MIXED = (
    client("done", "reported"),
    client("gone", "left", last_seen_s=900),
    client("idle", "waiting"),
    client("far", "working", steps_done=9, steps_all=10),
    client("near", "working", steps_done=1, steps_all=10),
    client("silent", "lost", last_seen_s=45),
    client("silent for long", "lost", last_seen_s=4000),
    client("eve", "reported"),
    client("needed", "left", last_seen_s=5),
)


def shown(answer: pb.GetStatusResponse, *, show_all: bool = False, width: int = 120) -> str:
    console = Console(width=width, file=StringIO(), markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(clients_view(answer, show_all=show_all, width=width))
    return captured.get()


def mixed() -> pb.GetStatusResponse:
    answer = status(*MIXED, waiting_for="train of far, near")
    answer.stall.missing.append(MIXED[-1])
    answer.refusals.add(client_id="eve", reason="bad_values", count=3)
    answer.refusals.add(client_id="mallory", reason="unauthenticated", count=70)
    return answer


def test_clients_in_trouble_come_first() -> None:
    names = [client["client_id"] for client in clients_document(mixed())["clients"]]
    assert names == [
        "needed", "silent for long", "silent", "eve", "near", "far", "idle", "done", "gone",
    ]  # fmt: skip


def test_the_table_shows_samples_last_seen_progress_and_refusals() -> None:
    text = shown(mixed())
    assert "9 clients: 2 lost, 2 working, 1 waiting, 2 reported, 2 left" in text
    (near,) = [line for line in text.splitlines() if line.startswith("near ")]
    assert near.split() == ["near", "working", "1,234", "0", "s", "ago", "1", "of", "10", "(10%)"]
    (eve,) = [line for line in text.splitlines() if line.startswith("eve ")]
    assert eve.endswith("bad_values 3")
    (needed,) = [line for line in text.splitlines() if line.startswith("needed ")]
    assert "left (waited for)" in needed
    assert "refused, not joined: mallory unauthenticated 70" in text
    assert "waiting for train of far, near" in text


def test_hundreds_of_clients_are_cut_unless_all_are_requested() -> None:
    answer = status(*(client(f"c{number:03}", "reported") for number in range(499)))
    answer.clients.append(client("zoe", "lost", last_seen_s=50))
    text = shown(answer)
    assert len(text.splitlines()) == MAX_SHOWN + 3  # the head line, the columns, the hidden rows
    assert text.splitlines()[2].startswith("zoe")
    assert f"… {500 - MAX_SHOWN} more: {500 - MAX_SHOWN} reported (--all shows them)" in text
    assert "c498" in shown(answer, show_all=True)
    assert len(clients_document(answer)["clients"]) == 500


def test_a_long_name_is_folded_not_cut_and_markup_is_text() -> None:
    name = "[red]" + "x" * 90
    text = shown(status(client(name, "lost")), width=80)
    assert "[red]xxx" in text
    assert text.count("x") == 90


def test_a_narrow_terminal_keeps_names_and_hides_other_columns() -> None:
    for width in (60, 50, 40):
        text = shown(mixed(), width=width)
        assert max(map(len, text.splitlines())) <= width
        names = {line.split("  ")[0] for line in text.splitlines()}
        assert {"needed", "silent", "eve", "near"} <= names, text
        head = next(line for line in text.splitlines() if line.startswith("client "))
        assert "state" in head and "samples" not in head and "work" not in head


def test_a_column_without_an_entry_is_left_out() -> None:
    text = shown(status(client("ann", "waiting")))
    head = next(line for line in text.splitlines() if line.startswith("client "))
    assert head.split() == ["client", "state", "samples", "last", "seen"]


def test_a_run_without_clients_shows_zero() -> None:
    answer = status(waiting_for="clients: 0 of 2 have joined")
    assert "0 clients\n" in shown(answer)
    assert clients_document(answer)["clients"] == []
    assert clients_document(answer)["counts"]["lost"] == 0
