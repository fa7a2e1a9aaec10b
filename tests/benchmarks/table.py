"""Rows of a benchmark with their goals, and the ways to print them."""

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jaxlib

from tests.benchmarks.interleaved import Ratio


class Row(NamedTuple):
    """One measured number.

    Attributes:
        what: What is measured, against what.
        measured: The number; smaller is better.
        goal: The largest number that is good enough; `None` if there is no goal.
        spread: Quartiles over the rounds; `None` for a count.
        note: Times of one call, or what else explains the number.
    """

    what: str
    measured: float
    goal: float | None = None
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the goal is met."""
        if self.goal is None:
            return ""
        return "met" if self.measured <= self.goal else "missed"


def of_ratio(what: str, ratio: Ratio, goal: float | None = None, note: str = "") -> Row:
    """Make the row of a ratio, with the two times as its note."""
    times = f"{duration(ratio.ours)} / {duration(ratio.theirs)}"
    note = f"{times}; {note}" if note else times
    return Row(what, ratio.median, goal, (ratio.low, ratio.high), note)


def duration(seconds: float) -> str:
    """Write seconds in a readable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def machine() -> dict[str, str]:
    """Describe where and when this is measured."""
    return {
        "date": datetime.date.today().isoformat(),
        "cores": str(os.cpu_count()),
        "backend": jax.default_backend(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "precision": "float64" if jax.config.values["jax_enable_x64"] else "float32",
    }


HEADER = ["", "goal", "measured", "quartiles", "", "one call of each, notes"]


def number(value: float) -> str:
    """Write a number short: counts as counts, others with three figures."""
    return str(int(value)) if float(value).is_integer() else f"{value:.3g}"


def cells(row: Row) -> list[str]:
    """Return the cells of a row as text."""
    return [
        row.what,
        "" if row.goal is None else f"<= {number(row.goal)}",
        number(row.measured),
        "" if row.spread is None else " - ".join(f"{s:.3g}" for s in row.spread),
        row.verdict,
        row.note,
    ]


def as_markdown(rows: Iterable[Row]) -> str:
    """Write a table in Markdown."""
    lines = [HEADER, ["---"] * len(HEADER), *map(cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_text(row: Row) -> str:
    """Write one line for a terminal."""
    what, goal, measured, quartiles, verdict, note = cells(row)
    return f"{what:<62}{goal:>9}{measured:>9}{quartiles:>15} {verdict:<7}{note}"


def run(description: str, *measures: Callable[[], Iterator[Row]]) -> None:
    """Parse the command line, measure, and print the rows as they come."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args()
    facts, rows = machine(), []
    progress = sys.stderr if options.markdown else sys.stdout
    print(", ".join(f"{k} {v}" for k, v in facts.items()), file=progress)
    for measure in measures:
        for row in measure():
            rows.append(row)
            print(as_text(row), file=progress, flush=True)
    if options.markdown:
        print(as_markdown(rows))
    if options.json:
        options.json.write_text(dumps(facts, rows), encoding="utf-8")


def dumps(facts: dict[str, str], rows: list[Row]) -> str:
    """Write machine and rows as JSON."""
    each: list[dict[str, Any]] = [
        row._asdict() | {"verdict": row.verdict} for row in rows
    ]
    return json.dumps({"machine": facts, "rows": each}, indent=2) + "\n"
