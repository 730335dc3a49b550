"""Checks of what holds back rotation and vacuum, and of what grows: with forecasts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from shlex import quote

from pgqpy._runtime.words import duration, plural, size
from pgqpy.doctor._finding import Finding, note, ok, problem, warning
from pgqpy.doctor._look import Look, check
from pgqpy.doctor._readings import may_read
from pgqpy.doctor._samples import past_forecast, until
from pgqpy.doctor._status import ConsumerState
from pgqpy.schema._database import ALL_SCHEMAS

#: A standby's snapshot has no age in time; this many transactions are old.
OLD_TRANSACTIONS = 1_000_000
#: Dead rows of a relation above which they are reported, if they are also more than the others.
DEAD_ROWS = 10_000
#: The part of a sequence's numbers that may be used.
USED, NEARLY_USED = 0.8, 0.95
#: The time in which a full disk is a warning, and a problem.
SOON, VERY_SOON = timedelta(days=7), timedelta(days=1)
#: The part of a disk that is to be free.
FREE = 0.05
#: The most tasks and tables that are named.
NAMED = 3
#: The consumers whose last minutes are looked at: of all, that may take too long.
REMEMBERED = 10


@check("horizon")
def horizon(look: Look) -> Iterator[Finding]:
    """Snapshots that keep dead rows from being removed: of sessions here, and of standbys."""
    rows = look.rows(
        """
        select pid, usename, application_name, state, age, left(query, 60), standby
          from (select pid, usename::text, application_name, state, query, false as standby,
                       clock_timestamp() - xact_start as age, age(backend_xmin) as transactions
                  from pg_stat_activity
                 where backend_xmin is not null and backend_xid is null
                   and datname = current_database() and pid <> pg_backend_pid()
                 union all
                select pid, usename::text, application_name, state, null, true, null,
                       age(backend_xmin)
                  from pg_stat_replication
                 where backend_xmin is not null) held
         where age > %s or (standby and transactions > %s)
         order by age desc nulls last
        """,
        look.patience,
        OLD_TRANSACTIONS,
    )
    for pid, user, application, state, age, query, standby in rows:
        if standby:
            yield warning(
                f"the standby {application} of {user} (session {pid}) holds a snapshot that is "
                f"{OLD_TRANSACTIONS:,} transactions old, by hot_standby_feedback: dead rows stay",
                "end the long query on the standby",
            )
        else:
            yield warning(
                f"session {pid} of {user} ({application or 'no name'}, {state}) holds a snapshot "
                f"for {duration(age)}, so dead rows stay: {query}",
                f"end it, or: select pg_terminate_backend({pid})",
            )
    hidden = look.value("""
        select count(*)
          from pg_stat_activity
         where coalesce(backend_xid, backend_xmin) is not null and state is null
           and backend_type is null
    """)
    if hidden:
        yield note(
            f"{plural(hidden, 'session')} of other roles in transactions, whose age your role may "
            "not see",
            f"grant pg_monitor to {look.value('select quote_ident(current_user)')}",
        )
    yield ok(f"no snapshot is older than {duration(look.patience)}")


@check("replication slots")
def slots(look: Look) -> Iterator[Finding]:
    """Slots that no program uses: they keep WAL, and may hold back the horizon."""
    rows = look.rows("""
        select slot_name, wal_status, coalesce(xmin, catalog_xmin) is not null,
               case when not pg_is_in_recovery()
                    then pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 end
          from pg_replication_slots
         where not active and (restart_lsn is not null or xmin is not null)
         order by 4 desc nulls last
    """)
    for name, status, held, kept in rows:
        wal = f"keeps {size(kept)} of WAL" if kept is not None else "keeps WAL"
        dead = " and dead rows" if held else ""
        yield warning(
            f"replication slot {name} is not in use, and {wal}{dead} ({status})",
            f"start its standby or subscriber; else: select pg_drop_replication_slot('{name}')",
        )
    yield ok("all replication slots are in use, if there are any")


@check("backlogs")
def backlogs(look: Look) -> Iterator[Finding]:
    """Consumers that work and are behind, and when they will have caught up."""
    remembered = may_read(look.conn, "pgq.position_0", "pgq.position_1", "pgq.registration")
    for number, (queue, consumer) in enumerate(look.judgement.consumers(ConsumerState.BEHIND)):
        names = queue.queue, consumer.consumer
        events = queue.unread_by(consumer) or 0
        forecast = None
        if look.samples:
            forecast = look.samples.forecast(*names)
        elif remembered and number < REMEMBERED:
            forecast = past_forecast(look.conn, *names, events)
        forecast = forecast or "`pgqpy doctor --wait 10` tells when it has caught up"
        yield warning(
            f"{queue.queue}: {consumer.consumer} is {duration(consumer.lag or timedelta())} and "
            f"{plural(events, 'event')} behind; {forecast}",
            "more workers (a group), larger batches, or faster processing",
        )
    yield ok(f"no consumer that works is more than {duration(look.patience)} behind")


# The rate of the last hour's ticks, and the bytes of an event, for queues that cannot rotate.
_GROWTH = """
select sum(ticks.rate * tables.bytes / tables.rows)::float8
  from pgq.queue q
 cross join lateral (
       select (max(tick_event_seq) - min(tick_event_seq))
              / nullif(extract(epoch from max(tick_time) - min(tick_time)), 0) as rate
         from pgq.tick t
        where t.tick_queue = q.queue_id and t.tick_time > now() - interval '1 hour') ticks
 cross join lateral (
       select sum(pg_total_relation_size(c.relid)) as bytes, nullif(sum(c.n_live_tup), 0) as rows
         from generate_series(0, q.queue_ntables - 1) n
         join pg_stat_all_tables c on c.relid = to_regclass(q.queue_data_pfx || '_' || n)) tables
 where q.queue_name = any (%s)
