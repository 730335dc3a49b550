"""Checks of the schema, the ticker, the connection, the clocks and the server's settings."""

from __future__ import annotations

import re
import select
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGresult

import pgqpy
from pgqpy._runtime.words import ago, duration, plural
from pgqpy.connection import Connection
from pgqpy.doctor._finding import Finding, note, ok, problem, warning
from pgqpy.doctor._look import Look, check
from pgqpy.doctor._queues import LEAD
from pgqpy.doctor._status import QueueState
from pgqpy.schema._database import SCHEMAS
from pgqpy.schema._fingerprint import catalog_of, sources
from pgqpy.schema._sources import SQL_DIR, history

#: The difference of clocks above which it is reported.
CLOCKS = timedelta(seconds=2)
#: The part of the queue of notifications that may be full.
NOTIFICATIONS = 0.5
#: The seconds that a pooler may take to lend a session.
PROBE = 0.5
ZERO = timedelta()


@check("schema")
def schema(look: Look) -> Iterator[Finding]:
    """The revision and the functions of the schema in the database, and those of this release."""
    found = look.rows("""
        select r.rolname, r.rolsuper or r.rolname = 'pgq_owner',
               obj_description(to_regclass('pgq.alembic_version'), 'pg_class'),
               to_regclass('pgq.alembic_version') is not null
          from pg_namespace n
          join pg_roles r on r.oid = n.nspowner
         where n.nspname = 'pgq'
    """)
    if not found:
        yield problem("the schema pgq is not installed in this database", "pgqpy migrate")
        return
    [(owner, ours, noted, installed)] = found
    if not (ours and installed):
        yield problem(
            f"there is a schema pgq of role {owner} that was not installed by pgqpy",
            "choose another database, or drop or rename that schema; "
            "restore a dump as a superuser, or as a member of pgq_owner",
        )
        return
    at, known = look.value("select version_num from pgq.alembic_version"), history()
    if at not in {each.id for each in known}:
        yield warning(
            f"the schema is at revision {at}, which pgqpy {pgqpy.__version__} does not know: "
            "a newer one has migrated it",
            "upgrade pgqpy here",
        )
    elif at != known[-1].id:
        yield warning(
            f"the schema is at revision {at}, older than {known[-1].id} of this pgqpy",
            "pgqpy migrate",
        )
    elif noted and noted.split()[0] != sources():
        yield warning("the functions of the schema are those of another release", "pgqpy migrate")
    elif noted and noted.split()[1] != catalog_of(look.conn):
        yield warning(
            "functions, owners or rights were changed since `pgqpy migrate`, or restored",
            "pgqpy migrate",
        )
    yield ok(f"revision {at}, that of pgqpy {pgqpy.__version__}")


@check("rights")
def rights(look: Look) -> Iterator[Finding]:
    """Owners of our objects, and the roles that may call our functions or create in our schemas."""
    wanted = [(role, name) for role, names in _granted().items() for name in names]
    differences = look.rows(
        """
        with wanted as (
            select w.role, p.oid
              from unnest(%(roles)s::text[], %(names)s::text[]) as w (role, name)
              join pg_proc p on p.oid = to_regprocedure('pgq.' || w.name)),
        ours as (select * from pg_namespace where nspname ~ '^pgq(_|$)'),
        functions as (
            select p.oid, p.proname, p.proowner, a.grantee,
                   case a.grantee when 0 then 'public' else a.grantee::regrole::text end as role
              from pg_proc p
             cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
             where p.pronamespace::regnamespace::text = any (%(schemas)s))
        select format('%%s may not execute %%s', role, oid::regprocedure),
               format('grant execute on function %%s to %%s', oid::regprocedure, role)
          from wanted
         where not has_function_privilege(role, oid, 'execute')
        union all
        select format('%%s may execute %%s', role, oid::regprocedure),
               format('revoke execute on function %%s from %%s', oid::regprocedure, role)
          from functions
         where case when grantee = 0
                    then proname <> 'version'
                         and oid not in (select oid from wanted where role = 'public')
                    else grantee <> proowner and role !~ '^pgq_(reader|writer|admin)$' end
        union all
        select format('%%s may create objects in schema %%s', role, nspname),
               format('revoke create on schema %%s from %%s', nspname, role)
          from ours
         cross join aclexplode(nspacl) a
         cross join lateral (
               select case grantee when 0 then 'public' else grantee::regrole::text end as role) r
         where a.privilege_type = 'CREATE' and a.grantee <> nspowner
        union all
        select format('%%s belongs to %%s', c.oid::regclass, c.relowner::regrole),
               format('alter table %%s owner to pgq_owner', c.oid::regclass)
          from pg_class c join ours on ours.oid = c.relnamespace
         where c.relkind in ('r', 'p', 'v', 'S') and c.relowner <> 'pgq_owner'::regrole
        union all
        select 'pgq_owner may log in, or is a superuser', 'alter role pgq_owner nologin nosuperuser'
          from pg_roles where rolname = 'pgq_owner' and (rolcanlogin or rolsuper)
        """,
        roles=[role for role, _ in wanted],
        names=[name for _, name in wanted],
        schemas=list(SCHEMAS),
    )
    if differences:
        message, remedy = differences[0]
        more = f" (and {len(differences) - 1} more)" if differences[1:] else ""
        yield warning(
            f"{message}, other than documented{more}", f"{remedy}; all at once: pgqpy migrate"
        )
    yield ok(f"{plural(len(wanted), 'grant')} as documented, no others")


