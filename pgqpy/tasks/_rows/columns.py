"""A table of the application whose rows are tasks: its columns, and the statements on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import sql

from pgqpy.tasks._rows.row import RowOutcome

DESCRIBE = b"select * from pgq_task.describe_table(%s::regclass, %s)"
#: Makes the planner read rows in the order of the index, whatever the statistics: a backlog, or
#: dead rows, must not be read as a whole. The plan is made once.
PLAN = (
    b"select set_config('enable_seqscan', 'off', true),"
    b" set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),"
    b" set_config('plan_cache_mode', 'force_generic_plan', true)"
)
PLANNED = ["enable_seqscan", "enable_bitmapscan", "enable_sort", "plan_cache_mode"]
CURRENT = b"select current_setting(x) from unnest(%s::text[]) with ordinality o (x, n) order by n"
WANT_QUIET = b"select pgq_task.want_quiet(%s::regclass, %s)"


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
        triples = list(zip(map(_quoted, keys), columns, map(_escaped, types), strict=True))
        settings = zip(PLANNED, plan_settings, strict=True)
        parts = {name: _quoted(value) for name, value in asdict(names).items()} | {
            "table": _escaped(table),
            "texts": ", ".join(f"t.{key}::text" for key, _, _ in triples),
            "columns": ", ".join(columns),
            "arrays": ", ".join(["%s::text[]"] * len(keys)),
            "same": " and ".join(f"t.{key} = x.{column}::{kind}" for key, column, kind in triples),
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
            " from unnest({arrays}, %s::text[], %s::interval[], %s::int[], %s::text[])"
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
            "delete from {table} t using unnest({arrays}) x ({columns}) where {same}"
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
        """Return the statement that deletes rows, and its values."""
        return self.delete, self._keys(outcomes)

    def _keys(self, outcomes: list[RowOutcome]) -> list[Any]:
        """Return, for each column of the key, its values."""
        return [list(values) for values in zip(*(outcome.key for outcome in outcomes), strict=True)]


def _quoted(name: str) -> str:
    return _escaped(sql.Identifier(name).as_string(None))


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
