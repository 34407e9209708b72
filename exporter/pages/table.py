"""The table of all backends: which rows are shown, in which order. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from exporter.model import Verdict
from exporter.pages.row import Row
from exporter.pages.words import LOOKS
from exporter.snapshot import Snapshot

PAGE_ROWS = 250
"""Rows of one page: more than a person reads, and few enough for a browser that fetches them every few seconds."""
LONGEST_TEXT = 100


@dataclass(frozen=True, slots=True)
class Column:
    """A column that can be sorted by; `most_first`: what one wants to see first is the largest."""

    title: str
    value: Callable[[Row], float | str | None] | None = None
    most_first: bool = False
    number: bool = False


COLUMNS: Mapping[str, Column] = {
    "state": Column("State"),
    "name": Column("Backend", lambda row: row.name),
    "since": Column("Since", lambda row: row.since_seconds),
    "stalled": Column("Stood still", lambda row: row.gauges.stalled_seconds, most_first=True),
    "rate": Column("Work rate", lambda row: row.gauges.progress_rate, most_first=True, number=True),
    "running": Column("Running", lambda row: row.running, most_first=True, number=True),
    "waiting": Column("Waiting", lambda row: row.waiting, most_first=True, number=True),
    "read": Column("Last read", lambda row: row.read_seconds, most_first=True),
    "ask": Column("Last ask", lambda row: row.asks_seconds),
    "age": Column("Process age", lambda row: row.age_seconds),
}


def usual_order(column: str) -> str:
    """The order in which a column is sorted at first."""
    return "desc" if COLUMNS[column].most_first else "asc"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the address asks for; what it cannot mean is taken as not said, and never an error."""

    sort: str = "state"
    order: str = "asc"
    state: str = ""
    group: str = ""
    text: str = ""
    page: int = 1

    @property
    def turned(self) -> bool:
        """Whether the order is not the one in which the column begins."""
        return self.order != usual_order(self.sort)

    @staticmethod
    def of(query: Mapping[str, str]) -> Wish:
        """Read the parameters of an address."""
        sort = query.get("sort", "")
        sort = sort if sort in COLUMNS else "state"
        order = query.get("order", "")
        if order not in ("asc", "desc"):
            order = usual_order(sort)
        state = query.get("state", "")
        number = query.get("page", "")
        return Wish(
            sort,
            order,
            state if state in list(Verdict) else "",
            query.get("group", "")[:LONGEST_TEXT],
            query.get("text", "").strip()[:LONGEST_TEXT],
            max(1, int(number)) if number.isascii() and number.isdigit() and len(number) < 7 else 1,
        )

    def link(self, **changes: str | int) -> str:
        """The query of the same table with something changed; `?` alone where nothing is left to say."""
        said: dict[str, str | int] = {
            "sort": self.sort,
            "order": self.order,
            "state": self.state,
            "group": self.group,
            "text": self.text,
            "page": 1,  # another table begins at its first page
            **changes,
        }
        plain = {"sort": "state", "order": usual_order(str(said["sort"])), "page": 1}
        return "?" + urlencode({key: value for key, value in said.items() if value and value != plain.get(key)})

    def sorted_link(self, column: str) -> str:
        """The address that a column's title leads to: sorted by it, or turned around if it is already."""
        if column == self.sort:
            return self.link(order="desc" if self.order == "asc" else "asc")
        return self.link(sort=column, order=usual_order(column))


@dataclass(frozen=True, slots=True)
class Table:
    """What the page shows: `rows` of this page, from number `first` on, of `found` that fit the wish of `total`."""

    wish: Wish
    rows: Sequence[Row]
    first: int
    found: int
    total: int
    pages: int
    counts: Mapping[Verdict, int]
    groups: Sequence[str]
    dead: int

    @property
    def summary(self) -> str:
        """How many there are of each verdict, the worst first."""
        return ", ".join(f"{count} {verdict.value}" for verdict, count in self.counts.items())

    @property
    def trouble(self) -> str:
        """The same for those that somebody should look at; empty if there are none."""
        loud = [(n, v.value) for v, n in self.counts.items() if LOOKS[v].tone in ("bad", "warn")]
        return ", ".join(f"{count} {word}" for count, word in loud)


def table(snapshots: Sequence[Snapshot], wish: Wish, now: float, wall: float) -> Table:
    """The rows that fit the wish, in its order, cut to its page. `now` is monotonic, `wall` Unix seconds."""
    every = [Row(snapshot, now, wall) for snapshot in snapshots]
    counted = Counter(row.verdict for row in every)
    groups = {row.group for row in every if row.own_group} | ({wish.group} if wish.group else set())
    text = wish.text.casefold()
    rows = [
        row
        for row in every
        if (not wish.state or row.verdict == wish.state)
        and (not wish.group or row.group == wish.group)
        and (not text or row.has(text))
    ]
    rows = _ordered(rows, wish)
    pages = max(1, math.ceil(len(rows) / PAGE_ROWS))
    page = min(wish.page, pages)
    start = (page - 1) * PAGE_ROWS
    return Table(
        Wish(wish.sort, wish.order, wish.state, wish.group, wish.text, page),
        rows[start : start + PAGE_ROWS],
        start + 1,
        len(rows),
        len(every),
        pages,
        {verdict: counted[verdict] for verdict in LOOKS if counted[verdict]},
        sorted(groups),
        sum(row.dead for row in every),
    )


def _ordered(rows: Sequence[Row], wish: Wish) -> list[Row]:
    """Sorted as wished; rows without a value come last whichever way, and equal ones go by their names."""
    turned, value = wish.order == "desc", COLUMNS[wish.sort].value
    if value is None:
        return sorted(rows, key=lambda row: row.severity, reverse=turned)
    known = sorted((row for row in rows if value(row) is not None), key=lambda row: row.name)
    known.sort(key=lambda row: value(row) or 0.0, reverse=turned)
    return known + sorted((row for row in rows if value(row) is None), key=lambda row: row.name)
