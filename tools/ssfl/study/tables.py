"""Tables of results as Markdown, LaTeX and CSV.

A number of a table is a mean over seeds, with its standard deviation if there are several. CSV has
both in columns of their own, and all their digits.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ssfl.study.intervals import mean_and_sd

NONE = "·"  # not measured


@dataclass(frozen=True, slots=True)
class Number:
    """A mean over seeds, and how it is shown."""

    mean: float
    sd: float = math.nan  # nan: unknown, or not of interest
    digits: int = 1

    def __str__(self) -> str:
        text = f"{self.mean:,.{self.digits}f}"
        return text if math.isnan(self.sd) else f"{text} ± {self.sd:,.{self.digits}f}"


Cell = Number | str | None


def number(
    values: Iterable[float | None], factor: float = 1.0, digits: int = 1, *, with_sd: bool = False
) -> Number | None:
    """Return the mean of the known values times a factor; None if none is known.

    >>> str(number([0.5, 0.6, None], 100, with_sd=True)), number([None])
    ('55.0 ± 7.1', None)
    """
    known = [factor * value for value in values if value is not None]
    if not known:
        return None
    mean, sd = mean_and_sd(known)
    return Number(mean, sd if with_sd else math.nan, digits)


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the first column has names, the others numbers or words."""

    name: str  # of its CSV file
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=tuple)

    def without_empty_columns(self) -> "Table":
        """Return the table without columns in which nothing was measured."""
        used = [
            at for at in range(len(self.columns))
            if not at or any(row[at] not in (None, "") for row in self.rows)
        ]  # fmt: skip
        columns = [self.columns[at] for at in used]
        rows = [[row[at] for at in used] for row in self.rows]
        return Table(self.name, self.title, columns, rows, self.notes)


def markdown(tables: Sequence[Table], level: int = 2) -> str:
    """Return the tables as sections of a page."""
    return "\n".join(_markdown(table, level) for table in tables)


def _markdown(table: Table, level: int) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    numeric = ["---:" if any(isinstance(row[at], Number) for row in table.rows) else "---"
               for at in range(len(table.columns))]  # fmt: skip
    lines = [f"{'#' * level} {table.title}", "", line(table.columns), f"|{'|'.join(numeric)}|"]
    lines += [line(map(_text, row)) for row in table.rows]
    return "\n".join([*lines, "", *(f"{note}\n" for note in table.notes)])


def latex(tables: Sequence[Table]) -> str:
    r"""Return the tables as LaTeX; they need \usepackage{booktabs}."""
    return "\n".join(map(_latex, tables))


def _latex(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return " & ".join(map(escaped, cells)) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_caption(' '.join([f'{table.title}.', *table.notes]))}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            line(table.columns),
            r"\midrule",
            *(line(map(_text, row)) for row in table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _caption(text: str) -> str:
    return re.sub(r"\*(.+?)\*", r"\\emph{\1}", escaped(text))


_SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "·": r"$\cdot$", "…": r"\ldots{}", "−": "$-$", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", **{char: f"\\{char}" for char in "&%$#_{}"},
}  # fmt: skip


def escaped(text: str) -> str:
    r"""Return text for LaTeX.

    >>> print(escaped("90 % of w_1 & {x}: 5.0 ± 0.1"))
    90 \% of w\_1 \& \{x\}: 5.0 $\pm$ 0.1
    """
    plain = text.replace("`", "")
    return re.sub(".", lambda found: _SPECIAL.get(found[0], found[0]), plain)


def csv_text(table: Table) -> str:
    """Return a table as CSV."""
    wide = [any(_sd(row[at]) is not None for row in table.rows) for at in range(len(table.columns))]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = zip(table.columns, wide, strict=True)
    writer.writerow([part for name, two in head for part in ([name, f"{name} sd"][: 1 + two])])
    for row in table.rows:
        cells: list[object] = []
        for cell, two in zip(row, wide, strict=True):
            cells.append(cell.mean if isinstance(cell, Number) else cell)
            cells += [_sd(cell)] if two else []
        writer.writerow(cells)
    return text.getvalue()


def _sd(cell: Cell) -> float | None:
    """Return the standard deviation of a cell; None if it has none."""
    return cell.sd if isinstance(cell, Number) and not math.isnan(cell.sd) else None


def _text(cell: Cell) -> str:
    return NONE if cell is None else str(cell)
