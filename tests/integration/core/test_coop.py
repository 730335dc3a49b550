"""Workers that share one consumer's position get whole batches each: the SQL interface pgq_coop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import LiteralString

import pytest
from psycopg import IsolationLevel, errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot

MAIN = "main"
AGES = "2005-01-01"
NEXT: LiteralString = "select pgq_coop.next_batch(%s, %s, %s, %s)"
FINISH = "select pgq_coop.finish_batch(%s, %s, %s, %s)"
KEEP = "select pgq_coop.keep_batch(%s, %s, %s, %s)"
REGISTER = "select pgq_coop.register_subconsumer(%s, %s, %s)"
UNREGISTER: LiteralString = "select pgq_coop.unregister_subconsumer(%s, %s, %s, %s)"


def take(conn: Connection, queue: str, worker: str, dead: str | None = None) -> int | None:
    """The worker's next batch, if there is one for it."""
    batch: int | None = ops.value(conn, NEXT, queue, MAIN, worker, dead)
    return batch


def finish(conn: Connection, batch: int | None) -> int:
    result: int = ops.value(conn, "select pgq_coop.finish_batch(%s)", batch)
    return result


def finish_as(conn: Connection, queue: str, worker: str, batch: int | None) -> int:
    result: int = ops.value(conn, FINISH, queue, MAIN, worker, batch)
    return result


def keep(conn: Connection, queue: str, worker: str, batch: int | None) -> bool:
    """The worker says that it works on this batch."""
    kept: bool = ops.value(conn, KEEP, queue, MAIN, worker, batch)
    return kept


def fill(conn: Connection, queue: str, *payloads: str) -> None:
    """A batch for each."""
    for data in payloads:
        ops.insert_ticked(conn, queue, data)


def silence(conn: Connection, worker: str) -> None:
    """The worker has given no sign of life for years."""
    died = conn.execute(
        "update pgq.subscription set sub_active = %s where sub_consumer ="
        " (select co_id from pgq.consumer where co_name = %s)",
        [AGES, f"{MAIN}.{worker}"],
    )
    assert died.rowcount == 1


def members(conn: Connection) -> list[str]:
    return [row[0] for row in conn.execute("select consumer_name from pgq.get_consumer_info()")]


@pytest.fixture
def group(conn: Connection, queue: str) -> str:
    """A queue with two workers."""
    for worker in ("w1", "w2"):
        assert ops.value(conn, REGISTER, queue, MAIN, worker)
    return queue


def test_each_batch_is_one_workers_until_it_is_finished(conn: Connection, group: str) -> None:
    fill(conn, group, "a", "b", "c")
    first, second = take(conn, group, "w1") or 0, take(conn, group, "w2") or 0
    assert take(conn, group, "w1") == first
    assert ops.payloads(conn, first) == ["a"]
    assert ops.payloads(conn, second) == ["b"]
    assert finish_as(conn, group, "w2", second) == 1
    third = take(conn, group, "w2") or 0
    assert ops.payloads(conn, third) == ["c"]
    assert (finish(conn, third), finish(conn, first)) == (1, 1)
    assert (take(conn, group, "w1"), take(conn, group, "w2")) == (None, None)


def test_many_workers_get_each_event_once(conn: Connection, connect: Connect, queue: str) -> None:
    batches, workers = 40, 6
    conn.execute("create table effect (data text)")
    ops.value(conn, REGISTER, queue, MAIN, "w0")
    fill(conn, queue, *(f"{number}" for number in range(batches)))

    def work(name: str, conn: Connection) -> None:
        while (batch := take(conn, queue, name, "1 hour")) is not None:
            with conn.transaction():
                for data in ops.payloads(conn, batch):
                    conn.execute("insert into effect values (%s)", [data])
                finish_as(conn, queue, name, batch)

    with ThreadPoolExecutor(workers) as pool:
        names = [f"w{number}" for number in range(workers)]
        list(pool.map(work, names, [connect() for _ in names]))
    effects = conn.execute("select data::int from effect order by 1").fetchall()
    assert [number for (number,) in effects] == list(range(batches))


