"""A queue keeps events for the time of its setting ``keep``, and a consumer can begin anywhere
among them: it gets all events from there on.
"""

from __future__ import annotations

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection

TIMES = (
    *("tick_0 set tick_time = tick_time", "tick_1 set tick_time = tick_time"),
    *("event set ev_time = ev_time", "queue set queue_switch_time = queue_switch_time"),
)


def pass_time(conn: Connection, minutes: int, *tables: str) -> None:
    """Make everything older, or only what is in these tables."""
    for update in TIMES:
        if not tables or update.startswith(tables):
            conn.execute(f"update pgq.{update} - interval '{minutes} minutes'".encode())


def maintain(conn: Connection, queue: str) -> bool:
    """Rotate if it is due; all that may be forgotten is forgotten."""
    moved = ops.rotate(conn, queue)
    ops.rotate_logs(conn)
    return moved


def configure(conn: Connection, queue: str, **settings: str | None) -> None:
    for name, value in settings.items():
        conn.execute("select pgq.set_queue_config(%s, %s, %s)", [queue, name, value])


@pytest.fixture
def keeping(conn: Connection, queue: str) -> str:
    """A queue that keeps an hour, and would otherwise rotate whenever asked."""
    configure(conn, queue, rotation_period="0", keep="1 hour")
    return queue


def started(conn: Connection, queue: str, start: object) -> list[str]:
    """The events of a new consumer that begins there."""
    consumer = f"from {start}"
    sql = "select pgq.register_consumer(%s, %s, %s)"
    assert ops.value(conn, sql, queue, consumer, str(start)) == 1
    delivered = ops.drain(conn, queue, consumer)
    conn.execute("select pgq.unregister_consumer(%s, %s)", [queue, consumer])
    return delivered


def test_what_is_kept_is_never_less_than_keep_and_not_much_more(
    conn: Connection, keeping: str
) -> None:
    """With three tables each holds half an hour, here and one round of maintenance."""
    ids: list[int] = []
    for number in range(30):
        ids.append(ops.insert(conn, keeping, str(number)))
        ops.tick(conn, keeping)
        ops.tick(conn, keeping)
        pass_time(conn, 10)
        maintain(conn, keeping)
        first = started(conn, keeping, "first")
        assert min(5, number + 1) <= len(first) <= 9
        hour_ago = ops.value(conn, "select now() - interval '1 hour'")
        youngest = [str(each) for each in range(max(0, number - 4), number + 1)]
        # Those of up to two ticks before come, too.
        assert started(conn, keeping, hour_ago)[-len(youngest) :] == youngest
        assert started(conn, keeping, ids[-len(youngest)])[-len(youngest) :] == youngest
    assert ops.rotations(conn, keeping) >= 8
    with ops.refused("PQ008", "does not have all events"):
        started(conn, keeping, ids[0])
    with ops.refused("PQ008", "does not have all events"):
        started(conn, keeping, "2001-01-01")


def test_all_of_a_queue_that_never_lost_any_is_since_any_time(conn: Connection, queue: str) -> None:
    ops.insert_ticked(conn, queue, "a", "b")
    assert started(conn, queue, "2001-01-01") == ["a", "b"]
    assert started(conn, queue, "now") == []


def test_rotation_is_due_when_a_table_has_its_part_of_the_time(
    conn: Connection, keeping: str
) -> None:
    operations = "select count(*) from pgq.maint_operations() where func_name like '%%step1'"
    ops.tick(conn, keeping)
    pass_time(conn, 29)
    assert ops.value(conn, operations) == 0
    assert not ops.rotate(conn, keeping)
    pass_time(conn, 2)
    assert ops.value(conn, operations) == 1
    assert ops.rotate(conn, keeping)


def filled(conn: Connection, queue: str) -> None:
    """Events of the last minutes in all tables, and an hour to keep."""
    configure(conn, queue, keep=None)
    for _ in range(3):
        ops.insert_ticked(conn, queue, "event")
        ops.tick(conn, queue)
        ops.rotate(conn, queue)
        pass_time(conn, 1)
    ops.insert_ticked(conn, queue, "event")
    ops.tick(conn, queue)
    configure(conn, queue, keep="1 hour")


