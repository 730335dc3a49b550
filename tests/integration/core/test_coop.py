"""Workers that share one consumer's position get whole batches each: the SQL interface pgq_coop."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import LiteralString

import pytest
from psycopg import IsolationLevel, errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_ticker import eventually

MAIN = "main"
AGES = "2005-01-01"
BLOCKED = "select cardinality(pg_blocking_pids(%s)) > 0"
WAITING = """
select count(*) from pg_locks
 where locktype = 'advisory' and not granted
   and database = (select oid from pg_database where datname = current_database())
"""


def take(conn: Connection, queue: str, worker: str, dead: str | None = None) -> int | None:
    """The worker's next batch, if there is one for it."""
    batch: int | None = ops.value(
        conn, "select pgq_coop.next_batch(%s, %s, %s, %s)", queue, MAIN, worker, dead
    )
    return batch


def finish(conn: Connection, batch: int | None) -> int:
    result: int = ops.value(conn, "select pgq_coop.finish_batch(%s)", batch)
    return result


def finish_as(conn: Connection, queue: str, worker: str, batch: int | None) -> int:
    result: int = ops.value(
        conn, "select pgq_coop.finish_batch(%s, %s, %s, %s)", queue, MAIN, worker, batch
    )
    return result


def keep(conn: Connection, queue: str, worker: str, batch: int | None) -> bool:
    """The worker says that it works on this batch."""
    kept: bool = ops.value(
        conn, "select pgq_coop.keep_batch(%s, %s, %s, %s)", queue, MAIN, worker, batch
    )
    return kept


def fill(conn: Connection, queue: str, *payloads: str) -> None:
    """A batch for each."""
    for data in payloads:
        ops.insert(conn, queue, data)
        ops.tick(conn, queue)


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
        assert ops.value(
            conn, "select pgq_coop.register_subconsumer(%s, %s, %s)", queue, MAIN, worker
        )
    return queue


def test_each_batch_goes_to_one_worker_and_stays_with_it_until_it_is_finished(
    conn: Connection, group: str
) -> None:
    fill(conn, group, "a", "b", "c")
    first, second = take(conn, group, "w1"), take(conn, group, "w2")
    assert first
    assert second
    assert take(conn, group, "w1") == first
    assert ops.payloads(conn, first) == ["a"]
    assert ops.payloads(conn, second) == ["b"]
    assert finish_as(conn, group, "w2", second) == 1
    third = take(conn, group, "w2")
    assert third
    assert ops.payloads(conn, third) == ["c"]
    assert (finish(conn, third), finish(conn, first)) == (1, 1)
    assert (take(conn, group, "w1"), take(conn, group, "w2")) == (None, None)


def test_many_workers_at_once_get_every_event_once(
    conn: Connection, connect: Connect, queue: str
) -> None:
    batches, workers = 60, 6
    conn.execute("create table effect (data text)")
    ops.value(conn, "select pgq_coop.register_subconsumer(%s, %s, 'w0')", queue, MAIN)
    fill(conn, queue, *(f"{number}" for number in range(batches)))
    failures: list[BaseException] = []

    def work(conn: Connection, name: str) -> None:
        try:
            while (batch := take(conn, queue, name, "1 hour")) is not None:
                with conn.transaction():
                    for data in ops.payloads(conn, batch):
                        conn.execute("insert into effect values (%s)", [data])
                    finish_as(conn, queue, name, batch)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[connect(), f"w{n}"]) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    effects = conn.execute("select data::int from effect order by 1").fetchall()
    assert [number for (number,) in effects] == list(range(batches))


def test_the_batch_of_a_silent_worker_is_taken_over_and_lost_to_it(
    conn: Connection, group: str
) -> None:
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
    with pytest.raises(errors.DatabaseError) as failure:
        finish_as(conn, group, "w1", lost)
    assert failure.value.sqlstate == "PQ031"
    assert take(conn, group, "w1", "1 hour") is None, "it joins again, and has nothing"
    with pytest.raises(errors.DatabaseError):
        finish_as(conn, group, "w1", lost)
    assert finish_as(conn, group, "w2", lost) == 1


def test_a_worker_that_sends_heartbeats_or_asks_again_is_not_dead(
    conn: Connection, group: str
) -> None:
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


def test_a_finish_that_is_under_way_is_not_overtaken(
    conn: Connection, connect: Connect, group: str
) -> None:
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
    conn: Connection, connect: Connect, group: str
) -> None:
    fill(conn, group, "a", "b")
    batch = take(conn, group, "w1")
    silence(conn, "w1")
    slow = connect(autocommit=False)
    assert take(slow, group, "w3")
    with ThreadPoolExecutor(1) as pool:
        # It has seen that w1 is silent, and waits for its turn.
        heir = pool.submit(take, connect(), group, "w2", "1 hour")
        eventually(conn, WAITING)
        assert keep(conn, group, "w1", batch)
        slow.commit()
        assert heir.result() is None
    assert finish_as(conn, group, "w1", batch) == 1


