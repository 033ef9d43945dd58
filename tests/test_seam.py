"""The walls around strategies: no part of the system knows one by name."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from ssfl.strategies.registry import criterion_names, strategy_names

ROOT = Path(__file__).resolve().parents[1]
# Parts that must treat all strategies and criteria alike.
PARTS = ("server", "client", "codec", "learning", "tools/ssfl/simulator", "tools/ssfl/tools/plan",
         "tools/ssfl/tools/report")  # fmt: skip
COMPARED = {"strategy", "criterion"}
MAX_LINES = 200  # of a method, so that it can be read beside the paper


def files(part: str) -> list[Path]:
    return [file for file in sorted((ROOT / part).rglob("*.py")) if "_pb2" not in file.name]


@cache
def nodes(file: Path) -> list[ast.Compare | ast.Match | ast.ImportFrom]:
    """Return the comparisons, matches and imports of a file."""
    kinds = ast.Compare | ast.Match | ast.ImportFrom
    tree = ast.parse(file.read_text("utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def literals(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


def comparisons(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield comparisons and matches of a strategy's or criterion's name with a literal."""
    known = {*strategy_names(), *criterion_names()}
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = any(name_of(side) in COMPARED for side in sides)
            if named and known & set(literals(node)):
                yield node
        elif isinstance(node, ast.Match) and name_of(node.subject) in COMPARED:
            yield node


@pytest.mark.parametrize("part", PARTS)
def test_no_part_compares_a_strategy_or_criterion_with_a_name(part: str) -> None:
    found = files(part)
    assert found
    breaches = [
        f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for file in found
        for node in comparisons(nodes(file))
    ]
    assert breaches == []


@pytest.mark.parametrize("part", PARTS)
def test_no_part_imports_a_method(part: str) -> None:
    breaches = [
        f"{file.relative_to(ROOT)} imports {node.module}"
        for file in files(part)
        for node in nodes(file)
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith(("ssfl.strategies.methods", "ssfl.strategies.criteria"))
    ]
    assert breaches == []


def test_a_method_has_at_most_200_lines() -> None:
    found = files("strategies/ssfl/strategies/methods")
    lengths = {file.name: len(file.read_text("utf-8").splitlines()) for file in found}
    assert len(lengths) > 15
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_the_comparisons_are_found() -> None:
    code = """
if settings.strategy == "ssfl": pass
if criterion in ("grasp", "synflow"): pass
match request.criterion:
    case "saliency": pass
if settings.strategy == other: pass
"""
    assert len(list(comparisons(ast.walk(ast.parse(code))))) == 3
