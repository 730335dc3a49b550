"""A table of the application whose rows are tasks: its columns, its rows, the statements on it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, ClassVar, Self

import psycopg
from psycopg import sql
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader

DESCRIBE = b"select * from pgq_task.describe_table(%s::regclass, %s)"
#: Makes the planner read rows in the order of the index, whatever the statistics: a backlog, or
#: dead rows, must not be read as a whole. The plan is made once.
PLAN = (
    b"select set_config('enable_seqscan', 'off', true),"
    b" set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),"
    b" set_config('plan_cache_mode', 'force_generic_plan', true)"
)
PLANNED = ["enable_seqscan", "enable_bitmapscan", "enable_sort", "plan_cache_mode"]
CURRENT = (
    b"select current_setting(x)"
    b" from pg_catalog.unnest(%s::text[]) with ordinality o (x, n) order by n"
)
WANT_QUIET = b"select pgq_task.want_quiet(%s::regclass, %s)"

BEGINNING = "-infinity"

#: Seconds before the mark from which the next look begins if one has found nothing.
MARGIN = 10.0
#: Seconds from one full look to the next, at least, and a multiple of the last one's duration.
FULL_EVERY = 1.0
FULL_SHARE = 20


@dataclass(frozen=True, slots=True)
class TaskColumnNames:
    """The names of the five columns that make rows tasks; see `pgq_task.add_columns`."""

    status: str = "status"
    next_attempt: str = "next_attempt"
    attempts: str = "attempts"
    last_attempt: str = "last_attempt"
    last_error: str = "last_error"

    @classmethod
    def prefixed(cls, prefix: str) -> TaskColumnNames:
        """Return the names with a prefix: for a second queue of the same table."""
        return cls(**{name: prefix + name for name in asdict(cls())})

    def json(self) -> str:
        """Return the names for the functions of pgq_task."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row; ``key`` and ``next_attempt`` are texts. If it is ``left``, an earlier attempt did not
    end; ``values`` are empty if they could not be read, for the reason in ``error``."""

    key: tuple[str, ...]
    next_attempt: str
    attempts: int
    left: bool
    values: dict[str, Any]
    error: Exception | None = None

    @classmethod
    def of(cls, record: tuple[Any, ...], width: int, names: list[str]) -> Self:
        """Return the row of a claim's record, whose key has ``width`` columns."""
        # After the keys come next_attempt, attempts, whether it was left, and the plan.
        next_attempt, attempts, left = record[width : width + 3]
        values = dict(zip(names, record[width + 4 :], strict=True))
        return cls(record[:width], next_attempt, attempts, left, values)


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The outcome of a row.

    ``key`` is that of its table, as text. ``status`` and ``error`` None: unchanged. ``delay``
    None: the row is not due any more. ``told`` is passed to `on_row_failed`.
    """

    key: tuple[str, ...]
    status: str | None
    delay: timedelta | None = None
    error: str | None = None
    told: tuple[dict[str, Any], Exception, timedelta | None] | None = None


class RowLost(Exception):
    """The process, or its connection, ended while it worked on the row."""

    #: The attempts in a row that may be lost before the row is given up, whatever the retry policy.
    MOST: ClassVar = 5

    def __init__(self, times: int = 1) -> None:
        again = f" ({times} times in a row)" if times > 1 else ""
        super().__init__(f"the process, or its connection, ended while it worked on the row{again}")
        self.times = times

    @classmethod
    def after(cls, last_error: object) -> Self:
        """Return the error after one more loss than a row's last_error reports."""
        told = _LOST.match(last_error) if isinstance(last_error, str) else None
        return cls(1 + int(told[1] or 1) if told else 1)


_LOST = re.compile(r"RowLost: [^(]*(?:\((\d+) times in a row\))?$")


