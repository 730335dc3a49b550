"""Programs written for PgQ work unchanged: the same functions, and the same answers to the same
statements, as Debian's ``pgq`` extension gives them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

pytestmark = pytest.mark.reference

FUNCTIONS = """
select proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid)
  from pg_proc p where pronamespace = 'pgq'::regnamespace
"""
COLUMNS = """
select c.relname, array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
                            order by a.attnum)
  from pg_class c join pg_attribute a on a.attrelid = c.oid
 where c.relnamespace = 'pgq'::regnamespace and c.relkind in ('r', 'v', 'p')
   and a.attnum > 0 and not a.attisdropped
 group by c.relname
"""

# Values of these columns are different at each run; that they are there is compared.
VOLATILE = {
    "ev_time",
    "ev_txid",
    "queue_switch_time",
    "queue_switch_step1",
    "queue_switch_step2",
    "ticker_lag",
    "ev_per_sec",
    "lag",
    "last_seen",
    "batch_start",
    "batch_end",
    "cur_tick_time",
    "prev_tick_time",
    "tick_time",
    "tick_snapshot",
    "sub_active",
    "ev_retry_after",
}


@pytest.fixture
def theirs(pgq_reference_dsn: str, connect: Connect) -> Connection:
    """A connection to Debian's PgQ."""
    return connect(pgq_reference_dsn)


def test_every_function_of_pgq_exists_with_the_same_arguments_and_results(
    conn: Connection, theirs: Connection
) -> None:
    expected = set(theirs.execute(FUNCTIONS.encode()).fetchall())
    assert len(expected) > 50
    assert expected - set(conn.execute(FUNCTIONS.encode()).fetchall()) == set()


def test_every_relation_of_pgq_can_be_read_with_the_same_columns(
    conn: Connection, theirs: Connection
) -> None:
    for connection in (conn, theirs):
        connection.execute("select pgq.create_queue('q')")
    ours: dict[str, list[str]] = dict(conn.execute(COLUMNS.encode()).fetchall())
    expected: dict[str, list[str]] = dict(theirs.execute(COLUMNS.encode()).fetchall())
    assert {"queue", "consumer", "tick", "subscription", "retry_queue", "event_template"} <= set(
        expected
    )
    for relation, columns in expected.items():
        if re.fullmatch(r"event_\d+_\d+", relation):
            # The tables themselves have another order, and a column more.
            assert set(columns) < set(ours[relation])
        else:
            # Additional columns come last.
            assert ours[relation][: len(columns)] == columns, relation


@dataclass(frozen=True)
class Answer:
    """The result of a statement: an error, or names and values of its columns."""

    statement: str
    failed: bool
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


def shown(column: str, value: Any) -> Any:
    if column in VOLATILE or isinstance(value, datetime):
        return "null" if value is None else "something"
    return value


def ask(conn: Connection, statement: str) -> Answer:
    try:
        cursor = conn.execute(statement.encode())
    except psycopg.Error:
        return Answer(statement, failed=True)
    if cursor.description is None:
        return Answer(statement, failed=False)
    columns = tuple(column.name for column in cursor.description)
    rows = tuple(
        tuple(shown(column, value) for column, value in zip(columns, row, strict=True))
        for row in cursor.fetchall()
    )
    return Answer(statement, failed=False, columns=columns, rows=rows)


TICK = """
select pgq.force_tick('q')
select pgq.ticker('q')
"""

NULLS = "null, null, null, null"