def test_the_batch_of_a_silent_worker_is_taken_over(conn: Connection, group: str) -> None:
    fill(conn, group, "a", "b")
    lost = take(conn, group, "w1", "1 hour")
    assert take(conn, group, "w2", "1 hour") != lost
    assert finish(conn, lost and lost + 1) == 1
    assert take(conn, group, "w2", "1 hour") is None
    silence(conn, "w1")
    assert take(conn, group, "w2") is None, "without a dead interval no worker is taken for dead"
    assert take(conn, group, "w2", "1 hour") == lost
    assert members(conn) == [MAIN, f"{MAIN}.w2"]

    assert not keep(conn, group, "w1", lost)
    for _ in range(2):
        with ops.refused("PQ031"):
            finish_as(conn, group, "w1", lost)
        assert take(conn, group, "w1", "1 hour") is None, "it joins again, and has nothing"
    assert finish_as(conn, group, "w2", lost) == 1


def test_a_worker_that_beats_or_asks_again_is_not_dead(conn: Connection, group: str) -> None:
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    silence(conn, "w1")
    assert keep(conn, group, "w1", batch)
    assert take(conn, group, "w2", "1 hour") is None
    silence(conn, "w1")
    assert take(conn, group, "w1") == batch
    assert take(conn, group, "w2", "1 hour") is None
    assert not keep(conn, group, "w2", batch)


def test_a_worker_that_looks_for_work_and_finds_none_lives(conn: Connection, group: str) -> None:
    for worker in ("w1", "w2"):
        silence(conn, worker)
    assert take(conn, group, "w2", "1 hour") is None
    assert members(conn) == [MAIN, f"{MAIN}.w2"], "w1 has not looked"
    assert take(conn, group, "w1", "1 hour") is None
    assert members(conn) == [MAIN, f"{MAIN}.w1", f"{MAIN}.w2"]
    # A second look, moments later, has nothing to add.
    before = ops.value(conn, "select count(*) from pgq.position_0")
    assert take(conn, group, "w2", "1 hour") is None
    assert ops.value(conn, "select count(*) from pgq.position_0") == before


def test_workers_killed_while_idle_leave_nothing_behind(conn: Connection, queue: str) -> None:
    for number in range(5):
        assert take(conn, queue, f"w{number}") is None
        silence(conn, f"w{number}")
    assert take(conn, queue, "last", "1 hour") is None
    assert members(conn) == [MAIN, f"{MAIN}.last"]
    names = conn.execute("select co_name from pgq.consumer order by 1").fetchall()
    assert [name for (name,) in names] == [MAIN, f"{MAIN}.last"]


def test_a_finish_is_not_overtaken(conn: Connection, connect: Connect, group: str) -> None:
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    silence(conn, "w1")
    slow = connect(autocommit=False)
    finish_as(slow, group, "w1", batch)
    assert take(conn, group, "w2", "1 hour") is None
    slow.commit()
    assert take(conn, group, "w2", "1 hour") is None
    assert finish(conn, batch) == 0


def test_a_worker_that_speaks_up_at_the_last_moment_keeps_its_batch(
    conn: Connection, connect: Connect, group: str, calls: Calls
) -> None:
    fill(conn, group, "a", "b")
    batch = take(conn, group, "w1")
    silence(conn, "w1")
    slow = connect(autocommit=False)
    assert take(slow, group, "w3")
    # It has seen that w1 is silent, and waits for its turn.
    heir = calls.blocked(take, connect(), group, "w2", "1 hour")
    assert keep(conn, group, "w1", batch)
    slow.commit()
    assert heir.result() is None
    assert finish_as(conn, group, "w1", batch) == 1


def test_a_finish_that_comes_too_late_by_a_moment_fails(
    conn: Connection, connect: Connect, group: str, calls: Calls
) -> None:
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    silence(conn, "w1")
    heir = connect(autocommit=False)
    assert take(heir, group, "w2", "1 hour") == batch
    late = calls.blocked(finish_as, connect(), group, "w1", batch)
    heir.commit()
    with ops.refused("PQ031"):
        late.result()
    assert finish_as(conn, group, "w2", batch) == 1


