"""Bad input through SQL: an error with a code and a remedy, and nothing half done."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection

CONTENTS = {
    "queues": "select * from pgq.queue order by queue_id",
    "consumers": "select * from pgq.consumer order by co_id",
    "subscriptions": "select * from pgq.subscription order by sub_id",
    "ticks": "select * from pgq.tick order by tick_queue, tick_id",
    "events": "select * from pgq.event order by ev_id",
    "retries": "select * from pgq.retry_queue order by ev_id",
    "relations": "select relname from pg_class where relnamespace = 'pgq'::regnamespace order by 1",
}


def everything(conn: Connection) -> bytes:
    """All that the schema holds."""
    return pickle.dumps({what: conn.execute(q.encode()).fetchall() for what, q in CONTENTS.items()})


@pytest.fixture
def batch(conn: Connection, queue: str) -> int:
    """An open batch of consumer "c", number 1, with event 1."""
    ops.register(conn, queue, "c")
    return ops.open_batch(conn, queue, "c", "event")


@pytest.fixture
def unchanged(conn: Connection, batch: int) -> Iterator[None]:
    """Fails the test if anything in the schema has changed."""
    before = everything(conn)
    yield
    assert everything(conn) == before


Q, NO_QUEUE, NO_CONSUMER = "test_queue", "nope", "unknown"

REFUSED: list[tuple[str, str, Sequence[object]]] = [
    # no such queue
    ("PQ001", "pgq.insert_event(%s, 't', 'd')", [NO_QUEUE]),
    ("PQ001", "pgq.insert_event(%s, 't', 'd', null, null, null, null)", [None]),
    ("PQ001", "pgq.insert_events(%s, array['t'], array['d'])", [NO_QUEUE]),
    ("PQ001", "pgq.current_event_table(%s)", [NO_QUEUE]),
    ("PQ001", "pgq.register_consumer(%s, 'c')", [NO_QUEUE]),
    ("PQ001", "pgq.register_consumer(%s, 'c', 'first')", [NO_QUEUE]),
    ("PQ001", "pgq.find_tick(%s, 'first')", [NO_QUEUE]),
    ("PQ001", "pgq.next_batch(%s, 'c')", [NO_QUEUE]),
    ("PQ001", "pgq.next_batch_custom(%s, 'c', null, 1, null)", [NO_QUEUE]),
    ("PQ001", "pgq.drop_queue(%s)", [NO_QUEUE]),
    ("PQ001", "pgq.drop_queue(%s, true)", [NO_QUEUE]),
    ("PQ001", "pgq.ticker(%s)", [NO_QUEUE]),
    ("PQ001", "pgq.set_queue_config(%s, 'ticker_paused', 'true')", [NO_QUEUE]),
    ("PQ001", "pgq.tick_range_sql(%s, 1, 2)", [NO_QUEUE]),
    ("PQ001", "pgq.snapshot_range_sql(%s, 1, '1:1:', 2, '2:2:')", [NO_QUEUE]),
    ("PQ001", "pgq.tick_channel(%s)", [NO_QUEUE]),
    ("PQ001", "pgq.advance_consumer(%s, 'c', 1)", [NO_QUEUE]),
    ("PQ001", "pgq.insert_event(%s, 't', 'd')", ["x" * 300]),
    # no such consumer
    ("PQ002", "pgq.next_batch(%s, %s)", [Q, NO_CONSUMER]),
    ("PQ002", "pgq.next_batch_info(%s, %s)", [Q, NO_CONSUMER]),
    ("PQ002", "pgq.next_batch_custom(%s, %s, null, null, null)", [Q, NO_CONSUMER]),
    ("PQ002", "pgq.next_batch_upto(%s, %s, 10)", [Q, NO_CONSUMER]),
    ("PQ002", "pgq.snapshot_range_sql(%s, 1, '1:1:', 2, '2:2:', %s)", [Q, NO_CONSUMER]),
    # names
    *(
        ("PQ003", call, [name])
        for call in ("pgq.create_queue(%s)", f"pgq.register_consumer('{Q}', %s)")
        for name in (None, "", "x" * 256, "é" * 128)
    ),
    # batches and events
    *(
        ("PQ004", f"pgq.{call}", [wrong])
        for call in (
            "get_batch_events(%s)",
            "batch_event_sql(%s)",
            "batch_event_tables(%s)",
            "event_retry(%s, 1, 10)",
            "event_retry(%s, 1, now())",
            "batch_retry(%s, 10)",
        )
        for wrong in (0, -1, 999, None)
    ),
    ("PQ005", "pgq.event_retry(%s, %s, 10)", [1, 999]),
    ("PQ005", "pgq.event_retry(%s, %s, 10)", [1, None]),
    ("PQ005", "pgq.event_retry_many(%s, array[1, 999], array[now(), now()])", [1]),
    ("PQ007", "pgq.drop_queue(%s)", [Q]),
    # ticks
    ("PQ008", "pgq.register_consumer_at(%s, 'new', 999)", [Q]),
    ("PQ008", "pgq.register_consumer_at(%s, 'c', 999)", [Q]),
    *(("PQ008", "pgq.advance_consumer(%s, 'new', %s)", [Q, tick]) for tick in (0, 999, None)),
    ("PQ008", "pgq.advance_consumer(%s, 'c', null)", [Q]),
    ("PQ008", "pgq.tick_range_sql(%s, 1, 999)", [Q]),
    ("PQ008", "pgq.tick_range_sql(%s, null, 1)", [Q]),
    ("PQ008", "pgq.snapshot_range_sql(%s, 0, '1:1:', 1, '2:2:')", [Q]),
    ("PQ008", "pgq.snapshot_range_sql(%s, 1, '1:1:', 2, null)", [Q]),
    ("PQ011", "pgq.tick_range_sql(%s, 2, 1)", [Q]),
    ("PQ011", "pgq.snapshot_range_sql(%s, 2, '1:1:', 1, '2:2:')", [Q]),
    ("PQ016", "pgq.advance_consumer(%s, 'c', 1)", [Q]),
    # parameters
    ("PQ011", "pgq.set_queue_config(%s, 'no_such_thing', '1')", [Q]),
    ("PQ011", "pgq.set_queue_config(%s, 'queue_name', 'x')", [Q]),
    ("PQ011", "pgq.set_queue_config(%s, null, '1')", [Q]),
    ("PQ011", "pgq.set_queue_config(%s, 'ticker_max_count', 'many')", [Q]),
    ("PQ011", "pgq.set_queue_config(%s, 'ticker_max_count', null)", [Q]),
    ("PQ011", "pgq.set_queue_config(%s, 'ticker_max_lag', '1''; drop table x')", [Q]),
    ("PQ011", "pgq.set_queue_config(%s, 'key_window', 'infinity')", [Q]),
    ("PQ011", "pgq.set_queue_config(%s, 'rotation_period', '300000 years')", [Q]),
    ("PQ011", "pgq.set_queue_config(%s, 'ticker_max_lag', '-1 second')", [Q]),
    # They would lead out of all times, where maintenance adds them; and a year has 365.25 days.
    *(
        ("PQ011", "pgq.set_queue_config(%s, %s, %s)", [Q, parameter, value])
        for parameter in ("rotation_period", "key_window", "keep", "ticker_latency")
        for value in (
            "-5965232 years 2147483647 days",
            "-1 year 365 days 6 hours",
            "-1 month 40 days",
            "106751998 days -2562047788 hours",
        )
    ),
    *(
        ("PQ011", "pgq.set_queue_config(%s, 'keep', %s)", [Q, value])
        for value in ("0", "-1 day", "infinity", "long", "")
    ),
    *(
        ("PQ011", "pgq.set_queue_config(%s, 'keep_bytes', %s)", [Q, value])
        for value in ("0", "-1", "many", "9223372036854775808")
    ),
    *(
        ("PQ011", "pgq.find_tick(%s, %s)", [Q, start])
        for start in (
            *(None, "", "last", "0", "-1", "1000000", "9223372036854775808"),
            *("infinity", "-infinity", "2026-13-01", "2026-11-21 08:30 Nowhere", "tomorrow"),
        )
    ),
    ("PQ011", "pgq.register_consumer(%s, 'new', null)", [Q]),
    ("PQ011", "pgq.create_group(%s, 'g', 2, 'ev_extra1', i_start => 'tomorrow')", [Q]),
    ("PQ011", "pgq.insert_events(%s, array['t'], array['d', 'e'])", [Q]),
    ("PQ011", "pgq.next_batch_upto(%s, 'c', 0)", [Q]),
    ("PQ011", "pgq.event_retry_many(%s, array[1], array[]::timestamptz[])", [1]),
    # ticks from elsewhere
    ("PQ014", "pgq.ticker(%s, 99, now(), 99)", [Q]),
]


@pytest.mark.usefixtures("unchanged")
def test_bad_input_gets_a_code_and_a_hint_and_changes_nothing(
    conn: Connection, subtests: pytest.Subtests
) -> None:
    for sqlstate, call, parameters in REFUSED:
        with subtests.test(call, parameters=parameters), ops.refused(sqlstate):
            conn.execute(f"select {call}".encode(), parameters)


@pytest.mark.usefixtures("unchanged")
def test_what_is_done_already_is_no_error_and_changes_nothing(conn: Connection, queue: str) -> None:
    """Like PgQ, returns 0 if nothing was to be done."""
    for call in (
        "pgq.create_queue('test_queue')",
        "pgq.register_consumer('test_queue', 'c')",
        "pgq.unregister_consumer('test_queue', 'unknown')",
        "pgq.finish_batch(999)",
        "pgq.finish_batch(null)",
    ):
        assert ops.value(conn, f"select {call}") == 0, call
    assert ops.value(conn, "select pgq.force_tick('nope')") is None
    assert conn.execute("select * from pgq.get_batch_info(999)").fetchone() == (None,) * 9
    assert conn.execute("select * from pgq.get_queue_info('nope')").fetchall() == []


def test_one_wrong_event_of_many_retries_none(conn: Connection, queue: str, batch: int) -> None:
    good = ops.events(conn, batch)[0][0]
    with ops.refused("PQ005"):
        conn.execute(
            "select pgq.event_retry_many(%s, %s, array[now(), now()])", [batch, [good, 999]]
        )
    assert ops.value(conn, "select count(*) from pgq.retry_queue") == 0


def test_a_closed_queue_takes_events_from_replication_only(conn: Connection, queue: str) -> None:
    conn.execute("select pgq.set_queue_config(%s, 'disable_insert', 'true')", [queue])
    for call in ("pgq.insert_event(%s, 't', 'd')", "pgq.current_event_table(%s)"):
        with ops.refused("PQ006"):
            conn.execute(f"select {call}".encode(), [queue])
    conn.execute("set session_replication_role = replica")
    assert ops.insert(conn, queue, "copied")


def test_the_limit_of_a_transaction_is_kept(conn: Connection, connect: Connect, queue: str) -> None:
    ops.register(conn, queue, "c")
    conn.execute("select pgq.set_queue_config(%s, 'per_tx_limit', '3')", [queue])
    producer = connect(autocommit=False)
    for number in range(2):
        ops.insert(producer, queue, f"event {number}")
    with ops.refused("PQ010"), producer.transaction():
        producer.execute("select pgq.insert_events(%s, array['a', 'b'], array['x', 'y'])", [queue])
    # No setting of the session changes the count, and a savepoint takes back what it counted.
    producer.execute("select set_config('pgq.tx_events_1', '0', true)")
    with producer.transaction(force_rollback=True):
        ops.insert(producer, queue, "taken back")
    relation = f"insert into {ops.value(conn, 'select pgq.queue_relation(%s)', queue)} (ev_type)"
    producer.execute(f"{relation} values ('event 2')".encode())
    with ops.refused("PQ010"), producer.transaction():
        producer.execute(f"{relation} values ('event 3')".encode())
    producer.commit()
    ops.insert(producer, queue, "another transaction")
    producer.commit()
    assert len(ops.deliver(conn, queue, "c")) == 4


def test_a_paused_queue_is_not_ticked(conn: Connection, queue: str) -> None:
    for switch in ("ticker_paused", "external_ticker"):
        conn.execute("select pgq.set_queue_config(%s, %s, 'true')", [queue, switch])
        before = ops.value(conn, "select max(tick_id) from pgq.tick")
        with ops.refused("PQ014"):
            conn.execute("select pgq.ticker(%s)", [queue])
        ops.insert(conn, queue, "event")
        conn.execute("select pgq.force_tick(%s), pgq.ticker(), pgq.ticker_round()", [queue])
        assert ops.value(conn, "select max(tick_id) from pgq.tick") == before
        conn.execute("select pgq.set_queue_config(%s, %s, 'false')", [queue, switch])


@pytest.mark.usefixtures("unchanged")
def test_null_bytes_are_refused_before_anything_is_written(conn: Connection, queue: str) -> None:
    with pytest.raises(psycopg.DataError):
        ops.insert(conn, queue, "a\0b")
    with pytest.raises(psycopg.DataError):
        conn.execute("select pgq.create_queue(%s)", ["a\0b"])


@pytest.mark.any_pg
@pytest.mark.slow
def test_payloads_of_0_bytes_and_of_200_mb_arrive(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, "c")
    large = 200_000_000
    ops.insert(conn, queue, "")
    conn.execute("select pgq.insert_event(%s, null, null)", [queue])
    conn.execute("select pgq.insert_event(%s, 't', repeat('x', %s))", [queue, large])
    ops.tick(conn, queue)
    batch = ops.next_batch(conn, queue, "c")
    query = ops.value(conn, "select pgq.batch_event_sql(%s)", batch)
    lengths = f"select length(ev_data) from ({query}) ev".encode()
    assert conn.execute(lengths).fetchall() == [(0,), (None,), (large,)]
    assert ops.value(conn, "select pgq.batch_retry(%s, -1)", batch) == 3
    ops.finish(conn, batch)
    assert ops.value(conn, "select pgq.maint_retry_events()") == 3
    ops.tick(conn, queue)
    again = ops.events(conn, ops.next_batch(conn, queue, "c"))
    assert [row[5] and len(row[5]) for row in again] == ["", None, large]