SCRIPTS = {
    "a queue's life": """
select pgq.create_queue('q')
select pgq.create_queue('q')
select pgq.create_queue(null)
select * from pgq.get_queue_info()
select * from pgq.get_queue_info('q')
select * from pgq.get_queue_info('nope')
select pgq.register_consumer('q', 'c')
select pgq.register_consumer('q', 'c')
select pgq.register_consumer('nope', 'c')
select pgq.register_consumer_at('q', 'd', 1)
select pgq.register_consumer_at('q', 'd', null)
select pgq.register_consumer_at('q', 'e', 99)
select * from pgq.get_consumer_info()
select * from pgq.get_consumer_info('q')
select * from pgq.get_consumer_info('q', 'c')
select * from pgq.get_consumer_info('nope', 'c')
select pgq.drop_queue('q')
select pgq.unregister_consumer('q', 'd')
select pgq.unregister_consumer('q', 'd')
select pgq.unregister_consumer('nope', 'd')
select pgq.drop_queue('q', true)
select pgq.drop_queue('q', true)
select * from pgq.get_queue_info()
select * from pgq.get_consumer_info()
select count(*) from pgq.queue
select count(*) from pgq.consumer
select count(*) from pgq.tick
""",
    "settings": """
select pgq.create_queue('q')
select pgq.set_queue_config('q', 'ticker_max_count', '7')
select pgq.set_queue_config('q', 'ticker_max_lag', '2 seconds')
select pgq.set_queue_config('q', 'ticker_idle_period', '3 minutes')
select pgq.set_queue_config('q', 'rotation_period', '4 hours')
select pgq.set_queue_config('q', 'ticker_paused', 'true')
select pgq.set_queue_config('q', 'external_ticker', 'true')
select pgq.set_queue_config('q', 'nope', 'true')
select pgq.set_queue_config('q', 'ticker_max_count', 'x')
select pgq.set_queue_config('nope', 'ticker_max_count', '7')
select * from pgq.get_queue_info('q')
select pgq.ticker('q')
select pgq.ticker()
select pgq.force_tick('q')
select pgq.set_queue_config('q', 'ticker_paused', 'false')
select pgq.ticker('q')
select pgq.ticker('q', 5, now(), 100)
select pgq.ticker('nope', 5, now(), 100)
select * from pgq.get_queue_info('q')
select pgq.grant_perms('q')
select pgq.tune_storage('q')
select pgq.quote_fqname('plain'), pgq.quote_fqname('a.b'), pgq.quote_fqname('A.b"c.d')
select pgq.upgrade_schema()
select pgq.version() >= '3'
""",
    # An event before the consumer comes: PgQ counts a sequence that has not been used as 1.
    "batches": f"""
select pgq.create_queue('q')
select pgq.insert_event('q', 't', 'zero')
{TICK}
select pgq.register_consumer('q', 'c')
select pgq.next_batch('q', 'c')
select * from pgq.next_batch_info('q', 'c')
select pgq.insert_event('q', 't', 'one')
select pgq.insert_event('q', 't', 'two', '1', '2', '3', '4')
select pgq.insert_event('q', null, null)
select pgq.insert_event('nope', 't', 'one')
select pgq.insert_event(null, 't', 'one')
select pgq.current_event_table('q')
select pgq.current_event_table('nope')
insert into pgq.event_1_0 (ev_id, ev_time) select nextval(queue_event_seq), now() from pgq.queue
select pgq.next_batch('q', 'c')
{TICK}
select pgq.ticker('q')
select * from pgq.next_batch_info('q', 'c')
select * from pgq.next_batch_info('q', 'c')
select pgq.next_batch('q', 'c')
select * from pgq.next_batch_custom('q', 'c', '1 hour', 1000, '1 hour')
select * from pgq.get_batch_info(1)
select * from pgq.get_batch_events(1)
select count(*) > 0 from pgq.batch_event_tables(1)
begin
select * from pgq.get_batch_cursor(1, 'cur', 2)
fetch all from cur
rollback
begin
select * from pgq.get_batch_cursor(1, 'cur', 10, 'ev_type is null and ev_data is null')
rollback
begin
select * from pgq.get_batch_cursor(1, 'cur', 0)
fetch 1 from cur
rollback
select * from pgq.get_batch_cursor(99, 'cur', 10)
rollback
select queue_name, last_tick, current_batch, next_tick from pgq.get_consumer_info('q', 'c')
select pgq.finish_batch(1)
select pgq.finish_batch(1)
select pgq.finish_batch(99)
select * from pgq.get_batch_info(1)
select * from pgq.get_batch_events(1)
select pgq.batch_event_sql(1)
select * from pgq.batch_event_tables(1)
select pgq.next_batch('q', 'c')
select * from pgq.get_consumer_info('q', 'c')
select pgq.next_batch('nope', 'c')
select pgq.next_batch('q', 'nope')
select pgq.insert_event_raw('q', 9999, '2020-01-01', 77, 5, 't', 'raw', 'a', 'b', 'c', 'd')
select pgq.insert_event_raw('q', 10000, '2020-01-01', null, null, 't', 'raw', 'a', 'b', 'c', 'd')
{TICK}
select pgq.next_batch('q', 'c')
select * from pgq.get_batch_events(2)
select * from pgq.subscription
select tick_queue, tick_id from pgq.tick order by 1, 2
select ev_id, ev_owner, ev_retry, ev_type, ev_data, ev_extra1 from pgq.event_template order by ev_id
select ev_id, ev_owner, ev_retry, ev_type, ev_data, ev_extra4 from pgq.event_1 order by ev_id
""",
    "retries": f"""
select pgq.create_queue('q')
select pgq.register_consumer('q', 'c')
select pgq.insert_event('q', 't', 'one')
select pgq.insert_event('q', 't', 'two')
{TICK}
select pgq.next_batch('q', 'c')
select pgq.event_retry(1, 1, 0)
select pgq.event_retry(1, 1, 0)
select pgq.event_retry(1, 99, 0)
select pgq.event_retry(99, 1, 0)
select pgq.event_retry(1, 2, '2020-01-01'::timestamptz)
select ev_queue, ev_id, ev_retry, ev_type, ev_data from pgq.retry_queue order by ev_id
select pgq.batch_retry(99, 0)
select pgq.finish_batch(1)
select pgq.event_retry(1, 1, 0)
select pgq.maint_retry_events()
select pgq.maint_retry_events()
{TICK}
select pgq.next_batch('q', 'c')
select * from pgq.get_batch_events(2)
select pgq.batch_retry(2, 3600)
select pgq.batch_retry(2, 0)
select pgq.finish_batch(2)
select pgq.maint_retry_events()
select pgq.event_retry_raw('q', 'c', '2020-01-01', 500, '2020-01-01', 3, 't', 'raw', {NULLS})
select pgq.event_retry_raw('q', 'nope', '2020-01-01', 501, '2020-01-01', 3, 't', 'd', {NULLS})
select pgq.event_retry_raw('nope', 'c', '2020-01-01', 501, '2020-01-01', 3, 't', 'd', {NULLS})
select pgq.maint_retry_events()
{TICK}
select pgq.next_batch('q', 'c')
select * from pgq.get_batch_events(3)
select pgq.unregister_consumer('q', 'c')
select count(*) from pgq.retry_queue
""",
    "batches of a size": f"""
select pgq.create_queue('q')
select pgq.set_queue_config('q', 'ticker_max_count', '1')
select pgq.register_consumer('q', 'c')
{
        "".join(
            f'''
select pgq.insert_event('q', 't', '{n}')
select pgq.insert_event('q', 't', '{n}')
select pgq.ticker('q')
'''
            for n in range(6)
        )
    }
select * from pgq.next_batch_custom('q', 'c', '1 hour', 1, null)
select * from pgq.next_batch_custom('q', 'c', null, 1000, null)
select * from pgq.next_batch_custom('q', 'c', null, null, '1 hour')
select * from pgq.next_batch_custom('q', 'c', null, 3, null)
select count(*) from pgq.get_batch_events(1)
select pgq.finish_batch(1)
select * from pgq.next_batch_custom('q', 'c', null, 5, '1 hour')
select count(*) from pgq.get_batch_events(2)
select pgq.finish_batch(2)
select * from pgq.next_batch_custom('q', 'c', null, 5, null)
select * from pgq.next_batch_info('q', 'c')
""",
    "rotation": f"""
select pgq.create_queue('q')
select pgq.set_queue_config('q', 'rotation_period', '0 seconds')
select pgq.register_consumer('q', 'c')
{TICK}
select pgq.next_batch('q', 'c')
select pgq.finish_batch(1)
select * from pgq.maint_operations() where func_name <> 'vacuum'
select pgq.maint_rotate_tables_step1('q')
select pgq.maint_rotate_tables_step2()
select queue_cur_table from pgq.get_queue_info('q')
select pgq.current_event_table('q')
select pgq.insert_event('q', 't', 'one')
select pgq.maint_rotate_tables_step1('q')
select pgq.maint_rotate_tables_step2()
select queue_cur_table from pgq.get_queue_info('q')
{TICK}
select pgq.next_batch('q', 'c')
select * from pgq.get_batch_events(2)
select pgq.finish_batch(2)
select pgq.maint_rotate_tables_step1('nope')
""",
    "maintenance": """
select pgq.create_queue('q')
update pgq.queue set queue_extra_maint = '{baz,foo.bar,pg_catalog.lower}' where queue_name = 'q'
select * from pgq.maint_operations() where func_name <> 'vacuum'
select pgq.tune_storage('q'), pgq.tune_storage('nope'), pgq.tune_storage(null)
create table public.a ()
create table public.b ()
grant select on public.a to public
grant insert on public.a to pgq_writer with grant option
select pgq._grant_perms_from('public', 'a', 'public', 'b')
""",
    "sequences": """
create sequence public.seq
create sequence public."S.eq" start 7
select pgq.seq_getval('seq'), pgq.seq_getval('public.S.eq')
select pgq.seq_setval('seq', 10)
select pgq.seq_setval('seq', 5)
select pgq.seq_setval('public.seq', 15)
select pgq.seq_getval('seq'), pgq.seq_getval('public.seq')
select pgq.seq_setval('public.S.eq', 8)
select setval('public.seq', 30, false)
select pgq.seq_setval('seq', 20), pgq.seq_getval('seq')
select nextval('public.seq')
select pgq.seq_setval('nope', 1)
select pgq.seq_setval(null, 1), pgq.seq_setval('seq', null), pgq.seq_getval(null)
""",
    "names": """
select pgq.create_queue('it''s "a" queue')
select pgq.register_consumer('it''s "a" queue', 'it''s "a" consumer')
select pgq.insert_event('it''s "a" queue', 't', 'one')
select pgq.force_tick('it''s "a" queue')
select pgq.ticker('it''s "a" queue')
select pgq.next_batch('it''s "a" queue', 'it''s "a" consumer')
select * from pgq.get_batch_events(1)
select * from pgq.get_batch_info(1)
select pgq.finish_batch(1)
select pgq.drop_queue('it''s "a" queue', true)
""",
}