"""


@check("disk")
def disk(look: Look) -> Iterator[Finding]:
    """The free space of the data directory, if it is on this machine, and when it will be used."""
    held = [each.queue for each in look.judgement.queues if each.rotation_held_by]
    if look.samples:
        growth, reason = look.samples.growth, "the database and its WAL"
    else:
        growth = look.value(_GROWTH, held) or 0.0 if held else 0.0
        reason = f"the event tables of {', '.join(held)}, which cannot be rotated,"
    grows = f"{reason} grow by {size(growth * 3600)} an hour" if growth > 0 else ""
    remedy = "see `rotation`, `old transactions` and `replication slots`; add space"
    free, total = _disk(look)
    if free is None or total is None:
        if grows:
            yield warning(f"{grows}; how much is free is not known here", remedy)
        yield ok("nothing is known to grow without limit; how much is free is not known here")
        return
    left = f"{size(free)} of {size(total)} are free"
    full = timedelta(seconds=min(free / growth, 1e9)) if growth > 0 else timedelta.max
    if full < SOON or free < FREE * total:
        worse = problem if full < VERY_SOON else warning
        when = f"disk full in {until(full.total_seconds())}: " if growth > 0 else ""
        yield worse(f"{when}{left}{'; ' + grows if grows else ''}", remedy)
    elif grows:
        yield note(f"{grows}, enough for {until(full.total_seconds())}: {left}", remedy)
    yield ok(left)


def _disk(look: Look) -> tuple[int, int] | tuple[None, None]:
    """Return the free and all bytes of the data directory's disk, if that is on this machine."""
    rows = look.rows("select setting from pg_settings where name = 'data_directory'")
    host = look.conn.info.host
    local = host.startswith("/") or host in ("", "localhost", "127.0.0.1", "::1")
    if not (rows and rows[0][0] and local and not look.pooled and Path(rows[0][0]).is_dir()):
        return None, None
    usage = shutil.disk_usage(rows[0][0])
    return usage.free, usage.total


@check("dead letters", "pgq.dead_letter")
def dead_letters(look: Look) -> Iterator[Finding]:
    """Events that consumers have given up, and that wait for a decision."""
    counts = look.judgement.readings.dead_letters or {}
    number = sum(counts.values())
    if number:
        (queue, consumer), most = max(counts.items(), key=lambda pair: pair[1])
        yield note(
            f"{plural(number, 'event')} given up, most by {consumer} on {queue} ({most:,})",
            f"pgqpy dead-letter list --queue {quote(queue)}; then replay or purge",
        )
    yield ok("no consumer has given up an event")


@check("poison tasks", "pgq_task.tasks")
def poison_tasks(look: Look) -> Iterator[Finding]:
    """Tasks whose workers were lost with them, and which come again, as stopped ones do not."""
    rows = look.rows(
        """
        select queue, id, attempts, count(*) over ()
          from pgq_task.tasks
         where error = 'the worker was lost' and attempts > 1 and status <> 'stopped'
         order by attempts desc
         limit %s
        """,
        NAMED,
    )
    for queue, number, attempts, _ in rows:
        yield warning(
            f"{queue}: the worker of task {number} was lost in its last attempt, of "
            f"{attempts}: it may kill workers"
            + (f" (as {rows[0][3] - 1} others)" if rows[0][3] > NAMED else ""),
            f"see it: pgqpy task show {number}; keep it back: pgqpy task stop {number}",
        )
    yield ok("no task has lost a worker more than once")


