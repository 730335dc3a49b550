"""Rounds of the daemon: queues that it looks at, puts off, and leaves to others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection
from tests.fixtures.fix_ticker import PATIENCE

ROUND = "select ticks, early, fresh, wait from pgq.ticker_round(%s, %s)"


def round_of_ticks(
    conn: Connection, *, idle: bool = True, most: int | None = None
) -> tuple[int, int, int, timedelta | None]:
    row = conn.execute(ROUND.encode(), [idle, most]).fetchone()
    assert row is not None
    return row[0], row[1], row[2], row[3]


def newest_ticks(conn: Connection) -> dict[str, int]:
    return dict(
        conn.execute("select queue_name, last_tick_id from pgq.get_queue_info()").fetchall()
    )


@pytest.fixture
def queues(conn: Connection) -> list[str]:
    """Three, whose ticks from now on are early ones or heartbeats that are far off, however long
    the test takes."""
    names = ["a", "b", "c"]
    for name in names:
        conn.execute("select pgq.create_queue(%s)", [name])
    # Not by pgq.set_queue_config(), which takes a wish for late ticks for one for no early ones.
    conn.execute(
        "update pgq.queue set queue_ticker_max_lag = '30 minutes',"
        " queue_ticker_idle_period = '30 minutes'"
    )
    conn.execute("update pgq.tick_0 set tick_time = tick_time - interval '10 seconds'")
    conn.execute("select pgq.ticker_round()")
    assert round_of_ticks(conn) == (0, 0, 0, None)
    return names


def pass_by(conn: Connection, seconds: float, *names: str) -> None:
    """Simulate that this much time has passed for these queues."""
    conn.execute(
        "update pgq.tick_0 t set tick_time = tick_time - make_interval(secs => %s) from pgq.queue"
        " where queue_id = tick_queue and queue_name = any (%s)",
        [seconds, list(names)],
    )


def test_rounds_without_idle_queues_tick_new_events(conn: Connection, queues: list[str]) -> None:
    before = newest_ticks(conn)
    ops.insert(conn, "b", "event")
    pass_by(conn, 0.01, *queues)
    assert round_of_ticks(conn, idle=False)[:3] == (1, 1, 1)
    assert newest_ticks(conn) == before | {"b": before["b"] + 1}


def test_an_event_that_comes_to_light_late_is_ticked_without_looking_at_idle_queues(
    conn: Connection, connect: Connect, queues: list[str]
) -> None:
    slow = connect(autocommit=False)
    ops.insert(slow, "b", "event")
    pass_by(conn, 0.01, *queues)
    assert round_of_ticks(conn, idle=False)[:3] == (1, 1, 1)
    ticks, *_, wait = round_of_ticks(conn, idle=False)
    assert (ticks, wait is None) == (0, False)
    slow.commit()
    pass_by(conn, 0.01, *queues)
    assert round_of_ticks(conn, idle=False)[:3] == (1, 1, 1)
    assert round_of_ticks(conn, idle=False) == (0, 0, 0, None)


def test_heartbeats_are_for_rounds_with_idle_queues(conn: Connection, queues: list[str]) -> None:
    pass_by(conn, 3600, *queues)
    assert round_of_ticks(conn, idle=False)[:3] == (0, 0, 0)
    assert round_of_ticks(conn, idle=True)[:3] == (3, 0, 0)


def test_the_longest_waiting_queue_is_ticked_first(conn: Connection, queues: list[str]) -> None:
    before = newest_ticks(conn)
    for name in queues:
        ops.insert(conn, name, "event")
    pass_by(conn, 0.1, "c")
    pass_by(conn, 0.2, "a")
    pass_by(conn, 0.01, "b")
    ticks, early, fresh, wait = round_of_ticks(conn, idle=False, most=2)
    assert (ticks, early, fresh) == (2, 2, 2)
    assert wait == timedelta(0), "there is one more that is due"
    assert newest_ticks(conn) == before | {"a": before["a"] + 1, "c": before["c"] + 1}
    assert round_of_ticks(conn, idle=False, most=2)[:3] == (1, 1, 1)
    assert newest_ticks(conn)["b"] == before["b"] + 1


def test_nominal_ticks_do_not_count_as_early_ones(conn: Connection, queues: list[str]) -> None:
    for name in queues:
        ops.insert(conn, name, "event")
    pass_by(conn, 3600, "a", "c")
    pass_by(conn, 0.01, "b")
    assert round_of_ticks(conn, most=0)[:3] == (2, 0, 2)


def test_without_early_ticks_the_round_says_when_the_nominal_one_is_due(
    conn: Connection, queues: list[str]
) -> None:
    conn.execute("select pgq.set_queue_config('b', 'ticker_max_lag', '1 hour')")
    ops.insert(conn, "b", "event")
    ticks, *_, wait = round_of_ticks(conn, idle=False)
    assert ticks == 0
    assert wait is not None
    assert timedelta(minutes=59) < wait <= timedelta(hours=1)


Quiet = tuple[list[int], list[int]]


def quiet_queues(conn: Connection) -> Quiet:
    """The daemon's memory of a round."""
    [(queues, seqs)] = conn.execute("select quiet_queues, quiet_seqs from pgq.ticker_round()")
    return queues or [], seqs or []


def ticks_besides(conn: Connection, quiet: Quiet) -> int:
    query = "select ticks from pgq.ticker_round(false, null, %s, %s)"
    [(ticks,)] = conn.execute(query, quiet).fetchall()
    return int(ticks)