CAUGHT = """
do $$ begin
    perform pgq.next_batch('nope', 'c');
exception when {condition} then
    raise notice 'caught';
end $$
"""


def test_errors_have_codes_of_their_own_that_raise_exception_does_not_catch(
    conn: Connection, theirs: Connection
) -> None:
    """Checks docs/pgq.md: handlers of PgQ's errors alone, and of both."""
    theirs.execute(CAUGHT.format(condition="raise_exception").encode())
    with pytest.raises(psycopg.ProgrammingError) as caught:
        conn.execute(CAUGHT.format(condition="raise_exception").encode())
    assert not isinstance(caught.value, psycopg.errors.RaiseException)
    assert caught.value.sqlstate == "PQ001"
    for condition in ("others", "sqlstate 'PQ001' or raise_exception"):
        for connection in (conn, theirs):
            connection.execute(CAUGHT.format(condition=condition).encode())


def test_insert_event_of_three_arguments_does_not_call_the_one_of_seven(
    conn: Connection, theirs: Connection
) -> None:
    """Checks docs/pgq.md. The triggers do call it, in both."""
    seen = []
    for connection in (conn, theirs):
        connection.execute("select pgq.create_queue('q')")
        connection.execute(
            "create or replace function pgq.insert_event(queue_name text, ev_type text,"
            " ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text)"
            " returns bigint language sql as 'select 4711::bigint'"
        )
        (number,) = connection.execute("select pgq.insert_event('q', 't', 'd')").fetchone() or ()
        connection.execute("create table public.t (id int primary key)")
        connection.execute(
            "create trigger t after insert on public.t for each row execute function"
            " pgq.logutriga('q')"
        )
        connection.execute("insert into public.t values (1)")
        seen.append((number, ops.value(connection, "select count(*) from pgq.event_template")))
    assert seen == [(1, 1), (4711, 0)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_statements_get_the_same_answers(
    conn: Connection, theirs: Connection, name: str
) -> None:
    statements = [line for line in SCRIPTS[name].splitlines() if line]
    answers = [(ask(conn, statement), ask(theirs, statement)) for statement in statements]
    for ours, reference in answers:
        assert ours == reference