@check("dead rows")
def dead_rows(look: Look) -> Iterator[Finding]:
    """Dead rows of our relations, by PostgreSQL's statistics."""
    rows = look.rows(
        """
        select format('%%I.%%I', schemaname, relname), n_dead_tup, n_live_tup,
               clock_timestamp() - greatest(last_autovacuum, last_vacuum)
          from pg_stat_all_tables
         where schemaname = any (%s) and n_dead_tup > %s and n_dead_tup > n_live_tup
         order by n_dead_tup desc
        """,
        list(ALL_SCHEMAS),
        DEAD_ROWS,
    )
    for table, dead, live, age in rows[:NAMED]:
        last = f"last vacuumed {duration(age)} ago" if age is not None else "never vacuumed"
        yield warning(
            f"{table} has {dead:,} dead rows and {live:,} others, {last}",
            f"vacuum {table}; if they stay, see `horizon` and `old transactions`",
        )
    yield ok(f"no relation has more than {DEAD_ROWS:,} dead rows")


#: Name, largest number, whether the role may look, and the part that is used; most used first.
SEQUENCES = """
select format('%%I.%%I', schemaname, sequencename), max_value,
       has_sequence_privilege(
           format('%%I.%%I', schemaname, sequencename), 'select, usage'),
       ((last_value - min_value::numeric) / (max_value - min_value::numeric))::float8
  from pg_sequences
 where schemaname = any (%s) and not cycle and min_value >= 0
 order by 4 desc nulls last
"""


@check("sequences")
def sequences(look: Look) -> Iterator[Finding]:
    """How many of their numbers our sequences have used."""
    rows = look.rows(SEQUENCES, list(ALL_SCHEMAS))
    if hidden := sum(not seen for *_, seen, _ in rows):
        yield note(
            f"your role may not look at {hidden} of {plural(len(rows), 'sequence')}",
            "pgqpy doctor as pgq_owner's member, or as a superuser",
        )
    for name, most, _, used in rows:
        if (used or 0) > USED:
            yield (problem if used > NEARLY_USED else warning)(
                f"{name} has used {used:.1%} of its {most:,} numbers",
                "drop queues and consumers that are not needed; move to a new database in time "
                "(docs/moving-queues.md)",
            )
    yield ok(f"{plural(len(rows), 'sequence')}, none near its end")


@check("staging tables")
def staging_tables(look: Look) -> Iterator[Finding]:
    """Staging tables of jobs that have ended: older than a day, or of no role."""
    rows = look.rows("""
        select c.relname, pg_total_relation_size(c.oid), clock_timestamp() - made
          from pg_class c
         cross join to_timestamp(
               substring(c.relname from '_([0-9]{1,10})_[0-9]+$')::float8) made
         where c.relnamespace = to_regnamespace('pgq_staging') and c.relkind = 'r'
           and (clock_timestamp() - made > interval '1 day 1 hour'
                or not exists (select from aclexplode(c.relacl) a where a.grantee <> c.relowner))
         order by 2 desc
    """)
    for table, bytes_, age in rows[:NAMED]:
        yield warning(
            f"staging table {table} ({size(bytes_)}) is {duration(age)} old, and no job uses it",
            "select pgq.maint_staging(); the ticker's maintenance does it, if it runs",
        )
    yield ok("no staging table is left by a job")


@check("temporary tables")
def temporary_tables(look: Look) -> Iterator[Finding]:
    """Temporary tables whose session is gone, as after a crash (PostgreSQL 16 and newer)."""
    if look.conn.info.server_version < 160000:
        yield ok("autovacuum removes those of sessions that are gone")
        return
    rows = look.rows("""
        select n.nspname, count(*), min(c.relname)
          from pg_class c
          join pg_namespace n on n.oid = c.relnamespace
         where c.relpersistence = 't' and c.relkind = 'r'
           and n.nspname ~ '^pg_temp_[0-9]+$'
           and substr(n.nspname, 9)::int not in (select pg_stat_get_backend_idset())
         group by 1
    """)
    for name, number, table in rows[:NAMED]:
        yield warning(
            f"{plural(number, 'temporary table')} in {name} ({table}, ...) of a session that is "
            "gone: they hold back the horizon of transaction ids",
            f"drop schema {name} cascade, as a superuser; autovacuum does it, if it runs",
        )
    yield ok("all temporary tables belong to a session")