@pytest.mark.parametrize(
    "late",
    [
        "select pgq_coop.unregister_subconsumer(%s, 'main', 'w1', 1) = 0",
        "select pgq.unregister_consumer(%s, 'main.w1') = 0",
        "select not pgq_coop.keep_batch(%s, 'main', 'w1', 1)",
    ],
)
def test_what_comes_too_late_by_a_moment_does_nothing_to_the_heir(
    conn: Connection, connect: Connect, group: str, calls: Calls, late: LiteralString
) -> None:
    fill(conn, group, "a")
    assert take(conn, group, "w1") == 1
    silence(conn, "w1")
    # In the middle of taking over: the heir is about to give up its own registration.
    gate = connect(autocommit=False)
    gate.execute(
        "select from pgq.registration join pgq.consumer on co_id = sub_consumer"
        " where co_name = 'main.w2' for key share of registration"
    )
    taken = calls.blocked(take, connect(), group, "w2", "1 hour")
    nothing = calls.blocked(ops.value, connect(), late, group)
    gate.rollback()
    assert taken.result() == 1
    assert nothing.result()
    assert "main.w2" in members(conn)
    assert ops.payloads(conn, 1) == ["a"]
    assert finish_as(conn, group, "w2", 1) == 1


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_an_old_snapshot_finishes_its_batch_unless_it_was_lost(
    conn: Connection, connect: Connect, group: str, level: IsolationLevel
) -> None:
    fill(conn, group, "a", "b")
    old = connect(level=level)
    for lost in (False, True):
        batch = take(conn, group, "w1")
        ops.value(old, "select count(*) from pgq.queue")
        for _ in range(3):
            assert keep(conn, group, "w1", batch)
        if not lost:
            assert finish_as(old, group, "w1", batch) == 1
            old.commit()
            assert take(conn, group, "w1") not in (None, batch)
            continue
        silence(conn, "w1")
        assert take(conn, group, "w2", "1 hour") == batch
        with pytest.raises(errors.SerializationFailure):
            finish_as(old, group, "w1", batch)
        old.rollback()
        assert finish_as(conn, group, "w2", batch) == 1


def test_two_of_one_name_do_not_lose_the_batch_that_neither_of_them_has(
    conn: Connection, connect: Connect, group: str, calls: Calls
) -> None:
    """One takes another worker's batch over, while the other has found the old registration."""
    fill(conn, group, "a", "b")
    assert finish(conn, take(conn, group, "w1")) == 1
    lost = take(conn, group, "w2")
    fill(conn, group, "c")
    silence(conn, "w2")
    first = connect(autocommit=False)
    assert take(first, group, "w1", "1 hour") == lost
    meanwhile = calls.blocked(take, connect(), group, "w1")
    first.commit()
    assert meanwhile.result() == lost
    assert finish_as(conn, group, "w1", lost) == 1
    assert ops.payloads(conn, take(conn, group, "w1") or 0) == ["c"]


@pytest.mark.parametrize("call", [(NEXT, "w2", "1 hour"), (UNREGISTER, "w1", 0)])
def test_an_old_snapshot_removes_no_worker_that_has_taken_a_batch_since(
    conn: Connection, connect: Connect, group: str, call: tuple[LiteralString, str, object]
) -> None:
    statement, worker, argument = call
    silence(conn, "w1")
    old = with_snapshot(connect)
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    with pytest.raises(errors.SerializationFailure):
        ops.value(old, statement, group, MAIN, worker, argument)
    old.rollback()
    assert finish_as(conn, group, "w1", batch) == 1


def test_rotation_waits_for_the_slowest_worker(conn: Connection, group: str) -> None:
    ops.rotate_whenever_asked(conn, group)
    fill(conn, group, "slow")
    batch = take(conn, group, "w1") or 0
    for number in range(10):
        fill(conn, group, f"{number}")
        finish(conn, take(conn, group, "w2"))
        ops.rotate(conn, group)
        ops.rotate_logs(conn)
    assert ops.payloads(conn, batch) == ["slow"]
    before = ops.rotations(conn, group)
    assert finish(conn, batch) == 1
    fill(conn, group, "next")
    finish(conn, take(conn, group, "w2"))
    assert ops.rotate(conn, group)
    assert ops.rotations(conn, group) > before


def test_a_retried_event_goes_to_the_next_worker(conn: Connection, group: str) -> None:
    ops.register(conn, group, "alone")
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    assert ops.drain(conn, group, "alone") == ["a"]
    assert ops.value(conn, "select pgq.batch_retry(%s, -1)", batch) == 1
    assert finish(conn, batch) == 1
    assert ops.value(conn, "select pgq.maint_retry_events()") == 1
    ops.tick(conn, group)
    again = ops.events(conn, take(conn, group, "w2") or 0)
    assert [(row[3], row[5]) for row in again] == [(1, "a")]
    assert ops.drain(conn, group, "alone") == []


