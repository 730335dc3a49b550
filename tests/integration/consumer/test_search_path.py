"""Programs run no code that other roles have left on their search_path."""

from __future__ import annotations

from datetime import timedelta

import pytest

import pgqpy
from pgqpy.tasks import TableWorker
from pgqpy_consumers.spark import _ranges as ranges
from pgqpy_consumers.table_loader import TableLoader
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection
from tests.integration.test_security import SHADOWS

#: Each fits better than PostgreSQL's own, which takes any type.
TRAPS = """
create function public.unnest(text[]) returns setof text language sql as
    $$ insert into public.hit values ('unnest'); select pg_catalog.unnest($1) $$;
create function public.unnest(int2[]) returns setof int2 language sql as
    $$ insert into public.hit values ('unnest'); select pg_catalog.unnest($1) $$;
create function public.array_fill(timestamptz, int4[]) returns timestamptz[] language sql as
    $$ insert into public.hit values ('array_fill'); select pg_catalog.array_fill($1, $2) $$;
create function public.concat_ws(text, int8, oid, int4, oid) returns text language sql as
    $$ insert into public.hit values ('concat_ws'); select 'x' $$;
create function public.append(int8[], int8) returns int8[] language sql as
    $$ insert into public.hit values ('array_agg'); select pg_catalog.array_append($1, $2) $$;
create aggregate public.array_agg(int8) (sfunc = public.append, stype = int8[]);
create function public.times(numeric, int4) returns numeric language sql as
    $$ insert into public.hit values ('*'); select $1 operator(pg_catalog.*) $2::numeric $$;
create operator public.* (leftarg = numeric, rightarg = int4, function = public.times);
create function public.same(varchar, varchar) returns bool language sql as
    $$ insert into public.hit values ('varchar'); select pg_catalog.texteq($1, $2) $$;
create operator public.= (leftarg = varchar, rightarg = varchar, function = public.same);
"""


class Retries(pgqpy.Consumer):
    consumer = "retries"
    retry_policy = pgqpy.FixedDelay(60, attempts=5)

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        raise ValueError("not yet")


@pytest.fixture
def trapped(conn: Connection, dsn: str, tick: Tick) -> Connection:
    conn.execute("create table day (id int, at date, primary key (id, at)) partition by range (at)")
    conn.execute("create table mail (id varchar primary key)")
    conn.execute("select pgq_task.add_columns('mail')")
    conn.execute("insert into mail values (1)")
    conn.execute(SHADOWS)
    conn.execute(TRAPS)
    return conn


def test_no_function_of_others_is_called(
    trapped: Connection, dsn: str, queue: str, tick: Tick
) -> None:
    consumer = Retries(dsn, queue=queue)
    consumer.register()
    producer = pgqpy.Producer(queue)
    with pgqpy.connect(dsn) as conn:
        producer.insert_events(conn, [("t", "x")], delay=timedelta(hours=1))
        producer.insert_event(
            conn,
            '{"op":"INSERT","table":["public","day"],"pkey":["id","at"]}',
            '{"id":1,"at":"2026-11-27"}',
            extra1="public.day",
        )
    loader = TableLoader(dsn, target_dsn=dsn, queue=queue)
    loader.register()
    loader.partitions = "month"
    tick()
    consumer.run(until_empty=True)
    loader.run(until_empty=True)
    TableWorker(dsn, "mail", lambda conn, row: None, delete_done=True).run(until_empty=True)
    ranges.newest(trapped, queue)
    assert trapped.execute(
        "select (select count(*) from day), (select count(*) from mail),"
        " (select count(*) from pgq.retry_queue)"
    ).fetchall() == [(1, 0, 1)]
    assert trapped.execute("select distinct what from hit").fetchall() == []
