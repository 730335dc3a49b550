"""pgq_ext, called as programs written for PgQ do: what is remembered, and what the answers are."""

from __future__ import annotations

from typing import Any

import pytest

from pgqpy.errors import InvalidName, InvalidParameter, TargetAhead, translate_errors
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

#: PgQ's answers, statement by statement. No package of Debian's has its pgq_ext.
TICKS: list[tuple[str, Any]] = [
    ("get_last_tick('c')", None),
    ("set_last_tick('c', 5)", 1),
    ("set_last_tick('c', 5)", 1),
    ("get_last_tick('c')", 5),
    ("set_last_tick('c', 3)", 1),
    ("get_last_tick('c', '')", 3),
    ("get_last_tick('c', 'sub')", None),
    ("set_last_tick('c', 'sub', 9)", 1),
    ("get_last_tick('c', 'sub')", 9),
    ("get_last_tick('c')", 3),
    ("set_last_tick('c', null)", 1),
    ("get_last_tick('c')", None),
    ("set_last_tick('never seen', null)", 1),
    ("get_last_tick('never seen')", None),
    ("get_last_tick(null)", None),
]
BATCHES: list[tuple[str, Any]] = [
    ("is_batch_done('c', 1)", False),
    ("set_batch_done('c', 1)", True),
    ("is_batch_done('c', 1)", True),
    ("set_batch_done('c', 1)", False),
    ("is_batch_done('c', 2)", False),
    ("set_batch_done('c', 2)", True),
    ("is_batch_done('c', 1)", False),
    ("set_batch_done('c', 1)", True),
    ("is_batch_done('c', '', 1)", True),
    ("is_batch_done('c', 'sub', 1)", False),
    ("set_batch_done('c', 'sub', 7)", True),
    ("set_batch_done('c', 0)", True),
    ("set_batch_done('c', -1)", True),
    ("set_batch_done('c', null)", True),
    ("is_batch_done('c', 1)", True),
    ("is_batch_done('c', null)", None),
    ("is_batch_done('never seen', null)", False),
]
EVENTS: list[tuple[str, Any]] = [
    ("is_event_done('c', 3, 101)", False),
    ("set_event_done('c', 3, 101)", True),
    ("is_event_done('c', 3, 101)", True),
    ("set_event_done('c', 3, 101)", False),
    ("set_event_done('c', 3, 102)", True),
    ("is_event_done('c', 'sub', 3, 101)", False),
    ("set_event_done('c', 'sub', 3, 102)", True),
    # Another batch, and what was done of the first is forgotten, also if that comes back.
    ("set_event_done('c', 4, 101)", True),
    ("is_event_done('c', 3, 102)", False),
    ("is_event_done('c', 4, 101)", True),
    ("set_event_done('c', 3, 103)", True),
    ("is_event_done('c', 3, 102)", False),
    ("is_event_done('c', 3, 103)", True),
    ("is_event_done('c', 'sub', 3, 102)", True),
    # Batches do not touch events.
    ("set_batch_done('c', 3)", True),
    ("is_event_done('c', 3, 103)", True),
]


def call(conn: Connection, statement: str) -> Any:
    return ops.value(conn, f"select pgq_ext.{statement}")


@pytest.mark.parametrize("calls", [TICKS, BATCHES, EVENTS], ids=["ticks", "batches", "events"])
def test_the_answers_are_those_of_pgq(conn: Connection, calls: list[tuple[str, Any]]) -> None:
    assert [(statement, call(conn, statement)) for statement, _ in calls] == calls


def test_the_functions_are_those_of_pgq(conn: Connection) -> None:
    functions = {
        f"{name}({subconsumer}{rest}) {result}"
        for name, rest, result in (
            ("get_last_tick", "text", "bigint"),
            ("set_last_tick", "text, bigint", "integer"),
            ("is_batch_done", "text, bigint", "boolean"),
            ("set_batch_done", "text, bigint", "boolean"),
            ("is_event_done", "text, bigint, bigint", "boolean"),
            ("set_event_done", "text, bigint, bigint", "boolean"),
        )
        for subconsumer in ("", "text, ")
    }
    found = conn.execute(
        "select proname || '(' || oidvectortypes(proargtypes) || ') ' ||"
        " pg_get_function_result(oid) from pg_proc where pronamespace = 'pgq_ext'::regnamespace"
    ).fetchall()
    assert functions <= {signature for (signature,) in found}
    assert call(conn, "upgrade_schema()") == 0
    assert call(conn, "version()") == "3.5"


def test_pgqs_tables_can_be_read(conn: Connection) -> None:
    for statement, _ in [*TICKS, *BATCHES, *EVENTS]:
        call(conn, statement)
    tables = {
        name: conn.execute(f"select * from pgq_ext.{name} order by 1, 2, 3".encode()).fetchall()
        for name in ("completed_tick", "completed_batch", "completed_event", "partial_batch")
    }
    assert tables == {
        "completed_tick": [("c", "sub", 9)],
        "completed_batch": [("c", "", 3), ("c", "sub", 7)],
        "completed_event": [("c", "", 3, 103), ("c", "sub", 3, 102)],
        "partial_batch": [("c", "", 3), ("c", "sub", 3)],
    }