def test_a_worker_with_a_batch_is_not_unregistered(conn: Connection, group: str) -> None:
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    for handling in (0, 2, None):
        with ops.refused("PQ032", match=f"batch {batch}"):
            ops.value(conn, UNREGISTER, group, MAIN, "w1", handling)
    assert ops.value(conn, UNREGISTER, group, MAIN, "w1", 1)
    assert finish(conn, batch) == 0
    assert take(conn, group, "w2") is None, "it was closed, not given back"
    assert ops.value(conn, "select pgq.unregister_consumer(%s, %s)", group, MAIN) == 2
    assert members(conn) == [], "its workers go with it"
    assert ops.value(conn, "select count(*) from pgq.consumer") == 0


def test_a_worker_with_a_position_goes_alone(conn: Connection, group: str) -> None:
    """The worker finishes by pgq.finish_batch(), which leaves it a position."""
    fill(conn, group, "a", "b")
    ops.finish(conn, take(conn, group, "w1") or 0)
    assert ops.value(conn, "select pgq.unregister_consumer(%s, 'main.w1')", group) == 1
    assert members(conn) == ["main", "main.w2"]
    assert ops.payloads(conn, take(conn, group, "w2") or 0) == ["b"]


def test_partitions_of_a_consumer_group_are_no_workers(conn: Connection, group: str) -> None:
    """They, too, share retried events, and no position."""
    ops.value(conn, "select pgq.create_group(%s, 'g', 2, 'ev_extra1')", group)
    ops.value(
        conn,
        "select pgq.insert_event(%s, 't', 'a', '1', null, null, null) from generate_series(1, 2)",
        group,
    )
    ops.tick(conn, group)
    member = ops.value(conn, "select member_id from pgq.join_group(%s, 'g', 'w')", group)
    take_one = "select batch_id, generation from pgq.next_group_batch(%s, 100)"
    [(batch, generation)] = conn.execute(take_one, [member]).fetchall()
    assert batch
    with ops.refused("PQ038"):
        finish(conn, batch)
    with ops.refused("PQ038"):
        ops.value(conn, "select pgq_coop.next_batch(%s, 'g#1', 'w', '1 hour')", group)
    assert conn.execute(take_one, [member]).fetchall() == [(batch, generation)]
    assert ops.value(conn, "select pgq.finish_group_batch(%s, %s)", batch, generation) == 0


def test_a_plain_consumer_is_an_error_for_workers_that_share(conn: Connection, group: str) -> None:
    fill(conn, group, "a", "b")
    batch = ops.next_batch(conn, group, MAIN)
    with ops.refused("PQ016") as failure:
        take(conn, group, "w1")
    assert f"pgq.finish_batch({batch})" in (failure.value.diag.message_hint or "")
    ops.finish(conn, batch)
    assert take(conn, group, "w1")

    ops.register(conn, group, f"{MAIN}.own")
    for statement in (
        "select pgq_coop.next_batch(%s, %s, 'own')",
        "select pgq_coop.register_subconsumer(%s, %s, 'own')",
        "select pgq_coop.unregister_subconsumer(%s, %s, 'own', 1)",
    ):
        with ops.refused("PQ016"):
            conn.execute(statement.encode(), [group, MAIN])
    fill(conn, group, "c")
    plain = ops.next_batch(conn, group, f"{MAIN}.own")
    assert finish(conn, plain) == 0, "it is no member's batch"
    ops.finish(conn, plain)


def test_positions_of_workers_are_a_log_too(conn: Connection, connect: Connect, group: str) -> None:
    cycles = 80
    forgotten = connect(level=IsolationLevel.REPEATABLE_READ)
    assert ops.value(forgotten, "select txid_current()")
    for number in range(cycles):
        fill(conn, group, f"{number}")
        batch = take(conn, group, f"w{number % 2 + 1}", "1 hour")
        assert keep(conn, group, f"w{number % 2 + 1}", batch)
        assert finish(conn, batch) == 1
        if number % 20 == 19:
            ops.rotate_logs(conn)
    conn.execute("select pg_stat_force_next_flush()")
    died = ops.value(
        conn,
        "select sum(n_tup_upd + n_tup_del)::int from pg_stat_user_tables"
        " where schemaname like 'pgq%%' and relname <> 'log'",
    )
    assert died < cycles / 10
    forgotten.rollback()
