"""Two runs beside each other: settings, accuracy at equal rounds and bytes, bytes, times, masks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ssfl.server.accounting.ledger import CONNECTION, PHASES
from ssfl.server.history.run_history import Entry
from ssfl.server.report.contents import report_document
from ssfl.server.report.mask_image import tensor_bits
from ssfl.server.report.run_view import sent_bytes
from ssfl.server.report.source import Source

FORMAT = 1
LINES = 12  # of what is compared at equal rounds, or bytes
_KEPT = (
    "run_id", "software", "verdict", "rounds_done", "quality", "curve", "evaluations", "times",
    "bytes", "mask", "model_digest", "strategy", "encodings",
)  # fmt: skip

Point = tuple[float, float]  # where a model was tested, and what came out


def comparison_document(
    first: Source, second: Source, names: tuple[str, str] = ("A", "B")
) -> dict[str, Any]:
    """Return everything that the report of two runs shows."""
    reports = report_document(first), report_document(second)
    measure = "accuracy" if all(_tests(one, "accuracy") for one in reports) else "loss"
    by_round = [_tests(one, measure) for one in reports]
    by_bytes = [_tests(one, measure, over="bytes") for one in reports]
    return {
        "format": FORMAT,
        "kind": "comparison",
        "title": f"ssfl runs {first.summary['run_id']} and {second.summary['run_id']}",
        "names": list(names),
        "runs": [{key: one[key] for key in _KEPT} for one in reports],
        "settings": [
            *_differing(first.summary["settings"], second.summary["settings"]),
            *_coded_otherwise(*(one["encodings"] for one in reports)),
        ],
        "measure": measure,
        "at_equal_rounds": _at_equal(by_round, whole=True),
        "at_equal_bytes": _at_equal(by_bytes, whole=False),
        "ledger": _ledger(*(one["bytes"]["rows"] for one in reports)),
        "overlap": _overlap(first, second),
    }


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Entry]:
    return [
        {"name": name, "values": [one.get(name), other.get(name)]}
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]


def _coded_otherwise(one: Mapping[str, list[str]], other: Mapping[str, list[str]]) -> list[Entry]:
    """Return how values travelled, where that differs: by --reference-coding, or by the links."""
    return [
        {
            "name": f"encoding of values {way}",
            "values": [", ".join(one[way]), ", ".join(other[way])],
        }
        for way in one
        if one[way] != other[way]
    ]


def _tests(report: Mapping[str, Any], measure: str, over: str = "rounds") -> list[Point]:
    """Return where the run's models were tested: after rounds, or after bytes sent.

    Of the same model, the test by all clients counts, not that by the round's.
    """
    curve, evaluations = report["curve"], report["evaluations"]
    found = {point["round"]: point[measure] for point in curve}
    found |= {point["rounds_done"]: point[measure] for point in evaluations}
    places = {rounds: rounds for rounds in found}
    if over == "bytes":  # an evaluation by all has its own bytes behind it, too: the model's count
        places = {point["rounds_done"]: point["sent_bytes"] for point in evaluations}
        places |= {point["round"]: point["sent_bytes"] for point in curve}
    tests = {places[rounds]: value for rounds, value in found.items()}
    return sorted((at, value) for at, value in tests.items() if value is not None)


def _at_equal(runs: Sequence[Sequence[Point]], *, whole: bool) -> list[Entry]:
    """Return what each run had come to, at places up to the end of the shorter one."""
    if not all(runs):
        return []
    low, high = max(points[0][0] for points in runs), min(points[-1][0] for points in runs)
    if high < low:
        return []
    places: Iterable[float] = np.linspace(low, high, LINES).tolist()
    if whole:
        places = dict.fromkeys(round(place) for place in places)
    lines = []
    for place in places:
        values = [_newest(points, place) for points in runs]
        lines.append({"at": place, "values": values, "difference": values[1] - values[0]})
    return lines


def _newest(points: Sequence[Point], place: float) -> float:
    return next(value for at, value in reversed(points) if at <= place)


def _ledger(*ledgers: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Return both runs' bytes by phase and direction, whatever their encodings."""
    places = {(row["phase"], row["direction"]) for rows in ledgers for row in rows}
    return [
        _ledger_line(phase, direction, ledgers)
        for phase in (*PHASES, CONNECTION)
        for direction in ("up", "down")
        if (phase, direction) in places
    ]


def _ledger_line(
    phase: str, direction: str, ledgers: Sequence[Sequence[Mapping[str, Any]]]
) -> Entry:
    there = [
        [row for row in rows if (row["phase"], row["direction"]) == (phase, direction)]
        for rows in ledgers
    ]
    sums = {
        count: [sum(row.get(count) or 0 for row in rows) for rows in there]
        for count in ("payload_bytes", "message_bytes", "socket_bytes")
    }
    sent = [sent_bytes(rows) for rows in there]
    counted = sums["socket_bytes"] if phase == CONNECTION else sent
    return {
        "phase": phase,
        "direction": direction,
        "encodings": [sorted({row["encoding"] for row in rows} - {""}) for rows in there],
        **sums,
        "bytes": counted,
        "ratio": counted[1] / counted[0] if counted[0] else None,
    }


def _overlap(first: Source, second: Source) -> dict[str, Any]:
    """Return which share of the weights that one mask keeps the other keeps, too."""
    if "fedavg" in (source.summary["settings"].get("strategy") for source in (first, second)):
        return {"why_not": "strategy fedavg has no mask", "layers": []}
    if first.model is None or second.model is None:
        return {"why_not": "a run has left no mask", "layers": []}
    (manifest, one), (theirs, other) = first.model, second.model
    if [(t.name, t.shape) for t, _ in manifest.masked()] != [
        (t.name, t.shape) for t, _ in theirs.masked()
    ]:
        return {"why_not": "the models have different tensors", "layers": []}
    packed = [np.frombuffer(mask.bits, dtype=np.uint8) for mask in (one, other)]
    layers = []
    for tensor, place in manifest.masked():
        bits = [tensor_bits(mask, place) for mask in packed]
        both = int(np.count_nonzero(bits[0] & bits[1]))
        kept = [int(np.count_nonzero(mask)) for mask in bits]
        layers.append({"name": tensor.name, **_share(kept, both, tensor.size)})
    common = int(np.bitwise_count(packed[0] & packed[1]).sum())
    return {"why_not": "", **_share([one.num_kept, other.num_kept], common, one.size),
            "layers": layers}  # fmt: skip


def _share(kept: Sequence[int], common: int, size: int) -> Entry:
    """Return how many of the weights that either keeps both keep; `chance`: if drawn freely."""
    drawn = kept[0] * kept[1] / size if size else 0.0
    either = sum(kept) - common
    return {
        "size": size, "kept": list(kept), "common": common,
        "share": common / either if either else None,
        "chance": drawn / (sum(kept) - drawn) if sum(kept) > drawn else None,
    }  # fmt: skip
