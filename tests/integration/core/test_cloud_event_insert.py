"""CloudEvents: every producer takes them, and consumers get them back."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from cloudevents.core.v1.event import CloudEvent

import pgqpy.sqlalchemy
from pgqpy import Consumer, Event, Producer
from pgqpy.errors import ContractViolation
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection

pytestmark = pytest.mark.any_pg


def test_a_cloudevent_is_an_event_by_every_way(
    conn: Connection, dsn: str, queue: str, tick: Tick
) -> None:
    given = CloudEvent({"type": "paid", "source": "/shop", "ext": "ü"}, {"a": 1})
    producer = Producer(queue)
    conn.execute("select pgq.register_consumer(%s, 'c')", [queue])
    producer.insert_event(conn, given)
    producer.insert_events(conn, [given, ("plain",), (given, None, "key")])
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [queue])
    producer.insert_event(conn, given, key="a")
    producer.insert_events_returning(conn, [given], key=lambda event: "b")
    engine = sa.create_engine(sa.make_url(dsn).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        pgqpy.sqlalchemy.Producer(queue).insert_event(connection, given, extra2="x")
        pgqpy.sqlalchemy.Producer(queue).insert_events(connection, [given])
    engine.dispose()
    tick()
    got = []

    class Receiver(Consumer):
        def process_event(self, conn: Connection, event: Event) -> None:
            got.append((event.to_cloudevent("/queue"), event.extra1, event.extra2))

    Receiver(dsn, queue=queue, consumer="c").run(until_empty=True)
    attributes = given.get_attributes()
    assert [c.get_attributes() == attributes and c.get_data() == {"a": 1} for c, *_ in got] == [
        *[True] * 2,
        False,
        *[True] * 5,
    ]
    assert [extras for _, *extras in got] == [
        *[[None, None]] * 3,
        ["key", None],
        *[[None, None]] * 2,
        [None, "x"],
        [None, None],
    ]


def test_the_data_of_a_cloudevent_is_checked_against_its_contract(
    conn: Connection, queue: str
) -> None:
    schema = '{"properties": {"a": {"type": "integer"}}}'
    conn.execute("select pgq.set_contract(%s, 'paid', %s, enforced => true)", [queue, schema])
    wrong = CloudEvent({"type": "paid", "source": "/shop"}, {"a": "x"})
    for producer in (Producer(queue), Producer(queue, check=True)):
        with pytest.raises(ContractViolation, match="/a"):
            producer.insert_event(conn, wrong)
        with pytest.raises(ContractViolation, match="/a"):
            producer.insert_events(conn, [wrong])
