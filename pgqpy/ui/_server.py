"""Ticker and database: who leads, what holds back the horizon, sizes, and the doctor's checks."""

from __future__ import annotations

from functools import partial
from typing import Any

from pgqpy.doctor import examine
from pgqpy.doctor._server import HURTS
from pgqpy.doctor._storage import DEAD_ROWS, SEQUENCES
from pgqpy.schema._database import ALL_SCHEMAS
from pgqpy.ui._overview import read_status
from pgqpy.ui._view import Look, View

#: The most rows of each table.
SHOWN = 20
#: What the page says first, if it is wrong; the rest is on the overview.
CHECKS = {"ticks", "maintenance", "old transactions", "foreign locks"}

# Without the role of that session, or pg_read_all_stats, its state is hidden. A session between two
# statements tells how long the last one took: that of a leader is its round.
TICKERS = """
select pid, application_name as name, host(client_addr) as host, backend_start as since,
       state is not null as seen, pid = %(leader)s as leads,
       case when state = 'idle' then state_change - query_start end as took,
       clock_timestamp() - coalesce(query_start, backend_start) as asked
  from pg_stat_activity
 where pid = %(leader)s
    or datname = current_database() and application_name ~ '^pgqpy ticker [0-9]'
 order by leads desc, since
"""
# Pauses between the last ticks of each queue.
TICKS = """
select q.queue_name as queue, t.last, t.usual, t.longest, q.queue_ticker_max_lag as max_lag,
       q.queue_ticker_max_count as max_count, q.queue_ticker_idle_period as idle_period,
       count(*) over () as queues
  from pgq.queue q
 cross join lateral (
       select now() - max(tick_time) as last, max(pause) as longest,
              percentile_cont(0.5) within group (order by pause) as usual
         from (select tick_time, tick_time - lag(tick_time) over (order by tick_id) as pause
                 from (select tick_id, tick_time
                         from pgq.tick
                        where tick_queue = q.queue_id
                        order by tick_id desc
                        limit 100) newest) pauses) t
 order by t.longest desc nulls last, 1
 limit %s
"""
# The doctor tells which are too old. Sessions of other databases count only if they have written.
HOLDERS = """
select *, age is null and kind = 'session' as hidden
  from (select 'session' as kind, pid, usename::text as role, application_name as name, state,
               clock_timestamp() - xact_start as age, left(query, 200) as query,
               greatest(age(backend_xid), age(backend_xmin)) as transactions
          from pg_stat_activity
         where pid <> pg_backend_pid()
           and (backend_xid is not null
                or backend_xmin is not null and datname = current_database())
         union all
        select 'prepared transaction', null, owner::text, gid, null, clock_timestamp() - prepared,
               null, age(transaction)
          from pg_prepared_xacts
         union all
        select 'standby', pid, usename::text, application_name, state, null, null,
               age(backend_xmin)
          from pg_stat_replication
         where backend_xmin is not null
         union all
        select 'replication slot', active_pid, null, slot_name::text, null, null, null,
               greatest(age(xmin), age(catalog_xmin))
          from pg_replication_slots
         where coalesce(xmin, catalog_xmin) is not null) held
 order by transactions desc, age desc nulls last
 limit %s
"""
RELATIONS = """
select format('%%I.%%I', schemaname, relname) as name, bytes, n_live_tup as live,
       n_dead_tup as dead, greatest(last_vacuum, last_autovacuum) as vacuumed,
       (sum(bytes) over ())::bigint as total, count(*) over () as relations
  from pg_stat_all_tables
 cross join pg_total_relation_size(relid) bytes
 where schemaname = any (%s)
 order by greatest(n_dead_tup, 1) * bytes desc nulls last, 1
 limit %s
"""
SETTINGS = """
select name, concat_ws(' ', reset_val, unit) as value, reset_val <> harmless as hurts, why
  from unnest(%s::text[], %s::text[], %s::text[]) as known (name, harmless, why)
  join pg_settings using (name)
 order by name
"""


def server(look: Look) -> dict[str, Any]:
    conn, rows, status = look.visit.conn, look.visit.rows, read_status(look)
    sequences = conn.execute(SEQUENCES, [list(ALL_SCHEMAS)]).fetchall()
    harmless, _, why, _ = zip(*HURTS.values(), strict=True)
    return {
        "alerts": [each for each in status.alerts if each.check in CHECKS],
        "tickers": rows(TICKERS, {"leader": status.server.ticker_pid}),
        "ticks": rows(TICKS, [SHOWN]),
        "holders": rows(HOLDERS, [SHOWN]),
        "relations": rows(RELATIONS, [list(ALL_SCHEMAS), SHOWN]),
        "sequences": [each for each in sequences if each[2]][:3],
        "dead_rows": DEAD_ROWS,
        "hidden": sum(not seen for *_, seen, _ in sequences),
        "settings": rows(SETTINGS, [list(HURTS), list(harmless), list(why)]),
        # Not while the page is only kept up to date.
        "examine": partial(examine, conn, stuck_after=look.patience),
    }


VIEWS = [View("database", "Ticker & database", server, menu="database")]
