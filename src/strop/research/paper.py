"""The figures of the paper's tables, as data: what was run, and the results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

from strop.errors import BadInput
from strop.methods import METHODS

PEARSON = "pearson"
"""The measure of the table on perplexity: a correlation in percent."""


@dataclass(frozen=True)
class Row:
    """One line of a table: how documents were scored, and the figure for each dataset.

    ``embedder`` is a spec, ``method`` a name of ``METHODS``, ``query_side`` the method that refined
    the queries, ``generator`` the model that wrote queries or passages; both are empty if there was
    none. ``quoted`` figures were taken by the paper from other papers. All figures are percent.
    """

    label: str
    embedder: str
    method: str
    figures: Mapping[str, float] = field(hash=False)
    alpha: float | None = None
    temperature: float | None = None
    generator: str = ""
    query_side: str = ""
    quoted: bool = False
    average: float | None = None

    @property
    def style(self) -> str:
        """The set of generated queries that its method needs, "" for none."""
        method = METHODS[self.method]
        return method.augmented or (method.sets[0] if method.sets else "")

    def needs(self) -> list[str]:
        """Return what a run needs besides the collections."""
        texts = [f"{self.style} queries"] if self.style else []
        return [self.embedder, *texts, *([self.query_side] if self.query_side else [])]

    def spec(self, sets: str = "") -> str:
        """Return the method with its settings, as ``strop eval`` accepts it."""
        softmax = METHODS[self.method].weighting == "softmax"
        settings = {"alpha": self.alpha, "temperature": self.temperature} if softmax else {}
        parts = [f"{key}={value:g}" for key, value in settings.items() if value is not None]
        return ":".join([self.method, *parts, *([f"sets={sets}"] if sets else [])])


@dataclass(frozen=True)
class Table:
    """A table of the paper; ``measure`` is written as ir_measures does, or ``pearson``."""

    name: str
    title: str
    measure: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Figure:
    """One figure of one row: the value expected on a dataset."""

    table: Table
    row: Row
    dataset: str
    expected: float


def read_tables() -> list[Table]:
    """Return every table."""
    text = resources.files("strop.research").joinpath("paper_tables.json").read_text("utf-8")
    return [
        Table(**{**value, "rows": tuple(Row(**row) for row in value["rows"])})
        for value in json.loads(text)["tables"]
    ]


def chosen_tables(names: Sequence[str]) -> list[Table]:
    """Return the tables of these names, all tables if there are no names."""
    tables = read_tables()
    table_names = {table.name for table in tables}
    for name in names:
        if name not in table_names:
            choices = ", ".join(table.name for table in tables)
            raise BadInput(f"the paper has no table {name!r} here: choose from {choices}")
    return [table for table in tables if not names or table.name in names]


def figures_of(tables: Sequence[Table]) -> Iterator[Figure]:
    """Yield every figure of some tables, except averages."""
    for table in tables:
        for row in table.rows:
            for dataset, expected in row.figures.items():
                yield Figure(table, row, dataset, expected)