def _granted() -> dict[str, list[str]]:
    """Return the functions of schema pgq by the role that may call them: see sql/pgq/grants.sql."""
    text = (SQL_DIR / "pgq" / "grants.sql").read_text()
    arrays = re.findall(r"(\w+)_functions constant text\[\] := array\[(.*?)\];", text, re.DOTALL)
    return {
        role if role == "public" else f"pgq_{role}": re.findall(r"'([^']+)'", names)
        for role, names in arrays
    }


@check("ticker")
def ticker(look: Look) -> Iterator[Finding]:
    """The session that holds the ticker's lead, and the version of its program."""
    state = look.judgement
    pid = state.readings.server.ticker_pid
    ticked = [each for each in state.queues if each.state is not QueueState.EXTERNAL]
    if state.readings.server.standby_lag is not None:
        yield note("this server is a standby: the ticker leads on the primary")
    elif any(lock.lock == LEAD for lock in state.readings.foreign_locks):
        yield problem(
            "no ticker leads: a session without any role of pgq has taken the lead's lock",
            "end that session: see `foreign locks`",
        )
    elif pid is not None:
        [(name,)] = look.rows(
            "select (select application_name from pg_stat_activity where pid = %s)", pid
        ) or [(None,)]
        told = re.fullmatch(r"pgqpy ticker (\S+)", name or "")
        if told and told[1] != pgqpy.__version__:
            yield warning(
                f"the ticker that leads in session {pid} is of version {told[1]}, and this is "
                f"{pgqpy.__version__}",
                "install the same version, and start the ticker again",
            )
        yield ok(f"leads in session {pid} ({name or 'no name'})")
    elif not ticked:
        yield note("no ticker leads, and no queue needs one")
    else:
        ages = [each.tick_age for each in ticked if each.tick_age is not None]
        last = f"the newest tick was made {ago(min(ages))}" if ages else "there are no ticks"
        late = any(each.state is QueueState.NO_TICKER for each in ticked)
        yield (problem if late else warning)(
            f"no pgqpy ticker leads; {last}",
            "keep `pgqpy ticker` running; not if pgqd or pg_cron makes the ticks",
        )


@check("pooler", commits=True)
def pooler(look: Look) -> Iterator[Finding]:
    """Whether a pooler stands between, and whether it lends sessions for one transaction only.

    It does if another connection, or the next transaction of this one, gets another session.
    """
    pid = _session(look)
    if pid == look.conn.info.backend_pid:
        yield ok("none: this connection has a session of its own")
        return
    with _another(look.conn) as other:
        look.pooled = _session_of(other) == pid or _session(look) != pid
    if look.pooled:
        yield note(
            "this connection goes through a pooler in transaction mode: LISTEN and sessions' locks "
            "do not work through it",
            "give the ticker a direct connection, and consumers one as listen_dsn",
        )
    yield ok("a pooler in session mode")


def _session(look: Look) -> int:
    with look.transaction():
        return int(look.value("select pg_backend_pid()"))


@contextmanager
def _another(conn: Connection) -> Iterator[Connection]:
    conninfo = make_conninfo(conn.info.dsn, password=conn.info.password or None)
    with closing(psycopg.connect(conninfo, autocommit=True, connect_timeout=2)) as other:
        yield other


def _session_of(conn: Connection) -> int | None:
    """Return the process that serves a transaction, which stays open; None if a full pool makes it
    wait."""
    conn.pgconn.send_query(b"begin; select pg_catalog.pg_backend_pid()")
    answers: list[PGresult] = []
    while True:
        while conn.pgconn.is_busy():
            if not select.select([conn.fileno()], [], [], PROBE)[0]:
                return None
            conn.pgconn.consume_input()
        if (answer := conn.pgconn.get_result()) is None:
            return int(answers[-1].get_value(0, 0) or 0)
        answers.append(answer)


