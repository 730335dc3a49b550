"""The state of the database, for autogenerate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa

from pgqpy.sqlalchemy.capture import Capture

Key: TypeAlias = tuple[str, str, str]
"""Schema, table and queue of a capture."""


@dataclass(frozen=True, slots=True)
class Captured:
    """An existing capture; ``key`` is set only if it is not the table's ``primary_key``."""

    schema: str
    table_name: str
    capture: Capture
    primary_key: tuple[str, ...]


class Database:
    """Reads only what every role may read."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.default_schema = connection.dialect.default_schema_name or "public"

    def installed(self) -> bool:
        """Whether the schema is installed."""
        return self._connection.scalar(sa.text(_INSTALLED)) is True

    def schemas(self) -> set[str]:
        """PgQ's own schemas."""
        return set(self._connection.scalars(sa.text(_SCHEMAS)))

    def queues(self) -> set[str]:
        """The names of all queues."""
        return set(self._connection.scalars(sa.text("select queue_name from pgq.queue")))

    def has_consumers(self, queue: str) -> bool:
        """Whether a queue has consumers."""
        return self._connection.scalar(sa.text(_HAS_CONSUMERS), {"queue": queue}) is True

    def settings(self, queue: str) -> dict[str, Any]:
        """Return the settings of a queue that differ from the defaults, for
        pgq.set_queue_config."""
        columns = [f"queue_{parameter}" for parameter in SETTINGS]
        rows = self._connection.execute(_SETTINGS, {"queue": queue, "columns": columns}).all()
        settings = {row.parameter: row.value for row in rows if row.changed}
        if "ticker_max_lag" in settings:
            # Setting ticker_max_lag turns early ticks off.
            settings |= {row.parameter: row.value for row in rows if row.parameter == _LATENCY}
        return settings

    def captured(self) -> dict[Key, Captured]:
        """All captures."""
        found = {}
        for row in self._connection.execute(sa.text(_CAPTURED)).mappings():
            schema, table_name = row["names"]
            options = {option: row[option] for option in _OPTIONS}
            if row["key"] == row["primary_key"]:
                options["key"] = None
            capture = Capture(row["queue_name"], **options)
            found[schema, table_name, capture.queue] = Captured(
                schema, table_name, capture, tuple(row["primary_key"])
            )
        return found


#: The parameters of pgq.set_queue_config.
SETTINGS = (
    *("ticker_max_count", "ticker_max_lag", "ticker_idle_period", "ticker_paused"),
    *("ticker_latency", "rotation_period", "external_ticker", "per_tx_limit"),
    *("disable_insert", "key_window"),
)

_LATENCY = "ticker_latency"

_OPTIONS = (
    *("operations", "columns", "exclude", "key"),
    *("old_values", "condition", "format", "key_changes"),
)

_INSTALLED = "select to_regclass('pgq.queue') is not null"

_SCHEMAS = """
select nspname
  from pg_catalog.pg_namespace
 where nspname in ('pgq', 'pgq_ext', 'pgq_coop', 'pgq_node', 'pgq_task')
    or nspowner = pg_catalog.to_regrole('pgq_owner')
"""

_HAS_CONSUMERS = "select exists (select from pgq.get_consumer_info(:queue))"

_CAPTURED = """
select n.names, i.*,
       array(select a.attname::text
               from pg_catalog.pg_class t
               join pg_catalog.pg_namespace s on s.oid = t.relnamespace
               join pg_catalog.pg_index x on x.indrelid = t.oid and x.indisprimary
              cross join unnest(x.indkey::int2[]) with ordinality as k (attnum, n)
               join pg_catalog.pg_attribute a on a.attrelid = t.oid and a.attnum = k.attnum
              where t.relname = n.names[2]
                and s.nspname = n.names[1]
                and k.n <= x.indnkeyatts
              order by k.n) as primary_key
  from pgq.capture_info() i
 cross join lateral (select parse_ident(i.table_name) as names) n
"""

# Values in the form of set_queue_config. A setting without a default is null by default.
_SETTINGS = sa.text("""
select substr(a.attname, 7) as parameter, v.value,
       v.value is distinct from case a.atttypid
           when 'interval'::regtype then substring(pg_get_expr(d.adbin, d.adrelid) from '''(.*)''')
           else pg_get_expr(d.adbin, d.adrelid) end as changed
  from pgq.queue q
 cross join lateral jsonb_each_text(to_jsonb(q)) as v (name, value)
  join pg_catalog.pg_attribute a on a.attrelid = 'pgq.queue'::regclass and a.attname = v.name
  left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where q.queue_name = :queue
   and v.name = any (:columns)
 order by a.attnum
""").bindparams(sa.bindparam("columns", type_=sa.ARRAY(sa.Text)))
