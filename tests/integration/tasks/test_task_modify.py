"""Any number of tasks are inserted, changed and deleted: all of them, or none."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.types.json import Jsonb

from pgqpy.errors import TaskConflict, translate_errors
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot
from tests.fixtures.task_ops import refused, sweep_until, task_of

Q, R = "map", "reduce"


@pytest.fixture(autouse=True)
def task_queues(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(q) from unnest(%s::text[]) q", [[Q, R]])


def conflicts(call: Callable[[], object]) -> list[dict[str, Any]]:
    """The conflicts that a call ends with; what does not tell them apart from others only."""
    with pytest.raises(TaskConflict) as caught, translate_errors():
        call()
    named = ("kind", "id", "version", "reason", "unique_key", "other")
    return [{n: c[n] for n in named if n in c} for c in caught.value.conflicts]


def change(task: int, version: int = 1, **attributes: Any) -> tasks.Row:
    return {"id": task, "version": version} | attributes


def everything(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute("select t::text from pgq_task.task t order by id").fetchall()


def test_a_task_is_worked_off_and_others_come_of_it_in_one_step(conn: Connection) -> None:
    done = tasks.push(conn, Q, {"page": 1})
    changed = tasks.push(conn, Q, {"page": 2}, headers={"h": 1}, priority=2)
    watched = tasks.push(conn, R)
    claimed = dict(tasks.claim(conn, Q, number=2))
    result = tasks.modify(
        conn,
        inserts=[
            {"queue": R, "payload": {"word": "a"}, "priority": 7, "headers": {"x": [1]}},
            {"queue": R, "payload": None, "delay": "1 hour", "unique_key": "u", "order_key": "o"},
        ],
        changes=[{"id": changed, "version": claimed[changed], "queue": R, "payload": [3]}],
        deletes=[(done, claimed[done])],
        depends=[(watched, 1)],
    )
    first, second = (row[2] for row in result if row[0] == "insert")
    assert result == [
        ("change", 1, changed, 3),
        ("delete", 1, done, None),
        ("insert", 1, first, 1),
        ("insert", 2, second, 1),
    ]
    assert tasks.statuses(conn) == {
        watched: "available",
        changed: "available",
        first: "available",
        second: "scheduled",
    }
    moved = task_of(conn, changed)
    assert (moved["queue"], moved["payload"], moved["headers"]) == (R, [3], {"h": 1})
    assert (moved["priority"], moved["attempts"], moved["claimant"]) == (2, 0, None)
    inserted = task_of(conn, first)
    assert (inserted["payload"], inserted["headers"]) == ({"word": "a"}, {"x": [1]})
    # of both lanes, also of the one that did not exist
    assert tasks.ids(tasks.claim(conn, R, number=9)) == [first, changed, watched]


def test_each_task_that_stands_in_the_way_is_named_and_nothing_is_done(conn: Connection) -> None:
    mine, foreign, gone, older, seen = (tasks.push(conn, Q) for _ in range(5))
    conn.execute("delete from pgq_task.task where id = %s", [gone])
    tasks.modify(conn, changes=[change(older, delay="1 hour")])
    tasks.modify(conn, changes=[change(seen, delay="1 hour")])
    assert tasks.claim(conn, Q, claimant="w") == [(mine, 2)]
    assert tasks.claim(conn, Q, claimant="other") == [(foreign, 2)]
    before = everything(conn)
    found = conflicts(
        lambda: tasks.modify(
            conn,
            inserts=[{"queue": Q}],
            changes=[change(foreign, 2), change(mine, 2)],
            deletes=[(gone, 1), (older, 1)],
            depends=[(seen, 1)],
        )
    )
    assert found == [
        {"kind": "change", "id": foreign, "version": 2, "reason": "claimed"},
        {"kind": "delete", "id": gone, "version": 1, "reason": "missing"},
        {"kind": "delete", "id": older, "version": 1, "reason": "missing"},
        {"kind": "depend", "id": seen, "version": 1, "reason": "missing"},
    ]
    assert everything(conn) == before


def test_the_version_counts_and_not_a_lease_that_has_ended(conn: Connection) -> None:
    task = tasks.push(conn, Q)
    tasks.claim(conn, Q, claimant="slow", lease="1 millisecond")
    conn.execute("select pg_sleep(0.01)")
    assert tasks.claim(conn, Q, claimant="quick", lease="1 millisecond") == [(task, 3)]
    conn.execute("select pg_sleep(0.01)")
    assert conflicts(lambda: tasks.modify(conn, deletes=[(task, 2)], claimant="slow"))
    assert tasks.modify(conn, deletes=[(task, 3)], claimant="slow")


def test_ids_can_be_chosen(conn: Connection) -> None:
    (reserved,) = conn.execute("select pgq_task.reserve_ids(2) limit 1").fetchall()[0]
    assert [
        row[2]
        for row in tasks.modify(
            conn, inserts=[{"queue": Q, "id": -5}, {"queue": Q, "id": reserved}, {"queue": Q}]
        )
    ][:2] == [-5, reserved]
    for foreign in (0, reserved + 1000):
        assert "cannot be chosen" in refused(
            lambda foreign=foreign: tasks.modify(conn, inserts=[{"queue": Q, "id": foreign}])  # type: ignore[misc]
        )
    # and a push never gets one of them
    assert tasks.push(conn, Q) not in (-5, reserved)


def test_an_id_is_reserved_for_one_task_of_one_role(conn: Connection, connect: Connect) -> None:
    """Otherwise a result can be forged, by a task with the id of one that has ended."""
    ended = tasks.push(conn, Q)
    old = with_snapshot(connect)
    tasks.finish(conn, *tasks.claim(conn, Q))
    # It is still there in an old snapshot.
    of_ended: list[tasks.Row] = [{"queue": Q, "id": ended}]
    assert tasks.modify(old, inserts=of_ended, skip=True) == [("skip", 1, ended, 1)]
    old.rollback()
    reserve: LiteralString = "select pgq_task.reserve_ids()"
    other, unused = ops.value(conn, reserve), ops.value(conn, reserve)
    tasks.as_role(conn, "pgq_reader")
    mine = ops.value(conn, reserve)
    own: list[tasks.Row] = [{"queue": Q, "id": mine}]
    assert tasks.modify(conn, inserts=own) == [("insert", 1, mine, 1)]
    assert tasks.modify(conn, inserts=own, skip=True) == [("skip", 1, mine, 1)]
    tasks.finish(conn, *tasks.claim(conn, Q))
    for taken in (ended, other, mine):
        again: list[tasks.Row] = [{"queue": Q, "id": taken}]
        assert "this role has not reserved it, or has used it" in refused(
            lambda again=again: tasks.modify(conn, inserts=again, skip=True)  # type: ignore[misc]
        )
    conn.execute("reset role")
    left: LiteralString = "select array_agg(id order by id) from pgq_task.reserved_id"
    assert ops.value(conn, left) == [other, unused]
    conn.execute("update pgq_task.reserved_id set until = now() where id = %s", [unused])
    tasks.sweep_twentieth(conn)
    assert ops.value(conn, left) == [other]


def test_a_collision_does_not_tell_the_version_of_a_task_that_may_not_be_read(
    conn: Connection,
) -> None:
    task = tasks.push(conn, Q)
    conn.execute("select pgq_task.restrict_queue(%s)", [Q])
    tasks.as_role(conn, "pgq_reader")
    inserts: list[tasks.Row] = [{"queue": R, "id": task}]
    assert tasks.modify(conn, inserts=inserts, skip=True) == [("skip", 1, task, None)]
    (found,) = conflicts(lambda: tasks.modify(conn, inserts=inserts))
    assert found == {"kind": "insert", "id": task, "reason": "collision", "other": task}
    assert found in conflicts(lambda: tasks.modify(conn, inserts=inserts, deletes=[(-9, 1)]))


def test_inserts_that_collide_are_refused_or_left_out(conn: Connection) -> None:
    first = tasks.push(conn, Q, unique_key="k")
    tasks.modify(conn, inserts=[{"queue": Q, "id": -1}])
    inserts: list[tasks.Row] = [
        {"queue": Q, "unique_key": "k"},
        {"queue": Q, "id": -1},
        {"queue": R, "unique_key": "k"},
        {"queue": R, "unique_key": "k", "payload": "again"},
    ]
    before = everything(conn)
    found = conflicts(lambda: tasks.modify(conn, inserts=inserts))
    assert [(c["reason"], c["other"]) for c in found[:2]] == [
        ("collision", first),
        ("collision", -1),
    ]
    assert len(found) == 3
    some = [one | {"skip_collisions": nr != 1} for nr, one in enumerate(inserts)]
    assert conflicts(lambda: tasks.modify(conn, inserts=some, skip=True)) == found[1:2]
    lost = conflicts(lambda: tasks.modify(conn, inserts=some, deletes=[(10**9, 1)]))
    assert lost[1:] == found[1:2]
    assert everything(conn) == before
    del some[1]
    assert [row[0] for row in tasks.modify(conn, inserts=some)] == ["skip", "insert", "skip"]
    conn.execute("delete from pgq_task.task where queue_id = 2")
    result = tasks.modify(conn, inserts=inserts, skip=True)
    third = result[2][2]
    assert result == [
        ("skip", 1, first, 1),
        ("skip", 2, -1, 1),
        ("insert", 3, third, 1),
        ("skip", 4, third, 1),
    ]


def test_collisions_are_named_beside_what_is_missing_or_claimed(conn: Connection) -> None:
    holder = tasks.push(conn, Q, unique_key="held")
    keys = ("deleted", "moved", "renamed", "late", "second")
    deleted, moved, renamed, late, second = (tasks.push(conn, Q, unique_key=key) for key in keys)
    plain = tasks.push(conn, Q)
    foreign = tasks.push(conn, R)
    tasks.claim(conn, R, claimant="other")
    inserts: list[tasks.Row] = [
        {"queue": Q, "unique_key": "held"},
        {"queue": Q, "id": plain},
        # free by then
        *({"queue": Q, "unique_key": key} for key in ("deleted", "moved", "renamed")),
        {"queue": R, "unique_key": "late"},
        {"queue": R, "unique_key": "twice"},
        {"queue": R, "unique_key": "twice"},
        # by the change of another one
        {"queue": Q, "unique_key": "new"},
        {"queue": "nowhere", "unique_key": "held"},
    ]
    changes = [
        change(moved, queue=R),
        change(renamed, unique_key="new"),
        change(late, unique_key="held"),
        # with another change
        change(second, unique_key="new"),
    ]
    deletes = [(deleted, 1), (foreign, 2), (10**9, 1)]
    before = everything(conn)
    lost = [
        {"kind": "delete", "id": foreign, "version": 2, "reason": "claimed"},
        {"kind": "delete", "id": 10**9, "version": 1, "reason": "missing"},
    ]
    collided = {"kind": "change", "reason": "collision"}
    changed = [
        collided | change(late, unique_key="held", other=holder),
        collided | change(second, unique_key="new"),
    ]
    found = conflicts(lambda: tasks.modify(conn, inserts=inserts, changes=changes, deletes=deletes))
    collided = {"kind": "insert", "reason": "collision"}
    assert found == [
        *lost,
        *changed,
        collided | change(holder, unique_key="held", other=holder),
        collided | change(plain, other=plain),
        collided | {"unique_key": "twice"},
        collided | {"unique_key": "new"},
    ]
    # Entries that are to be left out block no others.
    found = conflicts(
        lambda: tasks.modify(conn, inserts=inserts, changes=changes, deletes=deletes, skip=True)
    )
    assert found == [*lost, *changed]
    assert everything(conn) == before


def test_changes_that_collide_are_refused(conn: Connection) -> None:
    here = tasks.push(conn, Q, unique_key="k")
    there = tasks.push(conn, R, unique_key="k")
    collided = {"kind": "change", "reason": "collision"}
    assert conflicts(lambda: tasks.modify(conn, changes=[change(here, queue=R)])) == [
        collided | change(here, unique_key="k", other=there)
    ]
    assert tasks.modify(conn, changes=[change(here, queue=R, unique_key="a")])
    # Keys cannot be exchanged in one call.
    other = tasks.push(conn, R, unique_key="b")
    exchange = [change(here, 2, unique_key="b"), change(other, unique_key="a")]
    found = conflicts(lambda: tasks.modify(conn, changes=exchange))
    assert [(c["id"], c["other"]) for c in found] == [(here, other), (other, here)]
    # A key is free beside the delete of its task.
    assert tasks.modify(conn, inserts=[{"queue": R, "unique_key": "k"}], deletes=[(there, 1)])


def test_an_insert_waits_for_the_task_with_its_key(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    first = tasks.push(conn, Q, unique_key="k")
    inserts: list[tasks.Row] = [{"queue": Q, "unique_key": "k"}]
    other = connect(autocommit=False)
    for end, expected in ((other.rollback, "skip"), (other.commit, "insert")):
        other.execute("delete from pgq_task.task where id = %s", [first])
        call = calls.blocked(lambda own: tasks.modify(own, inserts=inserts, skip=True), conn)
        end()
        assert [row[0] for row in call.result()] == [expected]


def test_an_insert_is_not_skipped_for_an_ended_task(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    first = tasks.push(conn, Q, unique_key="k")
    # The call stops after its inserts, where it wakes the workers.
    other = connect(autocommit=False)
    other.execute("drop sequence pgq_task.waiting_1")
    inserts: list[tasks.Row] = [{"queue": Q, "priority": 9}, {"queue": Q, "unique_key": "k"}]
    call = calls.blocked(lambda own: tasks.modify(own, inserts=inserts, skip=True), conn)
    connect().execute("delete from pgq_task.task where id = %s", [first])
    other.rollback()
    assert [(row[0], row[1]) for row in call.result()] == [("insert", 1), ("insert", 2)]


def test_a_change_ends_the_claim_unless_it_is_to_be_kept(conn: Connection) -> None:
    task = tasks.push(conn, Q)
    tasks.claim(conn, Q)
    tasks.modify(
        conn, changes=[{"id": task, "version": 2, "payload": {"step": 1}, "keep_lease": True}]
    )
    kept = task_of(conn, task)
    assert (kept["status"], kept["claimant"], kept["version"]) == ("claimed", "w", 3)
    assert kept["payload"] == {"step": 1}
    conn.execute("select pgq_task.finish('w', id, version) from pgq_task.tasks")
    task = tasks.push(conn, Q)
    tasks.claim(conn, Q)
    tasks.modify(conn, changes=[change(task, 2, error="later", attempts=5)])
    assert tasks.claim(conn, Q, claimant="other") == [(task, 4)]
    taken = task_of(conn, task)
    assert (taken["error"], taken["attempts"]) == ("later", 6)


def test_a_lease_that_was_kept_ends_like_any_other(conn: Connection) -> None:
    task = tasks.push(conn, Q)
    tasks.claim(conn, Q, lease="300 milliseconds")
    lease = ops.value(conn, "select lease from pgq_task.task")
    tasks.modify(conn, changes=[change(task, 2, keep_lease=True)])
    assert ops.value(conn, "select lease from pgq_task.task") == lease
    assert wait_until(lambda: tasks.claim(conn, Q, claimant="other")) == [(task, 4)]
    assert ops.value(conn, "select last_attempt from pgq_task.task") >= lease


def test_a_moved_task_stands_behind_the_mark_of_its_lane(conn: Connection) -> None:
    """Sweeps go past what is dead; claims begin behind that."""
    moved = tasks.push(conn, Q)
    low = (
        "select low from pgq_task.marked_lane join pgq_task.queue using (queue_id)"
        " where queue_name = %s"
    )
    place = ops.value(conn, "select pos from pgq_task.task")
    # A claim of that number guesses where the next one begins; then the lane is not idle.
    tasks.push_many(conn, R, 32)
    tasks.modify(conn, deletes=tasks.claim(conn, R, number=32))
    sweep_until(conn, lambda: ops.value(conn, low, R) > place)
    tasks.modify(conn, changes=[change(moved, queue=R)])
    assert tasks.claim(conn, R) == [(moved, 3)]
    # A lease that has ended, and is kept, does not stand before the mark either.
    conn.execute("update pgq_task.task set lease = 'epoch', pos = 0")
    tasks.modify(conn, changes=[change(moved, 3, keep_lease=True)])
    assert tasks.claim(conn, R) == [(moved, 5)]
    # Its claim stands at the end of the lease, where it is looked for then.
    tasks.modify(conn, changes=[change(moved, 5, keep_lease=True)])
    assert ops.value(conn, "select pos = pgq_task._position_of(lease) from pgq_task.task")


def test_times_stay_unless_they_are_changed(conn: Connection) -> None:
    later = tasks.push(conn, Q, delay=timedelta(hours=1))
    due = ops.value(conn, "select at from pgq_task.tasks")
    tasks.modify(conn, changes=[change(later, payload=1, priority=-4)])
    assert ops.value(conn, "select at from pgq_task.tasks") == due
    soon = datetime.now(UTC) + timedelta(minutes=5)
    tasks.modify(conn, changes=[change(later, 2, at=soon.isoformat())])
    assert ops.value(conn, "select at from pgq_task.tasks") == soon
    tasks.modify(conn, changes=[change(later, 3, delay="0")])
    assert tasks.claim(conn, Q) == [(later, 5)]


def test_a_stopped_task_waits_for_a_person(conn: Connection) -> None:
    task = tasks.push(conn, Q)
    assert ops.value(conn, "select pgq_task.stop(%s, 1)", task) == 2
    assert tasks.statuses(conn) == {task: "stopped"}
    tasks.modify(conn, changes=[change(task, 2, payload="mended")])
    assert tasks.claim(conn, Q) == []
    assert conflicts(lambda: conn.execute("select pgq_task.start(%s, 1)", [task]))
    assert ops.value(conn, "select pgq_task.start(%s)", task) == 4
    assert tasks.claim(conn, Q) == [(task, 5)]
    (conflict,) = conflicts(lambda: conn.execute("select pgq_task.stop(%s)", [task]))
    assert conflict["reason"] == "claimed"
    assert conflicts(lambda: conn.execute("select pgq_task.stop(-1)"))


def test_people_can_override_versions_and_claims(conn: Connection) -> None:
    one, two = tasks.push(conn, Q), tasks.push(conn, Q)
    tasks.claim(conn, Q, number=2, claimant="other")
    assert tasks.modify(
        conn, changes=[{"id": one, "queue": R}], deletes=[(two, 99)], force=True
    ) == [("change", 1, one, 3), ("delete", 1, two, None)]
    (conflict,) = conflicts(lambda: tasks.modify(conn, deletes=[(two, 1)], force=True))
    assert conflict["reason"] == "missing"
    # but not what they say that it depends on
    assert conflicts(lambda: tasks.modify(conn, depends=[(one, 1)], force=True))


def test_moving_a_task_keeps_the_order_of_its_key_in_both_queues(conn: Connection) -> None:
    first, second, third = (tasks.push(conn, Q, order_key="o") for _ in range(3))
    there = tasks.push(conn, R, order_key="o")
    hold_back(conn)
    tasks.modify(conn, changes=[change(first, queue=R)])
    # The oldest goes first, also if it came last.
    for queue, expected in ((Q, [second, third]), (R, [first, there])):
        for task in expected:
            claimed = tasks.claim(conn, queue, number=9)
            assert tasks.ids(claimed) == [task]
            tasks.modify(conn, deletes=claimed)


def test_a_task_that_gets_another_key_releases_tasks_that_wait_for_it(conn: Connection) -> None:
    first, second = (tasks.push(conn, Q, order_key="o") for _ in range(2))
    hold_back(conn)
    tasks.modify(conn, changes=[change(first, order_key=None, stop=True)])
    assert tasks.ids(tasks.claim(conn, Q, number=9)) == [second]


def hold_back(conn: Connection) -> None:
    """Hold tasks back, like sweeps if many wait for earlier ones: they get no position."""
    conn.execute("select pgq_task._hold_back(id) from pgq_task.task")
    assert ops.value(conn, "select bool_or(pos is null) from pgq_task.task")


@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
def test_of_two_that_modify_a_task_at_once_one_does(
    conn: Connection, connect: Connect, calls: Calls, level: IsolationLevel
) -> None:
    task = tasks.push(conn, Q)
    first, second = connect(autocommit=False), with_snapshot(connect, level)
    inserts: list[tasks.Row] = [{"queue": R, "payload": "second"}]
    tasks.modify(first, deletes=[(task, 1)], inserts=[{"queue": R, "payload": "first"}])
    call = calls.blocked(lambda c: tasks.modify(c, deletes=[(task, 1)], inserts=inserts), second)
    first.commit()
    with ops.refused("PQ071" if level is IsolationLevel.READ_COMMITTED else "40001"):
        call.result()
    second.rollback()
    assert conn.execute("select payload from pgq_task.tasks").fetchall() == [("first",)]


def test_a_dependency_stays_until_the_commit(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    task = tasks.push(conn, Q)
    # It may be claimed by others.
    tasks.claim(conn, Q, claimant="other", lease="1 microsecond")
    first, second, third = (connect(autocommit=False) for _ in range(3))
    for each in (first, second):
        tasks.modify(each, depends=[(task, 2)], inserts=[{"queue": R}])
    assert tasks.claim(third, Q) == []
    call = calls.blocked(lambda own: tasks.modify(own, deletes=[(task, 2)]), third)
    first.commit()
    tasks.wait_until_blocked(conn, third)
    second.commit()
    assert call.result()


def test_modifications_do_not_deadlock(conn: Connection, connect: Connect) -> None:
    """Each moves random tasks, in a random order, and depends on others: every call ends, and none
    of the tasks is stuck then."""
    ids = [tasks.push(conn, Q, order_key="o" if n % 3 else None) for n in range(12)]
    hold_some_back: LiteralString = (
        "select pgq_task._hold_back(t.id) from (select id from pgq_task.task where id = any (%s)"
        " and lease is null for no key update skip locked) t"
    )

    def work(seed: int) -> int:
        chance = random.Random(seed)
        mine = connect()
        done = 0
        for _ in range(40):
            some = chance.sample(ids, 6)
            # Like a sweep it gives up early: "skip locked" may wait if a row is just being updated.
            with suppress(psycopg.errors.LockNotAvailable), mine.transaction():
                mine.execute("set local lock_timeout = '100ms'")
                mine.execute(hold_some_back, [some])
            versions: dict[int, int] = dict(
                mine.execute("select id, version from pgq_task.task").fetchall()
            )
            keyed = mine.execute(
                "select id, version from pgq_task.task where unique_key is not null"
            ).fetchall()
            with suppress(TaskConflict), translate_errors():
                tasks.modify(
                    mine,
                    changes=[
                        {"id": task, "version": versions[task], "queue": chance.choice((Q, R))}
                        for task in some[:4]
                    ],
                    depends=[(task, versions[task]) for task in some[4:]],
                    inserts=[{"queue": Q, "unique_key": key} for key in chance.sample("abcdef", 6)],
                    deletes=chance.sample(keyed, len(keyed)),
                )
                done += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) > 0
    worked_off: list[int] = []
    for _ in range(1000):
        if not ops.value(conn, "select exists (select from pgq_task.task)"):
            break
        claimed = tasks.claim(conn, Q, R, number=99)
        tasks.modify(conn, deletes=claimed)
        worked_off += [task for task, _ in claimed]
        conn.execute("select pgq_task.sweep(), pg_sleep(0.02)")
    assert set(ids) <= set(worked_off)
    assert tasks.statuses(conn) == {}


def test_thousands_are_modified_in_one_call(conn: Connection) -> None:
    result = tasks.modify(conn, inserts=[{"queue": Q, "payload": n} for n in range(3000)])
    ids = [row[2] for row in result]
    payloads: dict[int, int] = dict(
        conn.execute("select id, payload from pgq_task.tasks").fetchall()
    )
    assert [payloads[task] for task in ids] == list(range(3000))
    assert tasks.ids(tasks.claim(conn, Q, number=3000)) == ids
    tasks.modify(conn, changes=[{"id": task, "version": 2, "queue": R} for task in ids])
    assert ops.value(conn, "select count(*) from pgq_task.tasks where queue = %s", R) == 3000
    tasks.modify(conn, deletes=[(task, 3) for task in reversed(ids)])
    assert tasks.statuses(conn) == {}


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"inserts": {"queue": Q}}, "the inserts are no JSON array"),
    ({"inserts": [5]}, "insert 1 is no JSON object"),
    ({"inserts": [{"queue": Q}, {"queue": Q, "prio": 1}]}, "insert 2 has an unknown attribute"),
    ({"inserts": [{"payload": 1}]}, "insert 1 lacks one of: queue"),
    ({"inserts": [{"queue": None}]}, "insert 1 lacks one of: queue"),
    ({"inserts": [{"queue": Q, "at": "soon"}]}, "cannot be read"),
    ({"inserts": [{"queue": Q, "at": "infinity"}]}, "cannot be available at infinity"),
    ({"inserts": [{"queue": Q, "at": "2200-01-01", "delay": "1 s"}]}, "a time and a delay"),
    ({"inserts": [{"queue": Q, "delay": "-1 s"}]}, "negative"),
    ({"inserts": [{"queue": Q, "priority": 40000}]}, "cannot be read"),
    ({"inserts": [{"queue": Q, "headers": [1]}]}, "headers that are no JSON object"),
    ({"inserts": [{"queue": Q, "id": 1.5}]}, "cannot be read"),
    ({"inserts": [{"queue": Q, "unique_key": ""}]}, "insert 1 has a key"),
    ({"changes": [change(1, order_key="x" * 1001)]}, "change 1 has a key"),
    ({"changes": [{"id": 1}]}, "change 1 lacks one of: id, version"),
    ({"changes": [change(1, stop=True, delay="1 s")]}, "more than one of"),
    ({"changes": [change(1, stop=True, keep_lease=True)]}, "more than one"),
    # It would pass the other queue's time_limit and max_running.
    ({"changes": [change(1, queue=R, keep_lease=True)]}, "both queue and keep_lease"),
    ({"changes": [change(1, attempts=-1)]}, "-1 attempts"),
    ({"changes": [change(1, attempts=2**31 - 1)]}, "2147483647 attempts"),
    ({"changes": [change(1, at="soon")]}, "cannot be read"),
    ({"changes": [change(1, delay="long")]}, "cannot be read"),
    ({"inserts": [{"queue": Q, "at": "2200-01-01", "delay": "long"}]}, "cannot be read"),
    ({"inserts": [{"queue": Q, "delay": "290000 years"}]}, "is too long"),
    ({"inserts": [{"queue": Q, "id": -7}, {"queue": R, "id": -7}]}, "inserted twice"),
    ({"inserts": [{"queue": Q, "id": 0}, {"queue": Q, "id": 1}]}, "0 cannot be chosen"),
    ({"changes": [change(1, 1)], "deletes": [change(1, 1)]}, "twice"),
    ({"deletes": [change(1, queue=Q)]}, "unknown attribute 'queue'"),
    ({"depends": "all"}, "the depends are no JSON array"),
    ({"claimant": ""}, "the claimant has no name"),
]  # fmt: skip


def test_what_makes_no_sense_is_refused(conn: Connection) -> None:
    tasks.push(conn, Q)
    for modification, message in NONSENSE:
        arguments = {"claimant": "w"} | {
            name: value if name == "claimant" else Jsonb(value)
            for name, value in modification.items()
        }
        named = ", ".join(f"{name} => %({name})s" for name in arguments)
        call = f"select pgq_task.modify({named})".encode()
        assert message in refused(lambda call=call, given=arguments: conn.execute(call, given))  # type: ignore[misc]
