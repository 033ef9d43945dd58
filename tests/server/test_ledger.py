from ssfl.server.ledger import ONE_OFF, PHASES, Direction, Ledger


def counted() -> Ledger:
    ledger = Ledger()
    ledger.count("values", Direction.DOWN, 110, 100)
    ledger.count("values", Direction.DOWN, 60, 50)
    ledger.count("values", Direction.UP, 30, 25)
    ledger.count("control", Direction.UP, 7)
    ledger.count("mask", Direction.DOWN, 20, 12)
    return ledger


ROWS = [
    {
        "phase": "mask",
        "direction": "down",
        "encoding": "",
        "payload_bytes": 12,
        "message_bytes": 20,
    },
    {
        "phase": "values",
        "direction": "up",
        "encoding": "",
        "payload_bytes": 25,
        "message_bytes": 30,
    },
    {
        "phase": "values",
        "direction": "down",
        "encoding": "",
        "payload_bytes": 150,
        "message_bytes": 170,
    },
    {"phase": "control", "direction": "up", "encoding": "", "payload_bytes": 0, "message_bytes": 7},
]


def test_bytes_add_up_by_phase_and_direction() -> None:
    assert counted().rows() == ROWS


def test_what_saw_no_byte_has_no_row() -> None:
    assert Ledger().rows() == []


def test_totals_go_on_after_a_restart() -> None:
    resumed = Ledger()
    resumed.resume(ROWS)
    assert resumed.rows() == ROWS
    resumed.count("values", Direction.UP, 30, 25)
    assert resumed.rows()[1]["message_bytes"] == 60


def test_one_off_phases_are_phases() -> None:
    assert set(ONE_OFF) < set(PHASES)