class TaskTable:
    """The statements for a table that `pgq_task.describe_table` describes."""

    def __init__(
        self,
        names: TaskColumnNames,
        table: str,
        keys: list[str],
        types: list[str],
        signal: str | None,
        plan_settings: Sequence[str],
    ) -> None:
        """``plan_settings`` are the session's settings while a row is worked on."""
        self.names = names
        self.name = table
        self.signal = signal
        self.keys = keys
        columns = [f"k{number}" for number in range(len(keys))]
        triples = [_compared(*each) for each in zip(keys, columns, types, strict=True)]
        settings = zip(PLANNED, plan_settings, strict=True)
        parts = {name: _quoted(value) for name, value in asdict(names).items()} | {
            "table": _escaped(table),
            "texts": ", ".join(f"t.{key}::text" for key, _, _ in triples),
            "columns": ", ".join(columns),
            "arrays": ", ".join(["pg_catalog.unnest(%s::text[])"] * len(keys)),
            # Not `=`, which may be planned as a merge of all rows, dead ones among them; except
            # that the elements of an array of arrays are theirs.
            "same": " and ".join(
                f"t.{key} = x.{column}::{kind}"
                if kind.endswith("[]")
                else f"t.{key} = any (array[x.{column}::{kind}])"
                for key, column, kind in triples
            ),
            "this": " and ".join(f"t.{key} = %s::{kind}" for key, _, kind in triples),
            "plan": " || ".join(f"set_config('{name}', '{on}', true)" for name, on in settings),
        }

        def statement(text: str) -> bytes:
            return text.format(**parts).encode()

        #: Takes a time, seconds before it and a number: returns at most that many rows due since
        #: then. Before their columns come the keys, next_attempt, attempts and whether the row was
        #: left. If rows are found, `PLAN` is reset.
        self.claim = statement(
            "select {texts}, t.{next_attempt}::text, coalesce(t.{attempts}, 0),"
            " case when t.xmax = '0' then false else pgq_task.was_left(t.xmin, t.xmax) end,"
            " (select {plan}), t.* from {table} t"
            " where t.{next_attempt} >= %s::timestamptz - %s * interval '1 second'"
            " and t.{next_attempt} <= now()"
            " order by t.{next_attempt} limit %s for no key update skip locked"
        )
        self.due = statement(
            "select date_part('epoch', t.{next_attempt}) - date_part('epoch', clock_timestamp())"
            " from {table} t where t.{next_attempt} > now() - %s * interval '1 second'"
            " order by t.{next_attempt} limit 1"
        )
        #: Takes the key of the row.
        self.complete_one = statement(
            "update {table} t set {status} = coalesce(%s, t.{status}),"
            " {next_attempt} = clock_timestamp() + %s::interval,"
            " {attempts} = coalesce(t.{attempts}, 0) + %s, {last_attempt} = clock_timestamp(),"
            " {last_error} = coalesce(%s, t.{last_error}) where {this}"
        )
        self.complete = statement(
            "update {table} t set {status} = coalesce(x.status, t.{status}),"
            " {next_attempt} = clock_timestamp() + x.delay,"
            " {attempts} = coalesce(t.{attempts}, 0) + x.counts,"
            " {last_attempt} = clock_timestamp(), {last_error} = coalesce(x.error, t.{last_error})"
            " from rows from ({arrays}, pg_catalog.unnest(%s::text[]),"
            " pg_catalog.unnest(%s::interval[]), pg_catalog.unnest(%s::int[]),"
            " pg_catalog.unnest(%s::text[]))"
            " x ({columns}, status, delay, counts, error) where {same}"
        )
        #: Restores a row whose outcome was written in advance, unless another session has changed
        #: it since.
        self.restore = statement(
            "update {table} t set {status} = %s, {next_attempt} = %s::timestamptz,"
            " {attempts} = %s, {last_error} = %s"
            " where {this} and t.{attempts} = %s and t.{last_error} = %s returning true"
        )
        self.delete = statement(
            "delete from {table} t using rows from ({arrays}) x ({columns}) where {same}"
        )

    def completed(self, outcomes: list[RowOutcome]) -> tuple[bytes, list[Any]]:
        """Return the statement that writes the outcomes of rows, and its values."""
        # A deliberate retry does not count.
        given = [
            (each.status, each.delay, int(each.status is not None), each.error) for each in outcomes
        ]
        if len(outcomes) == 1:
            return self.complete_one, [*given[0], *outcomes[0].key]
        return self.complete, [*self._keys(outcomes), *map(list, zip(*given, strict=True))]

    def deleted(self, outcomes: list[RowOutcome]) -> tuple[bytes, list[Any]]:
        return self.delete, self._keys(outcomes)

    def restored(self, row: TableRow, lost: RowOutcome) -> tuple[bytes, list[Any]]:
        """Return the statement that undoes an outcome written in advance, and its values."""
        names, was = self.names, row.values
        return self.restore, [
            *(was[names.status], row.next_attempt, was[names.attempts], was[names.last_error]),
            *(*row.key, row.attempts + 1, lost.error),
        ]

    def _keys(self, outcomes: list[RowOutcome]) -> list[Any]:
        return [list(values) for values in zip(*(outcome.key for outcome in outcomes), strict=True)]


