from io import StringIO

from rich.console import Console

from ssfl.tools.operate.screen import MAX_CLIENTS_SHOWN, megabytes, status_line, status_view
from ssfl.v1 import admin_pb2 as pb

LEDGER = [
    pb.LedgerEntry(phase="scores", direction="up", message_bytes=3_000_000),
    pb.LedgerEntry(phase="mask", direction="down", message_bytes=500_000),
    pb.LedgerEntry(phase="values", direction="up", message_bytes=2_000_000),
    pb.LedgerEntry(phase="values", direction="down", message_bytes=1_000_000),
]


def status(num_clients: int = 2) -> pb.GetStatusResponse:
    clients = [
        pb.ClientStatus(client_id=f"c{n}", num_samples=10, state="working" if n else "reported")
        for n in range(num_clients)
    ]
    return pb.GetStatusResponse(
        run_id="r1", phase="train", rounds_done=3, rounds_all=10, num_kept=5, num_masked=50,
        clients=clients, accuracy=0.915, seconds_left=42.0, ledger=LEDGER,
        waiting_for="train of c1",
    )  # fmt: skip


def shown(answer: pb.GetStatusResponse) -> str:
    console = Console(width=120, file=StringIO())
    with console.capture() as captured:
        console.print(status_view(answer))
    return captured.get()


def test_the_view_shows_round_reports_accuracy_bytes_and_time_left() -> None:
    text = shown(status())
    for part in ("run r1", "round 3/10", "reported 1/2", "91.5 %", "5.00 MB", "42 s left"):
        assert part in text
    assert "c1" in text
    assert "waiting for train of c1" in text


def test_a_run_that_will_pause_is_shown_as_pausing() -> None:
    answer = status()
    assert "pauses" not in shown(answer)
    answer.paused = True
    assert "train   pauses after this step" in shown(answer)
    answer.phase = "paused"
    assert "pauses" not in shown(answer)


def test_hundreds_of_clients_are_cut_short() -> None:
    text = shown(status(500))
    assert f"c{MAX_CLIENTS_SHOWN - 1} " in text
    assert f"c{MAX_CLIENTS_SHOWN} " not in text
    assert f"{500 - MAX_CLIENTS_SHOWN} more" in text


def test_a_status_without_accuracy_shows_none() -> None:
    answer = status()
    answer.ClearField("accuracy")
    assert "accuracy" not in status_line(answer, "demo")


def test_refusals_are_shown_by_count_and_cut_short() -> None:
    answer = status()
    assert "refused" not in shown(answer)
    answer.refusals.add(client_id="eve", reason="bad_values", count=3)
    answer.refusals.add(client_id="others", reason="unknown_client", count=70)
    assert "refused: others unknown_client 70, eve bad_values 3" in shown(answer)
    for number in range(20):
        answer.refusals.add(client_id=f"c{number}", reason="no_progress", count=1)
    assert "14 more (--json has all)" in shown(answer).replace("\n", " ")


def test_one_off_bytes_are_scores_and_mask() -> None:
    answer = status()
    assert megabytes(answer, one_off=True) == 3.5
    assert megabytes(answer, "up", one_off=False) == 2.0
    assert megabytes(answer, "down") == 1.5
