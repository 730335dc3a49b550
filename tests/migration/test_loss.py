"""`pgqpy migrate --down base` without --force: refused as long as there is something to lose."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgqpy import schema
from pgqpy.schema import SchemaError
from pgqpy.schema._database import ALL_SCHEMAS, NODE_SCHEMA, driver_of, transaction
from pgqpy.schema._loss import KEPT, OURS, what_is_lost_with
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import eventually

from .test_migrate import has_schema

ROOTS = """
select c.oid::regclass::text
  from pg_class as c
  join pg_namespace as n on n.oid = c.relnamespace
 where n.nspname like 'pgq%'
   and c.relkind in ('r', 'p', 'm', 'f')
   and not exists (select from pg_inherits where inhrelid = c.oid)
"""

#: What is done to a database, and what is then lost. Rows that take many steps are put in place.
CASES = {
    "a queue": ("select pgq.create_queue('flights')", r"1 queue \(flights\)"),
    "events": (
        (
            "select pgq.create_queue('flights');"
            "select pgq.insert_event('flights', 't', n::text) from generate_series(1, 3) n"
        ),
        "3 events",
    ),
    "a consumer": (
        "select pgq.create_queue('flights'); select pgq.register_consumer('flights', 'reader')",
        "1 subscription",
    ),
    "delayed events": (
        (
            "select pgq.create_queue('flights');"
            "select pgq.insert_event_at('flights', now() + interval '1 day', 't', 'late')"
        ),
        "1 waiting event",
    ),
    "dead letters": (
        (
            "insert into pgq._dead_letter (dl_queue, dl_consumer, dl_batch, dl_attempts, dl_reason,"
            " ev_id, ev_time) select 'flights', 'reader', 1, 1, 'no', n, now()"
            " from generate_series(1, 2) n"
        ),
        r"2 dead letters \(flights/reader\)",
    ),
    "parked events": (
        (
            "set session_replication_role = replica;"
            "insert into pgq._parked_event (pe_key, ev_id, ev_time, ev_txid)"
            " values (1, 1, now(), 1)"
        ),
        "1 parked event",
    ),
    "what remote consumers have done": (
        "select pgq_ext.set_last_tick('copy', 'flights', 7)",
        r"1 remote consumer \(copy\)",
    ),
    "replicated tables": (
        (
            "insert into pgq_ext.replica_table (rpt_queue, rpt_consumer, rpt_source_schema,"
            " rpt_source_table, rpt_target_schema, rpt_target_table)"
            " values ('q', 'c', 'a', 'b', 'here', 'flight');"
            "insert into pgq_ext.replica_sequence values ('q', 'c', 'a', 's', 'here',"
            " 'flight_seq');"
            "insert into pgq_ext.replica_event (rpe_table, ev_id, ev_txid, ev_type, ev_extra1)"
            " values (1, 1, 1, 'I', 'b')"
        ),
        (
            r"1 replicated table \(here.flight\); 1 replicated change; "
            r"1 replicated sequence \(here.flight_seq\)"
        ),
    ),
    "delayed events of an old root": (
        (
            "set session_replication_role = replica;"
            "insert into pgq_node.handed_over values ('flights', 1, now(), now())"
        ),
        "1 event handed over",
    ),
    "a node": (
        (
            "select pgq_node.register_location('flights', n, '', false)"
            " from unnest('{a,b}'::text[]) n;"
            "select pgq_node.create_node('flights', 'leaf', 'b', 'b_worker', 'a', 1, null)"
        ),
        r"^1 node \(flights/b\)$",
    ),
    "a task queue": ("select pgq_task.create_queue('mails')", r"1 task queue \(mails\)"),
    "tasks": (
        (
            "select pgq_task.create_queue('mails');"
            "select pgq_task.push('mails', to_jsonb(n)) from generate_series(1, 1200) n"
        ),
        "1,200 tasks",
    ),
    "logged actions": ("select pgq.log_action('a test')", "1 logged action"),
    "finished tasks": (
        (
            "select pgq_task.create_queue('mails');"
            "select pgq_task.set_queue_config('mails', 'keep', '1 day');"
            "select pgq_task.push('mails', '1'); select * from pgq_task.pop('mails')"
        ),
        "1 finished task",
    ),
    "periodic tasks": (
        (
            "select pgq_task.create_queue('mails');"
            "select pgq_task.set_periodic('clean', 'mails', '* * * * *', 'UTC', '1')"
        ),
        r"1 periodic task \(clean\)",
    ),
    "views of ours": (
        "create view public.queues as select queue_name from pgq.queue",
        r"1 dependent object \(view public.queues\)",
    ),
    "a table that is in no list": (
        (
            "create table pgq.notes as select 1; insert into pgq.notes values (2);"
            "alter table pgq.notes owner to pgq_owner"
        ),
        "2 pgq.notes rows",
    ),
    "a table of an application in a schema of ours": (
        "create table pgq.notes as select 1; insert into pgq.notes values (2)",
        r"1 unknown object \(table pgq.notes\)",
    ),
    "a function, a type and a sequence of an application in a schema of ours": (
        (
            "create function pgq.mine() returns int language sql return 1;"
            "create type pgq.colour as enum ('red'); create sequence pgq_task.numbers"
        ),
        r"3 unknown objects \(function pgq.mine\(\), sequence pgq_task.numbers, type pgq.colour\)",
    ),
    "what is made of ours elsewhere": (
        (
            "create function public.add(q text) returns int language sql"
            " return pgq.create_queue(q);"
            "create table public.log (info text default pgq.version(), task pgq_task.task)"
        ),
        (
            r"3 dependent objects \(column task of table public.log, default value for column info"
            r" of table public.log, function public.add\(text\)\)"
        ),
    ),
}


def fill(conn: Connection, statements: str) -> None:
    for statement in statements.split(";"):
        conn.execute(statement.encode())


@pytest.mark.one_database
@pytest.mark.parametrize("case", CASES)
def test_what_users_have_is_a_loss(node_dsn: str, case: str) -> None:
    statements, lost = CASES[case]
    with transaction(node_dsn) as connection:
        assert what_is_lost_with(connection) is None
        fill(driver_of(connection), statements)
        assert re.search(lost, what_is_lost_with(connection) or "")
        connection.rollback()


def test_each_kind_of_data_has_a_case(conn: Connection) -> None:
    everything = " ".join(lost for _, lost in CASES.values())
    for held in KEPT.values():
        assert re.search(rf"[\d,]+ {held.noun}s?\b", everything), held


def test_every_table_is_known_as_a_loss_or_as_none(node: Connection) -> None:
    """A new table must be put into one of the two lists of pgqpy.schema._loss."""
    fill(
        node,
        "select pgq.create_queue('flights');"
        "select pgq.set_queue_config('flights', 'key_window', '1 h');"
        "select pgq_task.create_queue('mails');"
        "select pgq_task.set_queue_config('mails', 'keep', '1 day');"
        "select pgq_task.set_limits('mails', 1); select pgq.create_staging('job')",
    )
    for number in range(10):
        node.execute("select pgq.create_queue(%s)", [f"q{number}"])
    tables = {name for (name,) in node.execute(ROOTS.encode())}
    # The version table comes with `pgqpy migrate`.
    known = set(KEPT) | {name for name in tables if OURS.fullmatch(name)}
    assert tables - known == set()
    assert set(KEPT) - tables == set()
    assert not [name for name in KEPT if OURS.fullmatch(name)]


def test_every_schema_of_ours_is_looked_into_and_removed(node_dsn: str, node: Connection) -> None:
    ours = (
        "select nspname from pg_namespace"
        " where nspname like 'pgq%' or nspowner::regrole::text like 'pgq%'"
    )
    found = {name for (name,) in node.execute(ours.encode())}
    assert found == {*ALL_SCHEMAS, NODE_SCHEMA}
    schema.downgrade(node_dsn, "base")
    assert node.execute(ours.encode()).fetchall() == []


def test_where_all_was_dropped_nothing_is_lost(dsn: str, conn: Connection) -> None:
    for case in ("delayed events", "finished tasks"):
        fill(conn, CASES[case][0])
    fill(
        conn,
        "select pgq.register_consumer('flights', 'reader'); select pgq.drop_queue('flights', true);"
        "select pgq_task.drop_queue('mails')",
    )
    schema.downgrade(dsn, "base")
    assert not has_schema(conn)


def test_what_is_written_while_it_looks_is_not_lost(
    dsn: str, conn: Connection, connect: Connect
) -> None:
    writer = connect(autocommit=False)
    writer.execute("select pgq_task.create_queue('mails')")
    with ThreadPoolExecutor(1) as pool:
        removal = pool.submit(schema.downgrade, dsn, "base")
        eventually(conn, "select exists (select from pg_locks where not granted)")
        writer.commit()
        with pytest.raises(SchemaError, match="mails"):
            removal.result()
    assert has_schema(conn)


def test_large_tables_are_not_counted_to_their_end(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqpy.schema._loss._MOST", 2)
    fill(conn, CASES["events"][0])
    with pytest.raises(SchemaError, match="more than 2 events"):
        schema.downgrade(dsn, "base")
