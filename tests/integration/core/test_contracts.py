"""Contracts: what does not fit does not get in, and versions replace each other safely."""

from __future__ import annotations

from typing import LiteralString

import pytest
from psycopg.types.json import Jsonb

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

ORDER = {
    "type": "object",
    "properties": {
        "lines": {"type": "array", "items": {"properties": {"price": {"type": "number"}}}}
    },
    "required": ["lines"],
}
GOOD = '{"lines": [{"price": 1}, {"price": 2.5}]}'
BAD = '{"lines": [{"price": 1}, {"price": "2"}]}'


def set_contract(
    conn: Connection,
    queue: str,
    schema: object,
    ev_type: str | None = "order",
    compatibility: str | None = None,
    enforced: bool | None = None,
) -> int:
    version: int = ops.value(
        conn,
        "select pgq.set_contract(%s, %s, %s, %s, %s)",
        *(queue, ev_type, Jsonb(schema), compatibility, enforced),
    )
    return version


WAYS: dict[str, LiteralString] = {
    "relation": "insert into pgq_queue.test_queue (ev_type, ev_data) values ('order', %(data)s)",
    "relation, rows": "insert into pgq_queue.test_queue (ev_type, ev_data)"
    " select 'order', d from unnest(array[%(good)s, %(data)s]) d",
    "insert_event": "select pgq.insert_event('test_queue', 'order', %(data)s)",
    "insert_event, all": "select pgq.insert_event('test_queue', 'order', %(data)s, '', '', '', '')",
    "insert_events": "select pgq.insert_events('test_queue', '{a,b}', array[%(good)s, %(data)s])",
    "insert_events, all": "select pgq.insert_events('test_queue', '{o}', array[%(data)s], '{x}')",
    "insert_event_raw": "select pgq.insert_event_raw('test_queue', 7, now(), 1, 1, 'order',"
    " %(data)s, '', '', '', '')",
    "insert_event_once": "select pgq.insert_event_once('test_queue', 'k', 'order', %(data)s)",
    "insert_events_once": "select pgq.insert_events_once('test_queue', '{k}', '{o}',"
    " array[%(data)s])",
    "once, later": "select pgq.insert_event_once('test_queue', 'k', 'order', %(data)s,"
    " deliver_at => now() + '1 h')",
    "many once, later": "select pgq.insert_events_once('test_queue', '{k}', '{o}',"
    " array[%(data)s], i_times => array[now() + '1 h'])",
    "insert_event_at": "select pgq.insert_event_at('test_queue', now() + '1 h', 'order', %(data)s)",
    "insert_events_at": "select pgq.insert_events_at('test_queue', array[now()], '{o}',"
    " array[%(data)s])",
    "COPY": "insert into pgq.event_1_0 (ev_type, ev_data) values ('order', %(data)s)",
    "partitioned table": "insert into pgq.event (ev_id, ev_type, ev_data, ev_slot)"
    " values (1, 'order', %(data)s, 0)",
    "capture": "insert into captured values (1, %(data)s::jsonb -> 'lines')",
}


@pytest.mark.parametrize("guarded", [False, True])
def test_what_does_not_fit_never_gets_in(conn: Connection, queue: str, guarded: bool) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [queue])
    conn.execute("create table captured (id int primary key, lines jsonb)")
    conn.execute("select pgq.capture_table('captured', 'test_queue')")
    set_contract(conn, queue, ORDER, None, enforced=True)
    if guarded:
        assert ops.value(conn, "select pgq._guard_queues()")
    for way, statement in WAYS.items():
        with ops.refused("PQ054", "at /lines/1/price: expected number, found string"):
            conn.execute(statement, {"good": GOOD, "data": BAD})
        with conn.transaction(force_rollback=True):
            conn.execute(statement, {"good": GOOD, "data": GOOD})
            stored: LiteralString = (
                "select (select count(*) from pgq.event where ev_txid > 0)"
                " + (select count(*) from pgq.delayed)"
            )
            assert ops.value(conn, stored), way
    with ops.refused("PQ054"):
        ops.copy(conn, "pgq.event_1_0", [GOOD, BAD])
    assert ops.value(conn, "select count(*) from pgq.waiting_event") == 0
    assert ops.value(conn, "select count(*) from pgq_queue.test_queue") == 0
