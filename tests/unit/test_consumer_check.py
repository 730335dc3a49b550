"""A consumer's class that cannot work is refused before it takes an event."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import wraps
from typing import Any

import pytest
import sqlalchemy as sa

import pgqpy
from pgqpy.errors import InvalidConsumer


def sync_consumer(**members: Any) -> pgqpy.Consumer:
    members.setdefault("process_event", lambda self, conn, event: None)
    made = type("Mine", (pgqpy.Consumer,), {"queue": "q", "consumer": "c"} | members)
    consumer: pgqpy.Consumer = made("")
    return consumer


async def _later(self: object, conn: object, event: object) -> None: ...


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be a whole number, at least 1"),
        ({"batch_size": "many"}, "batch_size is 'many'; it must be a whole number"),
        ({"concurrency": "2"}, "concurrency is '2'; it must be a whole number"),
        ({"concurrency": 2}, "concurrency is 2; .*: only AsyncConsumer can process several"),
        ({"poll_interval": timedelta(1)}, "poll_interval is .* a number of seconds"),
        ({"backoff_first": -1}, "backoff_first is -1; it must be a number of seconds"),
        ({"backoff_cap": float("inf")}, "backoff_cap is inf"),
        ({"min_lag": 5}, "min_lag is 5; it must be a timedelta"),
        ({"event_types": "created"}, "event_types is 'created'; it must be several"),
        ({"start": "end"}, 'start is .end.; it must be "first", "now", or a datetime with a'),
        ({"start": datetime(2026, 1, 1)}, "start is .* with a time zone"),  # noqa: DTZ001
        ({"start": lambda self: None}, "start is .*; it must be"),
        ({"outages": [OSError]}, "outages is .* a tuple of classes"),
        ({"outages": (OSError("x"),)}, "outages is .* a tuple of classes"),
        ({"process_event": lambda self, event: None}, r"called with \(conn, event\); it takes"),
        ({"on_batch": lambda self: None}, r"on_batch is called with \(stats\)"),
        ({"process_event": _later}, "must not be `async def`"),
    ],
)
def test_what_cannot_work_is_refused_by_name(members: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConsumer, match=f"Mine.*{said}"):
        sync_consumer(**members)._check()


def test_a_group_that_cannot_work_is_refused() -> None:
    for name in ("key", "lease"):
        group = pgqpy.GroupConsumer("", queue="q", consumer="c", handler=print)
        setattr(group, name, 5)
        with pytest.raises(InvalidConsumer, match=f"{name} is 5; it must be a"):
            group._check()


def test_a_handler_that_cannot_work_is_refused() -> None:
    def handled(handler: Any) -> pgqpy.Consumer:
        return pgqpy.Consumer("", queue="q", consumer="c", handler=handler)

    handled(lambda conn, event: None)._check()
    with pytest.raises(InvalidConsumer, match=r"called with \(conn, event\)"):
        handled(lambda event: None)._check()
    both = sync_consumer()
    both.handler = lambda conn, event: None
    with pytest.raises(InvalidConsumer, match="a handler and process_event"):
        both._check()


def test_a_method_that_asyncio_cannot_await_is_refused() -> None:
    class Mine(pgqpy.AsyncConsumer):
        queue = "q"
        consumer = "c"

        def process_event(self, conn, event):  # type: ignore[no-untyped-def]
            """Return without awaiting."""

    with pytest.raises(InvalidConsumer, match=r"Mine\.process_event must be `async def`"):
        Mine("")._check()
    with pytest.raises(InvalidConsumer, match=r"concurrency is 0; .* at least 1"):
        Mine("", concurrency=0)._check()


@pytest.mark.parametrize(
    "missing",
    [
        lambda: pgqpy.Consumer("", queue="q"),
        lambda: pgqpy.CoopConsumer(
            "",
            queue="q",
            consumer="c",
            dead_after=5,  # type: ignore[arg-type]
        ),
        lambda: pgqpy.CoopConsumer("", queue="q", consumer="c", dead_after=timedelta()),
    ],
)
def test_what_is_missing_or_no_interval_is_said_when_the_object_is_made(missing: Any) -> None:
    with pytest.raises(InvalidConsumer, match=r"needs a queue and|dead_after is .*; .* a positive"):
        missing()


def test_whatever_can_be_called_like_the_method_will_do() -> None:
    def traced(function: Any) -> Any:
        @wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    sync_consumer(process_event=staticmethod(lambda conn, event: None))._check()
    sync_consumer(process_event=lambda self, *args: None)._check()
    sync_consumer(process_event=lambda me, c, e, more=1: None)._check()
    sync_consumer(batch_size=None, min_lag=None, event_types={"a"})._check()

    class Mine(pgqpy.AsyncConsumer):
        queue = "q"
        consumer = "c"
        process_event = traced(_later)

    Mine("")._check()


@pytest.mark.parametrize("kind", [pgqpy.Admin, pgqpy.GroupAdmin, pgqpy.DeadLetters])
@pytest.mark.parametrize("given", ["dbname=shop", sa.create_engine("sqlite://"), None])
def test_an_administrator_of_no_connection_is_refused(kind: Any, given: object) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__} takes psycopg's Connection, such"):
        kind(given)