def test_a_retried_event_is_another_one(conn: Connection) -> None:
    """A retried event keeps its id. A consumer that was moved back can have both in one batch."""
    assert call(conn, "set_event_done('c', '', 3, 101)") is True
    assert call(conn, "is_event_done('c', '', 3, 101, 1)") is False
    assert call(conn, "set_event_done('c', '', 3, 101, 1)") is True
    assert call(conn, "set_event_done('c', '', 3, 101, 1)") is False
    assert call(conn, "is_event_done('c', '', 3, 101, 0)") is True


def test_events_are_known_as_long_as_a_batch_may_have_them(conn: Connection) -> None:
    """Batches of a consumer that was moved lie across each other."""

    def ticks(batch: int, prev: int, last: int) -> str:
        day = "'2000-01-01'::timestamptz + interval '1 day' *"
        return f"{batch}, {prev}, {day} {prev}, {last}, {day} {last}"

    def done(of_ticks: str, event: int, time: str = "2000-01-01") -> bool:
        return bool(call(conn, f"begin_event('c', 'q', {of_ticks}, {event}, 0, '{time}')"))

    def do(of_ticks: str, event: int, time: str = "2000-01-01") -> bool:
        return bool(call(conn, f"end_event('c', 'q', {of_ticks}, {event}, 0, '{time}')"))

    assert do(ticks(1, 10, 20), 5)
    assert not do(ticks(1, 10, 20), 5)
    # Smaller, and then what is left of the first.
    assert not done(ticks(2, 10, 15), 7)
    assert do(ticks(2, 10, 15), 7)
    assert done(ticks(3, 15, 20), 5)
    assert call(conn, "is_event_done('c', 'q', 2, 7)")
    # Larger: the end of it counts.
    assert do(ticks(4, 15, 25), 8)
    assert done(ticks(5, 20, 25), 8)
    assert not done(ticks(5, 20, 25), 8, "2000-01-02")
    assert do(ticks(5, 20, 25), 8, "2000-01-02")
    # Behind them all.
    assert not done(ticks(6, 25, 30), 8)
    assert do(ticks(6, 25, 30), 8)
    for before in (ticks(7, 24, 30), ticks(8, 25, 30).replace("* 25", "* 26")):
        with pytest.raises(TargetAhead), translate_errors():
            done(before, 8)
        with pytest.raises(TargetAhead), translate_errors():
            do(before, 9)
    # At the end of them, by another clock.
    with pytest.raises(TargetAhead), translate_errors():
        done(ticks(9, 30, 40).replace("* 30", "* 31"), 9)
    # Told without ticks, the batch's id is all there is.
    assert call(conn, "set_event_done('c', 'q', 10, 1)")
    assert done(ticks(10, 1, 2), 1)
    assert not done(ticks(11, 1, 2), 1)


def test_what_is_rolled_back_was_not_done(conn: Connection) -> None:
    call(conn, "set_batch_done('c', 1)")
    conn.execute("begin")
    for statement in (
        "set_batch_done('c', 2)",
        "set_last_tick('c', 7)",
        "set_event_done('c', 2, 1)",
    ):
        call(conn, statement)
    conn.execute("rollback")
    assert call(conn, "is_batch_done('c', 1)") is True
    assert call(conn, "get_last_tick('c')") is None
    assert call(conn, "is_event_done('c', 2, 1)") is False


def test_nonsense_is_refused_with_what_to_do(conn: Connection) -> None:
    for statement, error in (
        ("set_last_tick(null, 1)", InvalidName),
        ("set_last_tick('', 1)", InvalidName),
        ("set_batch_done('c', null, 1)", InvalidName),
        ("set_event_done(repeat('x', 256), 1, 1)", InvalidName),
        ("set_event_done('c', null, 1)", InvalidParameter),
        ("set_event_done('c', 1, null)", InvalidParameter),
        ("set_event_done('c', '', 1, 1, null)", InvalidParameter),
    ):
        with pytest.raises(error, match="HINT"), translate_errors():
            call(conn, statement)


def test_what_is_remembered_can_be_forgotten(conn: Connection) -> None:
    call(conn, "set_batch_done('c', 'sub', 1)")
    call(conn, "set_batch_done('c', 1)")
    assert call(conn, "forget_consumer('c', 'sub')") is True
    assert call(conn, "forget_consumer('c', 'sub')") is False
    assert call(conn, "is_batch_done('c', 'sub', 1)") is False
    assert call(conn, "is_batch_done('c', 1)") is True
    assert call(conn, "set_batch_done('c', 'sub', 1)") is True
