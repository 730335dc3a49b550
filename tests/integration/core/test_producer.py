"""Producing: events are in the caller's transaction, whole or not at all."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from pgqpy import NewEvent, Producer, errors
from pgqpy.producer import EventFields
from tests.fixtures.fix_db import AsRole, Connect, Connection, MakeRole

pytestmark = pytest.mark.any_pg

#: Any text that PostgreSQL can store.
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"))
EVENT = st.lists(st.none() | TEXT, min_size=1, max_size=6)


def stored(conn: Connection) -> list[tuple[str | None, ...]]:
    return conn.execute(
        "select ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
        " from pgq.event_template order by ev_id"
    ).fetchall()


@pytest.mark.smoke
def test_an_event_has_the_fields_that_were_given(conn: Connection, queue: str) -> None:
    producer = Producer(queue)
    event = NewEvent("type", json.dumps({"a": "é"}), "1", "2", "3", "4")
    one = producer.insert_event(
        conn, event.type, event.data, extra1="1", extra2="2", extra3="3", extra4="4"
    )
    assert producer.insert_event(conn, "only a type") > one
    producer.insert_events(conn, [event, tuple(event), list(event), ("only a type",)])
    producer.insert_events_returning(conn, iter([event, ("only a type",)]))
    short = ("only a type", None, None, None, None, None)
    assert stored(conn) == [tuple(event), short, *[tuple(event)] * 3, short, tuple(event), short]


def test_data_may_be_an_object_which_is_dumped_as_json(conn: Connection, queue: str) -> None:
    producer = Producer(queue)
    event = NewEvent("type", {"a": "é"}, "1")
    producer.insert_event(conn, event.type, event.data, extra1="1")
    producer.insert_events(conn, [event, ("type", {"a": "é"}, "1")])
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [queue])
    producer.insert_events(conn, [event], key=lambda event: event[0])
    producer.insert_events_returning(conn, [event])
    assert stored(conn) == [("type", '{"a":"é"}', "1", None, None, None)] * 5
    with pytest.raises(errors.InvalidPayload, match=r"\$\.a"):
        producer.insert_events(conn, [event, ("type", {"a": {1}})])


@pytest.mark.parametrize("name", ["plain", "odd %s \"'.", "ä", "x" * 60])
def test_the_same_is_written_by_function_and_by_relation(
    conn: Connection, connect: Connect, name: str
) -> None:
    """The first event on a connection goes by the function."""
    conn.execute("select pgq.create_queue(%s)", [name])
    producer = Producer(name)
    caller = connect(prepare_threshold=0)
    ids = [producer.insert_event(caller, "t", str(n), extra4="x") for n in range(4)]
    assert ids == sorted(ids)
    assert stored(conn) == [("t", str(n), None, None, None, "x") for n in range(4)]
    prepared = "select count(*) from pg_prepared_statements where statement ~ '^insert'"
    by_relation = name in ("plain", "odd %s \"'.")
    assert caller.execute(prepared).fetchone() == (by_relation,)
    caller.autocommit = False
    conn.execute("select pgq.set_queue_config(%s, 'per_tx_limit', '1')", [name])
    producer.insert_event(caller, "t")
    with pytest.raises(errors.PerTxLimitExceeded):
        producer.insert_event(caller, "t")
    caller.rollback()
    conn.execute("select pgq.drop_queue(%s, true)", [name])
    with pytest.raises(errors.QueueNotFound, match="create_queue"):
        producer.insert_event(caller, "t")


@pytest.mark.parametrize(
    ("factory", "threshold"), [(psycopg.Cursor, None), (psycopg.ClientCursor, 5)]
)
def test_without_prepared_statements_all_events_go_by_the_function(
    connect: Connect, queue: str, factory: Any, threshold: int | None
) -> None:
    sent: list[bytes] = []

    def execute(cursor: Any, query: bytes, *arguments: object) -> object:
        sent.append(query)
        return factory.execute(cursor, query, *arguments)

    kind: Any = type("Noting", (factory,), {"execute": execute})
    caller = connect(prepare_threshold=threshold, cursor_factory=kind)
    for _ in range(3):
        Producer(queue).insert_event(caller, "t")
    assert [b"select pgq.insert_event(" in query for query in sent] == [False] + [True] * 3


def write_in_every_way(producer: Producer, conn: Connection) -> None:
    producer.insert_event(conn, "one")
    producer.insert_events(conn, [("many",)])
    producer.insert_events_returning(conn, [("some",)])


def test_a_role_with_a_grant_on_the_queue_alone_produces(
    conn: Connection, queue: str, make_role: MakeRole, as_role: AsRole
) -> None:
    role = make_role("producing")
    conn.execute("select pgq.create_queue('another')")
    conn.execute("select pgq.grant_queue(%s, '{insert}', %s)", [queue, role])
    caller = as_role(role)
    for restricted in (False, True):
        conn.execute("select pgq.restrict_queue(%s, %s)", [queue, restricted])
        write_in_every_way(Producer(queue), caller)
    assert [row[0] for row in stored(conn)] == ["one", "many", "some"] * 2
    for name, error in (("another", errors.PermissionDenied), ("no", errors.QueueNotFound)):
        with pytest.raises(error):
            Producer(name).insert_event(caller, "t")
        with pytest.raises(error):
            Producer(name).insert_events(caller, [("t",)])


def test_a_pooled_connection_produces_as_the_role_that_it_has_now(
    conn: Connection, queue: str, make_role: MakeRole, connect: Connect
) -> None:
    """Functions may be called by the first role and not by the second."""
    writer, alone = make_role("writing", "pgq_writer"), make_role("alone")
    conn.execute("select pgq.create_queue('another')")
    conn.execute("select pgq.grant_queue('another', '{insert}', %s)", [alone])
    pooled = connect()
    for role, name in ((writer, queue), (alone, "another"), (writer, "another")):
        pooled.execute(f"set role {role}".encode())
        write_in_every_way(Producer(name), pooled)


def test_events_exist_only_if_the_callers_transaction_commits(
    conn: Connection, connect: Connect, queue: str
) -> None:
    caller = connect(autocommit=False)
    # As the first statement of a transaction, and behind others.
    assert Producer(queue).insert_events(caller, [("many",), ("many",)]) == 2
    assert stored(conn) == []
    caller.rollback()
    for kept in (False, True):
        write_in_every_way(Producer(queue), caller)
        assert stored(conn) == []
        caller.commit() if kept else caller.rollback()
    assert [row[0] for row in stored(conn)] == ["one", "many", "some"]


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(EVENT, max_size=20))
def test_every_text_is_stored_as_it_is(
    conn: Connection, queue: str, events: list[list[str | None]]
) -> None:
    expected = [tuple(event + [None] * (6 - len(event))) for event in events]
    producer = Producer(queue)
    with conn.transaction(force_rollback=True):
        assert producer.insert_events(conn, events) == len(events)
        assert stored(conn) == expected
    with conn.transaction(force_rollback=True):
        ids = producer.insert_events_returning(conn, events)
        assert ids == sorted(ids)
        assert len(ids) == len(events)
        assert stored(conn) == expected


def test_any_row_factory_will_do(conn: Connection, connect: Connect, queue: str) -> None:
    write_in_every_way(Producer(queue), connect(row_factory=dict_row))
    assert [row[0] for row in stored(conn)] == ["one", "many", "some"]


def test_events_are_streamed(conn: Connection, queue: str) -> None:
    tracemalloc.start()
    try:
        events = (("type", "x" * 10_000) for _ in range(10_000))
        assert Producer(queue).insert_events(conn, events) == 10_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 100 MB went through.
    assert peak < 5_000_000


def test_when_the_iterable_fails_nothing_is_written_and_the_transaction_lives(
    conn: Connection, connect: Connect, queue: str
) -> None:
    def events() -> Iterator[tuple[str]]:
        yield ("first",)
        raise LookupError("no more")

    caller = connect(autocommit=False)
    producer = Producer(queue)
    producer.insert_event(caller, "before")
    with pytest.raises(LookupError, match="no more"):
        producer.insert_events(caller, events())
    producer.insert_event(caller, "after")
    caller.commit()
    assert [row[0] for row in stored(conn)] == ["before", "after"]


@pytest.mark.one_database
@pytest.mark.parametrize("bad", ["NUL \0", "surrogate \ud800"])
def test_a_text_that_cannot_be_stored_is_refused_with_the_remedy(
    conn: Connection, queue: str, bad: str
) -> None:
    producer = Producer(queue)
    with pytest.raises(errors.InvalidPayload, match="base64"):
        producer.insert_event(conn, "type", bad)
    with pytest.raises(errors.InvalidPayload, match="base64"):
        producer.insert_events(conn, [("good",), ("type", bad)])
    with pytest.raises(errors.InvalidPayload, match="base64"):
        producer.insert_events_returning(conn, [("good",), ("type", bad)])
    assert stored(conn) == []


@pytest.mark.parametrize("method", ["insert_event", "insert_events", "insert_events_returning"])
def test_another_connection_than_psycopgs_is_a_type_error(method: str) -> None:
    with pytest.raises(TypeError, match=r"psycopg's Connection,.*pgqpy\.sqlalchemy\.Producer"):
        getattr(Producer("q"), method)(object(), [])


@pytest.mark.one_database
@pytest.mark.parametrize("bad", [("a", 5), ("a", b"bytes"), (), tuple("abcdefg"), "text", {"a": 1}])
def test_what_is_no_event_is_a_type_error(conn: Connection, queue: str, bad: EventFields) -> None:
    with pytest.raises(TypeError, match="event"):
        Producer(queue).insert_events(conn, [("good",), bad])
    assert stored(conn) == []


@pytest.mark.one_database
@pytest.mark.parametrize("name", ["", "no such queue", "quotes \"'%s", "x" * 1000])
def test_a_queue_that_does_not_exist_is_an_error_by_all_ways(conn: Connection, name: str) -> None:
    producer = Producer(name)
    for write in (
        lambda: producer.insert_event(conn, "type"),
        lambda: producer.insert_events(conn, [("type",)]),
        lambda: producer.insert_events_returning(conn, [("type",)]),
    ):
        with pytest.raises(errors.QueueNotFound) as info:
            write()
        assert info.value.hint


def test_the_role_pgq_writer_suffices_and_without_it_the_error_names_it(
    conn: Connection, queue: str, make_role: MakeRole, as_role: AsRole
) -> None:
    role = make_role("app")
    app = as_role(role)
    with pytest.raises(errors.PermissionDenied, match="pgq_writer"):
        Producer(queue).insert_event(app, "type")
    conn.execute(f"grant pgq_writer to {role}".encode())
    write_in_every_way(Producer(queue), app)
    assert [row[0] for row in stored(conn)] == ["one", "many", "some"]


def test_without_the_schema_the_error_says_what_to_do(empty_dsn: str, connect: Connect) -> None:
    with pytest.raises(errors.SchemaMissing, match="pgqpy migrate"):
        Producer("q").insert_event(connect(empty_dsn), "type")


@pytest.mark.slow
def test_an_event_that_could_never_be_read_again_is_refused(conn: Connection, queue: str) -> None:
    third = "x" * 360_000_000
    with pytest.raises(errors.PayloadTooLarge, match="reference"):
        Producer(queue).insert_events(conn, [("type", third, third, third)])
    assert stored(conn) == []
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
