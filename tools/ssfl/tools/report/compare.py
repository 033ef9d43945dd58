"""Comparison of two runs: settings, accuracy at equal rounds and bytes, bytes, times, masks."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from ssfl.server.accounting.ledger import CONNECTION, PHASES
from ssfl.server.history.run_history import Entry
from ssfl.server.report.contents import report_document
from ssfl.server.report.mask_image import tensor_bits
from ssfl.server.report.run_view import sent_bytes
from ssfl.server.report.source import Source
from ssfl.strategies.registry import strategy_of

FORMAT = 1
LINES = 12  # of the comparison at equal rounds, or at equal bytes
_KEPT = (
    "run_id", "software", "verdict", "rounds_done", "quality", "curve", "evaluations", "times",
    "bytes", "mask", "model_digest", "strategy", "has_mask", "encodings",
)  # fmt: skip

Point = tuple[float, float]  # rounds or bytes at which a model was tested, and the result


def comparison_document(
    first: Source, second: Source, names: tuple[str, str] = ("A", "B")
) -> dict[str, Any]:
    """Return the content of the report of two runs."""
    reports = report_document(first), report_document(second)
    measure = "accuracy" if all(_tests(report, "accuracy") for report in reports) else "loss"
    by_round = [_tests(report, measure) for report in reports]
    by_bytes = [_tests(report, measure, over="bytes") for report in reports]
    return {
        "format": FORMAT,
        "kind": "comparison",
        "title": f"ssfl runs {first.summary['run_id']} and {second.summary['run_id']}",
        "names": list(names),
        "runs": [{key: report[key] for key in _KEPT} for report in reports],
        "settings": [
            *_differing(first.summary["settings"], second.summary["settings"]),
            *_differing(*(_encodings(report) for report in reports)),
        ],
        "measure": measure,
        "at_equal_rounds": _at_equal(by_round, whole=True),
        "at_equal_bytes": _at_equal(by_bytes, whole=False),
        "ledger": _ledger(*(report["bytes"]["rows"] for report in reports)),
        "overlap": _overlap(first, second),
    }


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Entry]:
    return [
        {"name": name, "values": [one.get(name), other.get(name)]}
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]


def _encodings(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the encodings of values, which depend on --reference-coding and the links."""
    ways = report["encodings"].items()
    return {f"encoding of values {way}": ", ".join(names) for way, names in ways}


def _tests(report: Mapping[str, Any], measure: str, over: str = "rounds") -> list[Point]:
    """Return the tests of the run's models, by rounds done or by bytes sent."""
    curve, evaluations = report["curve"], report["evaluations"]
    found = {point["round"]: point[measure] for point in curve}
    found |= {point["rounds_done"]: point[measure] for point in evaluations}  # by all clients
    places = {rounds: rounds for rounds in found}
    if over == "bytes":  # count the bytes of the model, not those of its evaluation
        places = {point["rounds_done"]: point["sent_bytes"] for point in evaluations}
        places |= {point["round"]: point["sent_bytes"] for point in curve}
    tests = {places[rounds]: value for rounds, value in found.items()}
    return sorted((at, value) for at, value in tests.items() if value is not None)


def _at_equal(runs: Sequence[Sequence[Point]], *, whole: bool) -> list[Entry]:
    """Return the results of both runs at equal places, up to the end of the shorter run."""
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
        values = [[value for at, value in points if at <= place][-1] for points in runs]
        lines.append({"at": place, "values": values, "difference": values[1] - values[0]})
    return lines


def _ledger(*ledgers: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Return the bytes of both runs by phase and direction, over all encodings."""
    lines = []
    for place in product((*PHASES, CONNECTION), ("up", "down")):
        matching = [
            [row for row in rows if (row["phase"], row["direction"]) == place] for rows in ledgers
        ]
        if not any(matching):
            continue
        sums = {
            count: [sum(row.get(count) or 0 for row in rows) for rows in matching]
            for count in ("payload_bytes", "message_bytes", "socket_bytes")
        }
        phase, direction = place
        sent = sums["socket_bytes"] if phase == CONNECTION else [*map(sent_bytes, matching)]
        lines.append({
            "phase": phase,
            "direction": direction,
            "encodings": [sorted({row["encoding"] for row in rows} - {""}) for rows in matching],
            **sums,
            "bytes": sent,
            "ratio": sent[1] / sent[0] if sent[0] else None,
        })  # fmt: skip
    return lines


def _overlap(first: Source, second: Source) -> dict[str, Any]:
    for source in (first, second):
        strategy = strategy_of(source.summary["settings"])
        if strategy is not None and strategy.is_dense:
            name = source.summary["settings"]["strategy"]
            return {"why_not": f"strategy {name} has no mask", "layers": []}
    if first.model is None or second.model is None:
        return {"why_not": "a run has no mask", "layers": []}
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
    """Return the share of weights in either mask that are in both; `chance`: of random masks."""
    drawn = kept[0] * kept[1] / size if size else 0.0
    either = sum(kept) - common
    return {
        "size": size, "kept": list(kept), "common": common,
        "share": common / either if either else None,
        "chance": drawn / (sum(kept) - drawn) if sum(kept) > drawn else None,
    }  # fmt: skip