def test_a_finish_that_comes_too_late_by_a_moment_fails(
    conn: Connection, connect: Connect, group: str
) -> None:
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    silence(conn, "w1")
    heir = connect(autocommit=False)
    assert take(heir, group, "w2", "1 hour") == batch
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(finish_as, connect(), group, "w1", batch)
        eventually(conn, WAITING)
        heir.commit()
        with pytest.raises(errors.DatabaseError) as failure:
            late.result()
    assert failure.value.sqlstate == "PQ031"
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
    conn: Connection, connect: Connect, group: str, late: LiteralString
) -> None:
    fill(conn, group, "a")
    assert take(conn, group, "w1") == 1
    silence(conn, "w1")
    # In the middle of taking over: the heir is about to give up its own registration.
    gate, heir, other = connect(autocommit=False), connect(), connect()
    gate.execute(
        "select from pgq.registration join pgq.consumer on co_id = sub_consumer"
        " where co_name = 'main.w2' for key share of registration"
    )
    with ThreadPoolExecutor(2) as pool:
        taken = pool.submit(take, heir, group, "w2", "1 hour")
        eventually(conn, BLOCKED, heir.info.backend_pid)
        nothing = pool.submit(ops.value, other, late, group)
        eventually(conn, BLOCKED, other.info.backend_pid)
        gate.rollback()
        assert taken.result() == 1
        assert nothing.result()
    assert "main.w2" in members(conn)
    assert ops.payloads(conn, 1) == ["a"]
    assert finish_as(conn, group, "w2", 1) == 1


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_transaction_with_an_old_snapshot_finishes_its_batch_unless_it_was_lost(
    conn: Connection, connect: Connect, group: str, level: IsolationLevel
) -> None:
    fill(conn, group, "a", "b")
    old = connect(autocommit=False)
    old.isolation_level = level
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
    conn: Connection, connect: Connect, group: str
) -> None:
    """One takes another worker's batch over, while the other has found the old registration."""
    fill(conn, group, "a", "b")
    assert finish(conn, take(conn, group, "w1")) == 1
    lost = take(conn, group, "w2")
    fill(conn, group, "c")
    silence(conn, "w2")
    first, second = connect(autocommit=False), connect()
    assert take(first, group, "w1", "1 hour") == lost
    with ThreadPoolExecutor(1) as pool:
        meanwhile = pool.submit(take, second, group, "w1")
        eventually(conn, WAITING)
        first.commit()
        assert meanwhile.result() == lost
    assert finish_as(conn, group, "w1", lost) == 1
    third = take(conn, group, "w1")
    assert third
    assert ops.payloads(conn, third) == ["c"]


def test_a_transaction_with_an_old_snapshot_removes_no_worker_that_has_taken_a_batch_since(
    conn: Connection, connect: Connect, group: str
) -> None:
    silence(conn, "w1")
    old = connect(autocommit=False)
    old.isolation_level = IsolationLevel.REPEATABLE_READ
    old.execute("select from pgq.queue")
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    with pytest.raises(errors.SerializationFailure):
        take(old, group, "w2", "1 hour")
    old.rollback()
    assert finish_as(conn, group, "w1", batch) == 1


def test_a_transaction_with_an_old_snapshot_unregisters_no_worker_that_has_taken_a_batch_since(
    conn: Connection, connect: Connect, group: str
) -> None:
    old = connect(autocommit=False)
    old.isolation_level = IsolationLevel.REPEATABLE_READ
    old.execute("select from pgq.queue")
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    with pytest.raises(errors.SerializationFailure):
        ops.value(old, "select pgq_coop.unregister_subconsumer(%s, %s, %s, 0)", group, MAIN, "w1")
    old.rollback()
    assert finish_as(conn, group, "w1", batch) == 1


def test_rotation_waits_for_the_slowest_worker(conn: Connection, group: str) -> None:
    ops.rotate_whenever_asked(conn, group)
    fill(conn, group, "slow")
    batch = take(conn, group, "w1")
    assert batch
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
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    assert ops.value(conn, "select pgq.batch_retry(%s, -1)", batch) == 1
    assert finish(conn, batch) == 1
    assert ops.value(conn, "select pgq.maint_retry_events()") == 1
    ops.tick(conn, group)
    again = take(conn, group, "w2")
    assert again
    assert [(row[3], row[5]) for row in ops.events(conn, again)] == [(1, "a")]