def test_above_keep_bytes_a_queue_rotates_as_without_keep(conn: Connection, keeping: str) -> None:
    filled(conn, keeping)
    assert not maintain(conn, keeping)
    configure(conn, keeping, keep_bytes="10000000")
    assert not maintain(conn, keeping)
    configure(conn, keeping, keep_bytes="1")
    for _ in range(3):
        ops.tick(conn, keeping)
        assert maintain(conn, keeping)
    assert started(conn, keeping, "first") == []


def test_the_time_of_events_counts_not_that_of_switches(conn: Connection, keeping: str) -> None:
    """So keep may be made longer at any time."""
    filled(conn, keeping)
    pass_time(conn, 61, "queue")
    assert not maintain(conn, keeping)
    pass_time(conn, 61, "tick")
    assert maintain(conn, keeping)


def test_the_tick_at_which_to_start_that_long_ago_stays(conn: Connection, keeping: str) -> None:
    ops.insert_ticked(conn, keeping, "event")
    pass_time(conn, 61)
    for may_rotate in (True, True, False):
        ops.tick(conn, keeping)
        pass_time(conn, 31, "queue")
        assert ops.rotate(conn, keeping) == may_rotate
    # Events of an hour ago may be visible at the last tick before.
    pass_time(conn, 61, "tick")
    assert ops.rotate(conn, keeping)
    started(conn, keeping, ops.value(conn, "select now() - interval '1 hour'"))


def test_a_clock_that_was_ahead_does_not_keep_events_for_ever(
    conn: Connection, keeping: str
) -> None:
    filled(conn, keeping)
    pass_time(conn, -1_000_000, "tick")
    assert not maintain(conn, keeping)
    pass_time(conn, 31, "queue")
    assert maintain(conn, keeping)


def test_of_the_ticks_that_all_have_passed_ten_thousand_stay(
    conn: Connection, keeping: str
) -> None:
    # Each is a second after the other; one in ten of those up to the consumer's position stays.
    configure(conn, keeping, keep="100000 seconds")
    conn.execute(
        "insert into pgq.tick_0 (tick_queue, tick_id, tick_time, tick_event_seq)"
        " select queue_id, n, to_timestamp(n), n from pgq.queue, generate_series(2, 1000) n"
    )
    conn.execute("select pgq.register_consumer_at(%s, 'c', 905)", [keeping])
    ops.rotate_logs(conn)
    ops.rotate_logs(conn)
    left = [tick for (tick,) in conn.execute("select tick_id from pgq.tick order by 1").fetchall()]
    assert left == [1, 2, *range(10, 901, 10), *range(905, 1001)]


@pytest.mark.parametrize("start", ["event", "time"])
def test_an_event_that_came_while_its_tick_was_made_is_not_left_out(
    conn: Connection, queue: str, start: str
) -> None:
    """A tick says the sequence and the time of just before its snapshot."""
    before = ops.insert_ticked(conn, queue, "before")
    queue_id, seq = conn.execute(
        "select tick_queue, tick_event_seq from pgq.tick where tick_id = %s", [before]
    ).fetchall()[0]
    event = ops.insert(conn, queue, "meanwhile")
    (tick,) = ops.value(
        conn,
        "select pgq._make_ticks(array[%s], array[false], array[%s::int8], array[0])",
        *(queue_id, seq),
    )
    time = ops.value(conn, "select ev_time from pgq.event where ev_id = %s", event)
    for log in ("tick_0", "tick_1"):
        update = f"update pgq.{log} set tick_time = %s where tick_id = %s"
        conn.execute(update.encode(), [time, tick])
    ops.tick(conn, queue)
    assert "meanwhile" in started(conn, queue, event if start == "event" else time)


def test_a_consumer_that_another_process_registers_first_is_not_moved(
    conn: Connection, connect: Connect, queue: str, calls: Calls
) -> None:
    register = "select pgq.register_consumer(%s, 'c', 'first')"
    ops.insert_ticked(conn, queue, "once")
    one, other = connect(autocommit=False), connect()
    assert ops.value(one, register, queue) == 1
    waits = calls.blocked(ops.value, other, register, queue)
    assert ops.drain(one, queue, "c") == ["once"]
    one.commit()
    assert waits.result() == 0
    assert ops.drain(conn, queue, "c") == []