def test_a_quiet_queue_is_ticked_if_its_sequence_moves(conn: Connection, queues: list[str]) -> None:
    quiet = quiet_queues(conn)
    assert len(quiet[0]) == len(queues)
    assert ticks_besides(conn, quiet) == 0
    ops.insert(conn, "b", "event")
    pass_by(conn, 0.01, *queues)
    assert ticks_besides(conn, quiet) == 1
    assert ticks_besides(conn, quiet) == 0
    ops.insert(conn, "b", "event")
    pass_by(conn, 0.01, *queues)
    assert ticks_besides(conn, quiet) == 1


def test_a_quiet_queue_is_not_looked_at(conn: Connection, queues: list[str]) -> None:
    quiet = quiet_queues(conn)
    # This can only be noticed by looking at the queue.
    conn.execute("update pgq.tick_0 set tick_event_seq = tick_event_seq - 1")
    assert ticks_besides(conn, quiet) == 0
    assert ticks_besides(conn, ([], [])) == len(queues)


def test_a_queue_is_not_quiet_while_events_may_come_to_light(
    conn: Connection, connect: Connect, queues: list[str]
) -> None:
    slow = connect(autocommit=False)
    ops.insert(slow, "b", "event")
    pass_by(conn, 0.01, *queues)
    # The tick counts the event's id, and does not see it.
    assert round_of_ticks(conn)[0] == 1
    quiet = quiet_queues(conn)
    assert len(quiet[0]) == len(queues) - 1
    slow.commit()
    pass_by(conn, 0.01, *queues)
    assert ticks_besides(conn, quiet) == 1


def test_new_and_paused_queues_are_not_quiet(conn: Connection, queues: list[str]) -> None:
    conn.execute("select pgq.set_queue_config('b', 'ticker_paused', 'true')")
    quiet = quiet_queues(conn)
    conn.execute("select pgq.create_queue('new')")
    for name in ("b", "new"):
        ops.insert(conn, name, "event")
    pass_by(conn, 0.01, *queues, "new")
    assert ticks_besides(conn, quiet) == 1
    conn.execute("select pgq.set_queue_config('b', 'ticker_paused', 'false')")
    assert ticks_besides(conn, quiet) == 1


def test_a_queue_that_another_session_is_ticking_does_not_hold_up_the_others(
    conn: Connection, connect: Connect, queues: list[str]
) -> None:
    for name in queues:
        ops.insert(conn, name, "event")
    other = connect(autocommit=False)
    ops.tick(other, "a")
    pass_by(conn, 0.01, *queues)
    assert round_of_ticks(conn, idle=False)[0] == 2
    pass_by(conn, 3600, "a")
    assert ops.value(conn, "select pgq.ticker()") == 0, "as pg_cron would call it"
    other.commit()


def test_a_tick_is_stored_in_the_log_that_is_current_when_it_is_stored(
    conn: Connection, connect: Connect, queues: list[str], calls: Calls
) -> None:
    """The ticker waits for the lock on a table; meanwhile the log moves on to the other one."""
    ops.insert(conn, "b", "event")
    pass_by(conn, 0.01, *queues)
    rotation, ticker = connect(autocommit=False), connect()
    rotation.execute("lock table pgq.tick_0 in share mode")
    ticker.execute("select pgq._check_native_txid()")
    ticked = calls.blocked(ops.value, ticker, "select ticks from pgq.ticker_round()")
    rotation.execute("update pgq.log set log_rotations = 1 where log_name = 'tick'")
    rotation.execute("select setval('pgq.tick_log_seq', 1)")
    rotation.commit()
    assert ticked.result() == 1
    assert ops.value(conn, "select count(*) from pgq.tick_1") == 1


def test_consumers_are_notified_of_events_and_not_of_heartbeats(
    conn: Connection, queues: list[str], connect: Connect
) -> None:
    ears = connect(conn.info.dsn)
    ears.execute("listen over")
    for name in queues:
        [(channel,)] = conn.execute("select pgq.tick_channel(%s)", [name]).fetchall()
        ears.execute(f'listen "{channel}"'.encode())
    pass_by(conn, 3600, *queues)
    ops.insert(conn, "b", "event")
    before = newest_ticks(conn)
    assert round_of_ticks(conn)[0] == len(queues)
    # They come in the order of the commits.
    conn.execute("notify over")
    told = []
    for notice in ears.notifies(timeout=PATIENCE):
        if notice.channel == "over":
            break
        told.append(int(notice.payload))
    assert told == [before["b"] + 1]


def test_pending_events_are_those_that_were_inserted_however_often_a_tick_was_forced(
    conn: Connection, queue: str
) -> None:
    """Forcing a tick moves the event sequence by thousands."""
    ops.register(conn, queue, "c")
    pending = "select pending_events from pgq.get_consumer_info(%s, 'c')"
    unticked = "select ev_new from pgq.get_queue_info(%s)"
    for number in range(8):
        ops.insert(conn, queue, f"event {number}")
        conn.execute("select pgq.force_tick(%s)", [queue])
        assert ops.value(conn, unticked, queue) == 1
        if number % 2:
            conn.execute("select pgq.force_tick(%s)", [queue])
        conn.execute("select pgq.ticker(%s)", [queue])
        assert ops.value(conn, unticked, queue) == 0
        assert ops.value(conn, pending, queue) == number + 1
    conn.execute("update pgq.tick_0 set tick_time = tick_time - interval '9 s' where tick_id = 1")
    assert ops.value(conn, "select ev_per_sec < 1 from pgq.get_queue_info(%s)", queue)
    ops.drain(conn, queue, "c")
    assert ops.value(conn, pending, queue) == 0


def test_rotation_forgets_forced_ticks_of_the_past(conn: Connection, queue: str) -> None:
    ops.rotate_whenever_asked(conn, queue)
    for _ in range(12):
        ops.insert_ticked(conn, queue, "event")
        assert ops.rotate(conn, queue)
    assert ops.value(conn, "select count(*) <= 6 from pgq.forced_tick")