def _quoted(name: str) -> str:
    return _escaped(sql.Identifier(name).as_string(None))


def _compared(key: str, column: str, kind: str) -> tuple[str, str, str]:
    """Return a key's expression, its column among values, and the type in which it is compared:
    text for varchar, as PostgreSQL does unless a role has made an operator for it."""
    if kind.startswith("character varying") and not kind.endswith("]"):
        return f"{_quoted(key)}::text", column, "text"
    return _quoted(key), column, _escaped(kind)


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


class TableMarks:
    """The place to look for due rows; the executors of a worker share it.

    A finished row leaves a dead entry in the index until vacuum removes it, which is impossible
    while an old transaction stays open. So a look does not begin at the start of the index, but
    where the last one found a row. Rows before that place, inserted by a slow transaction or given
    an earlier time, are found from time to time by a full look.
    """

    def __init__(self) -> None:
        self._ahead = BEGINNING
        self._full_at = 0.0
        #: Held by the executor that works on a row that was left. A process works on one at a
        #: time: if it is killed, the attempt counts for each of them.
        self.alone = threading.Lock()

    def looks(self) -> list[tuple[str, float]]:
        """Return where to begin, and the seconds before that; if nothing is found, the next."""
        if self._ahead == BEGINNING or monotonic() >= self._full_at:
            return [(BEGINNING, 0.0)]
        return [(self._ahead, 0.0), (self._ahead, MARGIN)]

    def looked(self, where: str, first: str | None, took: float) -> None:
        """Record a look from there that took ``took`` seconds, and the ``first`` row's time."""
        if where == BEGINNING:
            self._full_at = monotonic() + max(FULL_EVERY, FULL_SHARE * took)
        if first is not None:
            self._ahead = first


_LAST, _FIRST = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)


def _infinite(loader: Any, last: Any, first: Any) -> Any:
    """Return a loader that maps PostgreSQL's infinity to Python's last or first value."""

    class Infinite(loader):  # type: ignore[misc]
        def load(self, data: Any) -> Any:
            return {b"infinity": last, b"-infinity": first}.get(bytes(data)) or super().load(data)

    return Infinite


_INFINITE = {
    "date": _infinite(DateLoader, _LAST.date(), _FIRST.date()),
    "timestamp": _infinite(
        TimestampLoader, _LAST.replace(tzinfo=None), _FIRST.replace(tzinfo=None)
    ),
    "timestamptz": _infinite(TimestamptzLoader, _LAST, _FIRST),
}


def read_infinity(adapters: psycopg.adapt.AdaptersMap) -> None:
    """Read infinite dates and times as Python's last and first ones."""
    for name, loader in _INFINITE.items():
        adapters.register_loader(name, loader)