@check("notifications", commits=True)
def notifications(look: Look) -> Iterator[Finding]:
    """A notification's way from this session to itself, and how full the server's queue is."""
    with look.transaction():
        standby, used = look.rows("select pg_is_in_recovery(), pg_notification_queue_usage()")[0]
    if standby:
        yield note("this server is a standby: it has no notifications, so consumers poll")
    elif look.pooled:
        yield note("not tried through a pooler: see `pooler`")
    else:
        channel = f"pgqpy_doctor_{uuid4().hex}"
        sent = time.monotonic()
        with look.transaction():
            look.conn.execute(f"listen {channel}".encode())
            look.conn.execute(f"notify {channel}".encode())
        came = any(each.channel == channel for each in look.conn.notifies(timeout=1, stop_after=1))
        took = timedelta(seconds=time.monotonic() - sent)
        with look.transaction():
            look.conn.execute(f"unlisten {channel}".encode())
        if not came:
            yield problem(
                "a notification did not come back within 1 s, so consumers only poll",
                "connect to PostgreSQL directly, and see the server's log",
            )
        yield ok(f"a notification came back in {duration(took)}")
    if used > NOTIFICATIONS:
        yield warning(
            f"the server's queue of notifications is {used:.0%} full: a session that has listened "
            "does not end its transaction. When it is full, producers fail",
            "end the session that the server's log names, or the oldest of `old transactions`",
        )


@check("clock")
def clock(look: Look) -> Iterator[Finding]:
    """The server's clock beside this machine's, and whether it was ahead when it made a tick."""
    sent = time.time()
    server = float(look.value("select extract(epoch from clock_timestamp())::float8"))
    took = time.time() - sent
    skew = timedelta(seconds=server - sent - took / 2)
    ahead = max((-each.tick_age for each in look.judgement.queues if each.tick_age), default=ZERO)
    if abs(skew) - timedelta(seconds=took / 2) > CLOCKS:
        yield warning(
            f"the server's clock is {duration(abs(skew))} {'ahead' if skew > ZERO else 'behind'} "
            "of this machine's: times that programs give are off by as much",
            "run NTP on both machines; see docs/operations.md, If the clock was wrong",
        )
    if ahead > CLOCKS:
        yield warning(
            f"the last tick of a queue is {duration(ahead)} in the future: the server's clock was "
            "ahead, or is behind now",
            "see docs/operations.md, If the clock was wrong",
        )
    yield ok(f"the server's clock differs by {duration(abs(skew))} from this machine's")


_SWITCH_ON = "alter system set {name} = on; then: select pg_reload_conf()"
_BY_ROLE = "alter role NAME set {name} = 0, for the roles of consumers"
#: For each setting: the value that is harmless, the verdict on others, why, and what mends it.
HURTS = {
    "autovacuum": ("on", warning, "dead rows stay, and tables grow", _SWITCH_ON),
    "track_counts": ("on", warning, "autovacuum does not see dead rows", _SWITCH_ON),
    "track_activities": ("on", note, "what holds up rotation cannot be seen", _SWITCH_ON),
    "max_prepared_transactions": (
        "0",
        note,
        "producers cannot wake the ticker: the first event after a pause waits up to 50 ms",
        "alter system set {name} = 0, and restart the server, if two-phase commit is not used",
    ),
    "statement_timeout": ("0", note, "statements of consumers and migrations end then", _BY_ROLE),
    "idle_in_transaction_session_timeout": (
        "0",
        note,
        "a consumer loses its session, and its batch comes again, if it processes for longer",
        _BY_ROLE,
    ),
    "transaction_timeout": ("0", note, "batches and tasks that take longer fail", _BY_ROLE),
}


@check("settings")
def settings(look: Look) -> Iterator[Finding]:
    """Settings of the server, of databases and of the roles of pgq that hurt."""
    rows = look.rows(
        """
        select name, concat_ws(' ', reset_val, unit), '', null
          from pg_settings
         where name = any (%(names)s)
        union all
        select setting[1], setting[2], format(' of role %%I', r.rolname),
               format('alter role %%I', r.rolname)
                   || case when s.setdatabase <> 0
                           then format(' in database %%I', current_database()) else '' end
          from pg_db_role_setting s
          join pg_roles r on r.oid = s.setrole
         cross join unnest(s.setconfig) as config
         cross join regexp_match(config, '^([^=]*)=(.*)$') as setting
         where setting[1] = any (%(names)s)
           and s.setdatabase in (
                   0, (select oid from pg_database where datname = current_database()))
           and r.rolname <> current_user
           and not r.rolsuper
           and (pg_has_role(r.oid, 'pgq_reader', 'member')
                or pg_has_role(r.oid, 'pgq_writer', 'member'))
        """,
        names=list(HURTS),
    )
    for name, value, whose, alter in rows:
        harmless, verdict, why, remedy = HURTS[name]
        if value.split()[0] != harmless:
            told = f"{alter} set {name} = {harmless}" if alter else remedy.format(name=name)
            yield verdict(f"{name}{whose} is {value}: {why}", told)
    yield ok(f"{plural(len(rows), 'setting')}, none hurts")
