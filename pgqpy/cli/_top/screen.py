"""The state of the screen, what keys do to it, and how it is drawn. It reads nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from pgqpy._runtime.words import printable, rate
from pgqpy.cli._base.output import empty_table
from pgqpy.cli._top.tables import TABS, Opened, Reading, Row, Table

KEYS = "1-5 tab  ↑↓ select  ⏎ open  esc back  / find  < > sort  r reverse  p pause  q quit"
#: Lines of the screen that are no rows.
FRAME = 6
NUMBERS = {str(nr): name for nr, name in enumerate(TABS, 1)}


@dataclass(slots=True)
class Screen:
    """What the user looks at."""

    tab: str = "queues"
    find: str = ""
    is_typing: bool = False
    paused: bool = False
    ended: bool = False
    opened: list[Opened] = field(default_factory=list)
    selected: tuple[str, ...] | None = None
    reading: Reading | None = None
    #: The rows of what is open, if they are read.
    found: Table | None = None
    #: Why there is nothing new.
    problem: str = ""
    #: The column and direction by which a tab was sorted; all tables that are read are one.
    _sortings: dict[str, tuple[int, bool]] = field(default_factory=dict)

    # --- what is seen

    def table(self) -> Table | None:
        """Return the rows that are seen, found and sorted; None for a text, or before a reading."""
        if self.reading is None or (self.opened and self.opened[-1].text):
            return None
        made = self._table(self.reading)
        if made is None:
            return None
        only = self.opened[-1].only if self.opened else ""
        rows = [
            row
            for row in made.rows
            if (not only or row.cells[0].text == only)
            and self.find.lower() in " ".join(cell.text for cell in row.cells).lower()
        ]
        column, reverse = self._sortings.get(self._sorted, (made.order, made.reverse))
        known = [row for row in rows if row.cells[column].value is not None]
        known.sort(key=lambda row: row.cells[0].text)
        known.sort(key=lambda row: row.cells[column].value, reverse=reverse)
        unknown = [row for row in rows if row.cells[column].value is None]
        return Table(made.headings, [*known, *unknown], column, reverse, made.empty)

    def _table(self, reading: Reading) -> Table | None:
        if self.opened and self.opened[-1].read is not None:
            return self.found
        return TABS[self._shown](reading)

    @property
    def _shown(self) -> str:
        return (self.opened and self.opened[-1].tab) or self.tab

    @property
    def _sorted(self) -> str:
        is_read = self.opened and self.opened[-1].read is not None
        return "" if is_read else self._shown

    # --- keys

    def press(self, key: str) -> None:
        """Do what a key says: a character, or a name such as ``up``, ``enter``, ``escape``."""
        if self.is_typing:
            self._type(key)
        elif key in NUMBERS:
            self.tab, self.opened, self.find, self.selected = NUMBERS[key], [], "", None
        elif key == "tab":
            names = list(TABS)
            self.press(str((names.index(self.tab) + 1) % len(names) + 1))
        elif key in ("up", "down", "k", "j", "page up", "page down", "home", "end"):
            self._move(key)
        elif key == "enter":
            self._open()
        elif key == "escape":
            self._back()
        elif key == "/":
            self.is_typing, self.find = True, ""
        elif key in ("<", ">", "r"):
            self._sort(key)
        elif key in ("p", " "):
            self.paused = not self.paused
        elif key == "q":
            self.ended = True

    def _type(self, key: str) -> None:
        if key == "enter":
            self.is_typing = False
        elif key == "escape":
            self.is_typing, self.find = False, ""
        elif key == "backspace":
            self.find = self.find[:-1]
        elif len(key) == 1 and key.isprintable():
            self.find += key

    def _move(self, key: str) -> None:
        table = self.table()
        if table is None or not table.rows:
            return
        by = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -20, "page down": 20}
        last = len(table.rows) - 1
        to = {"home": 0, "end": last}.get(key, self._place(table) + by.get(key, 0))
        self.selected = table.rows[min(max(to, 0), last)].key

    def _place(self, table: Table) -> int:
        """Return the number of the selected row; the first one if it is gone."""
        for nr, row in enumerate(table.rows):
            if row.key == self.selected:
                return nr
        return 0

    def _open(self) -> None:
        table = self.table()
        if table is None or not table.rows:
            return
        opens = table.rows[self._place(table)].opens
        if opens is not None:
            self.opened.append(opens)
            self.find, self.selected, self.found = "", None, None

    def _back(self) -> None:
        if self.find:
            self.find = ""
        elif self.opened:
            self.opened.pop()
            self.selected, self.found = None, None

    def _sort(self, key: str) -> None:
        table = self.table()
        if table is None:
            return
        column, reverse = table.order, table.reverse
        if key == "r":
            reverse = not reverse
        else:
            column = (column + (1 if key == ">" else -1)) % len(table.headings)
            # Names from the start of the alphabet, all else from the largest.
            values = [row.cells[column].value for row in table.rows]
            reverse = any(isinstance(each, int | float | timedelta) for each in values)
        self._sortings[self._sorted] = column, reverse

    # --- drawing

    def draw(self, console: Console) -> RenderableType:
        """Draw as much as fits."""
        parts: list[RenderableType] = [self._heading(), self._tabs(), ""]
        table = self.table()
        height = max(console.size.height - FRAME, 1)
        if self.opened and self.opened[-1].text:
            lines = self.opened[-1].text.splitlines()[:height]
            parts.append(Text("\n".join(map(printable, lines))))
        elif table is None:
            parts.append(Text("" if self.problem else "reading ...", "dim"))
        elif not table.rows:
            parts.append(Text(f"nothing has {self.find!r}" if self.find else table.empty, "dim"))
        else:
            parts.append(self._draw(table, height))
        return Group(*parts, self._footer())

    def _heading(self) -> Text:
        if self.reading is None:
            return Text("pgqpy top", "bold")
        status = self.reading.status
        server = status.server
        rates = [each.events_per_second or 0 for each in status.queues]
        number = len(status.alerts)
        told = ("no problems", "green") if not number else (f"problems: {number}", "bold red")
        ticker = f"ticker {server.ticker_pid}" if server.ticker_pid else "no pgqpy ticker"
        if server.standby_lag is not None:
            ticker = "standby"
        return Text.assemble(
            (printable(server.database), "bold"),
            f" · {server.time.astimezone():%H:%M:%S} · {rate(sum(rates))} events/s in · ",
            (ticker, "" if server.ticker_pid else "yellow"),
            " · ",
            told,
            (" · paused", "bold yellow") if self.paused else "",
        )

    def _tabs(self) -> Text:
        text = Text()
        for number, name in NUMBERS.items():
            style = "reverse" if name == self.tab else "dim"
            text.append(f" {number} {name} ", style)
        for each in self.opened:
            text.append(f" › {printable(each.title)}")
        if self.is_typing or self.find:
            text.append(f"   /{self.find}{'_' if self.is_typing else ''}", "bold")
        return text

    def _draw(self, table: Table, height: int) -> RichTable:
        drawn = empty_table()
        place = self._place(table)
        first = min(max(place - height // 2, 0), max(len(table.rows) - height, 0))
        seen = table.rows[first : first + height]
        for number, heading in enumerate(table.headings):
            mark = ("▼" if table.reverse else "▲") if number == table.order else ""
            words = any(isinstance(row.cells[number].value, str) for row in seen)
            # Where all do not fit, names are cut, not numbers: columns that may wrap shrink first.
            drawn.add_column(
                _cut(heading + mark),
                justify="left" if words or number == 0 else "right",
                no_wrap=not words,
                overflow="ellipsis",
            )
        for number, row in enumerate(seen, first):
            drawn.add_row(*_cells(row), style="reverse" if number == place else "")
        return drawn

    def _footer(self) -> Text:
        if self.problem:
            return Text(f"\n{printable(self.problem)}", "bold red", no_wrap=True)
        return Text(f"\n{KEYS}", "dim", no_wrap=True, overflow="ellipsis")


def _cells(row: Row) -> list[Text]:
    return [_cut(printable(cell.text), cell.style) for cell in row.cells]


def _cut(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