def test_other_consumers_of_the_queue_notice_nothing(conn: Connection, group: str) -> None:
    ops.register(conn, group, "alone")
    fill(conn, group, "a", "b")
    batch = take(conn, group, "w1")
    assert ops.drain(conn, group, "alone") == ["a", "b"]
    assert finish(conn, batch) == 1


def test_a_worker_with_an_open_batch_is_not_unregistered_by_the_way(
    conn: Connection, group: str
) -> None:
    fill(conn, group, "a")
    batch = take(conn, group, "w1")
    for handling in (0, 2, None):
        with pytest.raises(errors.DatabaseError) as failure:
            ops.value(
                conn,
                "select pgq_coop.unregister_subconsumer(%s, %s, 'w1', %s)",
                group,
                MAIN,
                handling,
            )
        assert failure.value.sqlstate == "PQ032"
        assert f"batch {batch}" in (failure.value.diag.message_primary or "")
    assert ops.value(conn, "select pgq_coop.unregister_subconsumer(%s, %s, 'w1', 1)", group, MAIN)
    assert finish(conn, batch) == 0
    assert take(conn, group, "w2") is None, "it was closed, not given back"


def test_unregistering_the_consumer_takes_its_workers_with_it(conn: Connection, group: str) -> None:
    fill(conn, group, "a")
    take(conn, group, "w1")
    assert ops.value(conn, "select pgq.unregister_consumer(%s, %s)", group, MAIN) == 3
    assert members(conn) == []
    assert ops.value(conn, "select count(*) from pgq.consumer") == 0


def test_a_worker_goes_alone_also_if_its_batch_was_finished_as_a_consumers(
    conn: Connection, group: str
) -> None:
    """The worker finishes by pgq.finish_batch(), which leaves it a position."""
    fill(conn, group, "a", "b")
    ops.finish(conn, take(conn, group, "w1") or 0)
    assert ops.value(conn, "select pgq.unregister_consumer(%s, 'main.w1')", group) == 1
    assert members(conn) == ["main", "main.w2"]
    batch = take(conn, group, "w2")
    assert batch
    assert ops.payloads(conn, batch) == ["b"]


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
    with pytest.raises(errors.DatabaseError) as failure:
        finish(conn, batch)
    assert failure.value.sqlstate == "PQ038"
    with pytest.raises(errors.DatabaseError) as failure:
        ops.value(conn, "select pgq_coop.next_batch(%s, 'g#1', 'w', '1 hour')", group)
    assert failure.value.sqlstate == "PQ038"
    assert conn.execute(take_one, [member]).fetchall() == [(batch, generation)]
    assert ops.value(conn, "select pgq.finish_group_batch(%s, %s)", batch, generation) == 0


def test_a_plain_consumer_is_an_error_for_workers_that_share(conn: Connection, group: str) -> None:
    fill(conn, group, "a", "b")
    batch = ops.next_batch(conn, group, MAIN)
    with pytest.raises(errors.DatabaseError) as failure:
        take(conn, group, "w1")
    assert failure.value.sqlstate == "PQ016"
    assert f"pgq.finish_batch({batch})" in (failure.value.diag.message_hint or "")
    ops.finish(conn, batch)
    assert take(conn, group, "w1")

    ops.register(conn, group, f"{MAIN}.own")
    for statement in (
        "select pgq_coop.next_batch(%s, %s, 'own')",
        "select pgq_coop.register_subconsumer(%s, %s, 'own')",
        "select pgq_coop.unregister_subconsumer(%s, %s, 'own', 1)",
    ):
        with pytest.raises(errors.DatabaseError) as failure:
            conn.execute(statement.encode(), [group, MAIN])
        assert failure.value.sqlstate == "PQ016"
    fill(conn, group, "c")
    plain = ops.next_batch(conn, group, f"{MAIN}.own")
    assert finish(conn, plain) == 0, "it is no member's batch"
    ops.finish(conn, plain)


def test_positions_of_workers_are_a_log_too(conn: Connection, connect: Connect, group: str) -> None:
    cycles = 200
    forgotten = connect(autocommit=False)
    forgotten.isolation_level = IsolationLevel.REPEATABLE_READ
    assert ops.value(forgotten, "select txid_current()")
    for number in range(cycles):
        fill(conn, group, f"{number}")
        batch = take(conn, group, f"w{number % 2 + 1}", "1 hour")
        assert keep(conn, group, f"w{number % 2 + 1}", batch)
        assert finish(conn, batch) == 1
        if number % 50 == 49:
            ops.rotate_logs(conn)
    conn.execute("select pg_stat_force_next_flush()")
    died = ops.value(
        conn,
        "select sum(n_tup_upd + n_tup_del)::int from pg_stat_user_tables"
        " where schemaname like 'pgq%%' and relname <> 'log'",
    )
    assert died < cycles / 10
    forgotten.rollback()
