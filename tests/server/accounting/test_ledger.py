from typing import Any

from ssfl.server.accounting.ledger import (
    CONNECTION,
    ONE_OFF,
    PHASES,
    Direction,
    Ledger,
    encoding_word,
)
from ssfl.strategies.contract import ClientId
from ssfl.v1 import transfer_pb2

ANN, BOB = ClientId("ann"), ClientId("bob")
UP, DOWN = Direction.UP, Direction.DOWN


def counted() -> Ledger:
    ledger = Ledger()
    ledger.count("values", DOWN, 110, 100, client=ANN, encoding="values_only")
    ledger.count("values", DOWN, 60, 50, client=BOB, encoding="values_only")
    ledger.count("values", DOWN, 9, client=BOB)
    ledger.count("values", UP, 30, 25, client=ANN, encoding="values_only")
    ledger.count("control", UP, 7)
    ledger.count("mask", DOWN, 20, 12, client=ANN, encoding="bitmask_zstd")
    return ledger


def row(
    phase: str, direction: str, encoding: str, payload: int, message: int, socket: int | None = None
) -> dict[str, Any]:
    return {
        "phase": phase, "direction": direction, "encoding": encoding,
        "payload_bytes": payload, "message_bytes": message, "socket_bytes": socket,
    }  # fmt: skip


ROWS = [
    row("mask", "down", "bitmask_zstd", 12, 20),
    row("values", "up", "values_only", 25, 30),
    row("values", "down", "", 0, 9),
    row("values", "down", "values_only", 150, 170),
    row("control", "up", "", 0, 7),
]


def test_bytes_add_up_by_phase_direction_and_encoding() -> None:
    assert counted().rows() == ROWS


def test_a_ledger_without_bytes_has_no_rows() -> None:
    assert Ledger().rows() == []
    assert Ledger().take() == []
    assert not Ledger().untaken


def test_totals_continue_after_a_restart() -> None:
    rows = [*ROWS, row(CONNECTION, "up", "", 0, 0, 40)]
    resumed = Ledger()
    resumed.resume(rows)
    assert resumed.rows() == rows
    resumed.count("values", UP, 30, 25, encoding="values_only")
    resumed.carry(ANN, UP, 2)
    assert resumed.rows()[1]["message_bytes"] == 60
    assert resumed.rows()[-1]["socket_bytes"] == 42
    assert len(resumed.take()) == 2, "what an earlier process counted is in its rows"


def test_the_detail_is_by_client_and_is_returned_once() -> None:
    ledger = counted()
    assert ledger.untaken
    assert ledger.take() == [
        {"client": "", **row("control", "up", "", 0, 7)},
        {"client": "ann", **row("mask", "down", "bitmask_zstd", 12, 20)},
        {"client": "ann", **row("values", "up", "values_only", 25, 30)},
        {"client": "ann", **row("values", "down", "values_only", 100, 110)},
        {"client": "bob", **row("values", "down", "", 0, 9)},
        {"client": "bob", **row("values", "down", "values_only", 50, 60)},
    ]
    assert not ledger.untaken
    assert ledger.take() == []
    assert ledger.rows() == ROWS
    ledger.count("control", UP, 3, client=BOB)
    assert ledger.take() == [{"client": "bob", **row("control", "up", "", 0, 3)}]


def test_socket_bytes_are_separate_from_message_bytes() -> None:
    ledger = counted()
    ledger.carry(ANN, UP, 50)
    ledger.carry(BOB, UP, 5)
    ledger.carry(BOB, DOWN, 0)
    assert ledger.rows() == [*ROWS, row(CONNECTION, "up", "", 0, 0, 55)]
    carried = [one for one in ledger.take() if one["phase"] == CONNECTION]
    assert [(one["client"], one["socket_bytes"]) for one in carried] == [("ann", 50), ("bob", 5)]


def test_one_off_phases_are_phases() -> None:
    assert set(ONE_OFF) < set(PHASES)


def test_every_encoding_has_a_plain_name() -> None:
    assert encoding_word(transfer_pb2.ENCODING_UNSPECIFIED) == ""
    assert encoding_word(transfer_pb2.ENCODING_VALUES_ONLY) == "values_only"
    assert encoding_word(transfer_pb2.ENCODING_BITMASK_ZSTD) == "bitmask_zstd"
    encodings: list[Any] = transfer_pb2.Encoding.values()
    words = [encoding_word(encoding) for encoding in encodings]
    assert len(set(words)) == len(words)


def test_a_ledger_with_masks_of_rounds_continues_one_that_was_written_without() -> None:
    resumed = Ledger()
    resumed.resume(ROWS)  # a version that booked every mask as `mask`
    resumed.count("round_masks", UP, 14, 12, client=ANN, encoding="bitmask")
    expected = row("round_masks", "up", "bitmask", 12, 14)
    assert resumed.rows() == [*ROWS[:-1], expected, ROWS[-1]]
    assert "round_masks" not in ONE_OFF
