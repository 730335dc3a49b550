"""Pushing: by its caller's own rights where that is all it takes, by the owner's otherwise."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors

from pgqpy.errors import PermissionDenied, TaskQueueNotFound, from_psycopg
from pgqpy.schema import Manifest
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import AsRole, Calls, Connect, Connection, MakeRole, with_snapshot
from tests.fixtures.task_ops import refused, task_of

Q, OTHER = "mails", "others"
DIRECTLY = "insert into pgq_task.inbox (queue_id, payload) values ({}, '1')"
DROP = "select pgq_task.drop_queue('mails', true)"


WRITER = "test_writer"
LARGEST_ID = 8388607


@pytest.fixture(autouse=True)
def task_queues(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue(q) from unnest(%s::text[]) q", [[Q, OTHER]])


@pytest.fixture
def writer(make_role: MakeRole, as_role: AsRole) -> Connection:
    return as_role(make_role("writer", "pgq_writer"))


def restrict(conn: Connection, queue: str = Q, *, restricted: bool = True) -> None:
    conn.execute("select pgq_task.restrict_queue(%s, %s)", [queue, restricted])


def recreate(conn: Connection) -> None:
    conn.execute("select pgq_task.drop_queue(%s, true)", [Q])
    conn.execute("select pgq_task.create_queue(%s)", [Q])


def is_open(conn: Connection) -> bool:
    return bool(
        ops.value(conn, "select has_table_privilege('pgq_writer', 'pgq_task.inbox', 'insert')")
    )


def pushed(conn: Connection, queue: str = Q) -> int:
    return int(ops.value(conn, "select pushed from pgq_task.get_statistics(%s)", queue))


def test_each_way_says_the_same_of_a_task(conn: Connection, writer: Connection) -> None:
    ways: list[dict[str, object]] = [
        {},
        {"priority": 0},
        {"priority": 3},
        {"delay": "1 hour"},
        {"at": "2100-01-01"},
        {"headers": {"lang": "de"}},
        {"unique_key": "k"},
        {"order_key": "k"},
    ]
    for options in ways:
        before = ops.value(conn, "select clock_timestamp()")
        task_id = tasks.push(writer, Q, {"to": "anna"}, **options)
        row = task_of(conn, task_id)
        told = {name: row[name] for name in ("queue", "payload", "version", "attempts")}
        assert told == {"queue": Q, "payload": {"to": "anna"}, "version": 1, "attempts": 0}
        for name in ("priority", "headers", "unique_key", "order_key"):
            assert row[name] == options.get(name, 0 if name == "priority" else None)
        now = ops.value(conn, "select clock_timestamp()")
        if options.keys() & {"at", "delay"}:
            assert row["at"] > now
        else:
            assert before <= row["at"] <= now
            assert tasks.claim(conn, Q) == [(task_id, 2)]
        assert pushed(conn) == 1
        assert pushed(conn, OTHER) == 0
        # Another queue of the same name begins anew.
        recreate(conn)
        assert tasks.statuses(conn) == {}
        assert pushed(conn) == 0


def test_tasks_have_the_order_in_which_they_were_pushed(conn: Connection) -> None:
    ids = [tasks.push(conn, Q, delay="0") if n % 2 else tasks.push(conn, Q) for n in range(20)]
    assert ids == sorted(ids)
    assert [task_id for task_id, _ in tasks.claim(conn, Q, number=20)] == ids


@pytest.mark.parametrize(
    "name",
    [
        "task",
        "Großes Ü",
        'with "quotes" and dots.in.it',
        *("x" * 59, "x" * 60, "x" * 63, "x" * 64, "ü" * 100),
        "dropped_1_".ljust(60, "_"),
    ],
    ids=str.__len__,
)
@pytest.mark.one_database
def test_a_queue_may_have_any_name(conn: Connection, writer: Connection, name: str) -> None:
    """PostgreSQL cuts names after 63 bytes: those that differ behind that are not mixed up."""
    names = [name, name + "x", name[:-1]]
    for queue in names:
        conn.execute("select pgq_task.create_queue(%s)", [queue])
        assert task_of(conn, tasks.push(writer, queue))["queue"] == queue
        assert pushed(conn, queue) == 1
    for queue in names:
        conn.execute("select pgq_task.drop_queue(%s, true)", [queue])
    for unknown in (*names, "", "nowhere", "x" * 300, "a.b", 'a"b', "pgq_task.task"):
        refused(lambda unknown=unknown: tasks.push(writer, unknown), TaskQueueNotFound)  # type: ignore[misc]
    assert tasks.statuses(conn) == {}


@pytest.mark.parametrize("queue_id", [LARGEST_ID, LARGEST_ID + 1])
def test_a_queue_may_have_any_number(conn: Connection, queue_id: int) -> None:
    conn.execute(f"alter table pgq_task.queue alter queue_id restart {queue_id}".encode())
    conn.execute("select pgq_task.create_queue('late')")
    task_id = tasks.push(conn, "late")
    conn.execute("select pgq_task.push_many('late', array_fill('1'::jsonb, array[40]))")
    assert ops.value(conn, "select queue_id from pgq_task.task where id = %s", task_id) == queue_id
    assert pushed(conn, "late") == 41
    conn.execute("select pgq_task.drop_queue('late', true)")


def test_a_counter_that_is_full_begins_again(conn: Connection) -> None:
    conn.execute("select setval('pgq_task_queues.mails', 2 * (1::bigint << 40) - 2)")
    ids = [tasks.push(conn, Q) for _ in range(3)]
    assert [task_id for task_id, _ in tasks.claim(conn, Q, number=9)] == ids
    assert pushed(conn) == 1


def test_a_writer_gives_a_payload_and_no_more(conn: Connection, writer: Connection) -> None:
    """A task's place and number are the server's."""
    writer.execute(DIRECTLY.format(1).encode())
    columns = "({}, payload, {}) values (1, '1', null)"
    for column in ("id", "pos", "version", "claimant"):
        for table in ("inbox", "task"):
            into = f"insert into pgq_task.{table} {columns.format('queue_id', column)}"
            with pytest.raises(psycopg.Error):
                writer.execute(into.encode())
    for call in (
        "insert into pgq_task.task (queue_id, payload) values (1, '1')",
        "select from pgq_task.inbox",
        "update pgq_task.inbox set payload = '2'",
        "delete from pgq_task.inbox",
        "select setval('pgq_task.task_id_seq', 1)",
        "select setval('pgq_task_queues.mails', 1)",
        "select setval('pgq_task.waiting_1', 1)",
        "select nextval('pgq_task.waiting_1')",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            writer.execute(call.encode())
    # No tasks of queues to come, which may be restricted by then.
    for queue_id in (3, -1, 0, "null"):
        with pytest.raises(psycopg.Error):
            writer.execute(DIRECTLY.format(queue_id).encode())
    assert len(tasks.statuses(conn)) == 1
    # The rights on queues cannot be bypassed.
    restrict(conn)
    with pytest.raises(errors.InsufficientPrivilege):
        writer.execute(DIRECTLY.format(1).encode())
    with pytest.raises(errors.InsufficientPrivilege) as caught:
        tasks.push(writer, Q)
    error = from_psycopg(caught.value)
    assert isinstance(error, PermissionDenied)
    assert "grant_queue" in (error.hint or "")
    tasks.push(writer, OTHER)
    conn.execute("select pgq_task.grant_queue(%s, '{insert}', %s)", [Q, WRITER])
    tasks.push(writer, Q)
    assert len(tasks.statuses(conn)) == 3
    conn.execute("select pgq_task.revoke_queue(%s, '{insert}', %s)", [Q, WRITER])


def test_a_drop_waits_for_what_a_writer_has_put_there_directly(
    conn: Connection, connect: Connect, calls: Calls, writer: Connection
) -> None:
    dropper = connect()
    writer.autocommit = False
    writer.execute(DIRECTLY.format(1).encode())
    drop = calls.blocked(psycopg.Connection.execute, dropper, DROP)
    writer.commit()
    drop.result()
    assert ops.value(conn, "select count(*) from pgq_task.task") == 0
    writer.autocommit = True


def test_the_first_restriction_interrupts_no_session(conn: Connection, writer: Connection) -> None:
    """Not even a session in a transaction that has seen the rights of before."""
    tasks.push(writer, OTHER)
    conn.execute("select pgq_task.grant_queue(%s, '{insert}', %s)", [Q, WRITER])
    with writer.transaction():
        writer.execute("select 1")
        restrict(conn)
        tasks.push(writer, OTHER)
        tasks.push(writer, Q)
    assert (pushed(conn), pushed(conn, OTHER)) == (1, 2)
    conn.execute("select pgq_task.revoke_queue(%s, '{insert}', %s)", [Q, WRITER])


def test_a_writer_cannot_silence_the_workers_of_others(
    conn: Connection, connect: Connect, writer: Connection
) -> None:
    worker = connect()
    worker.execute("select pgq_task.set_waiting(array[%s])", [OTHER])
    with writer.transaction():
        task_id = tasks.push(writer, Q)
        writer.execute("select pgq_task._wake(2, 'nonsense', %s)", [task_id])
    state = "select pg_sequence_last_value('pgq_task.waiting_2')"
    assert ops.value(conn, state) == 1
    tasks.push(conn, OTHER)
    assert ops.value(conn, state) > 1
    with writer.transaction():
        writer.execute("set transaction read only")
        writer.execute("select pgq_task._wake(2, %s)", [OTHER])
    held = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
    assert ops.value(conn, held, writer.info.backend_pid) == 0


def test_the_inbox_is_open_while_no_queue_is_restricted(conn: Connection, connect: Connect) -> None:
    admin = connect(autocommit=False)
    restrict(admin)
    admin.rollback()
    assert is_open(conn)
    restrict(conn, Q)
    restrict(conn, OTHER)
    assert not is_open(conn)
    restrict(conn, Q, restricted=False)
    assert not is_open(conn)
    conn.execute("select pgq_task.drop_queue(%s)", [OTHER])
    assert is_open(conn)


def test_opening_waits_for_a_session_that_restricts(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    restrict(conn, Q)
    first, second = connect(autocommit=False), connect()
    restrict(first, OTHER)
    opening = calls.blocked(lambda own: restrict(own, Q, restricted=False), second)
    first.commit()
    opening.result()
    assert not is_open(conn)


def test_an_old_snapshot_opens_nothing_restricted_since(conn: Connection, connect: Connect) -> None:
    restrict(conn, Q)
    old = with_snapshot(connect)
    restrict(conn, OTHER)
    with ops.refused("PQ012"):
        restrict(old, Q, restricted=False)
    old.rollback()
    assert not is_open(conn)


@pytest.mark.parametrize("restricted", [True, False])
def test_installing_again_leaves_it_as_it_was(conn: Connection, restricted: bool) -> None:
    restrict(conn, restricted=restricted)
    conn.execute("revoke all on all sequences in schema pgq_task, pgq_task_queues from pgq_writer")
    conn.execute("set default_transaction_isolation = serializable")
    with conn.transaction():
        conn.execute("set local role pgq_owner")
        conn.execute(Manifest.load().sql("grants").encode())
    assert is_open(conn) is not restricted
    conn.execute("set role pgq_writer")
    tasks.push(conn, OTHER)


def test_sequences_of_queues_that_were_dropped_go_with_later_ones(conn: Connection) -> None:
    def drop_another(number: int) -> int:
        queue = f"{number}".rjust(57 + number % 6, "q")
        conn.execute("select pgq_task.create_queue(%s)", [queue])
        conn.execute("select pgq_task.drop_queue(%s)", [queue])
        names = "select relname from pg_class where relnamespace = 'pgq_task_queues'::regnamespace"
        return len({name for (name,) in conn.execute(names)} - {Q, OTHER})

    # Other tests hold back the snapshots of the server.
    wait_until(lambda: min(drop_another(number) for number in range(5, 11)) <= 1)


def test_two_drops_in_a_transaction_leave_a_push_that_waits_for_the_first(
    connect: Connect, calls: Calls, writer: Connection
) -> None:
    dropper = connect(autocommit=False)
    dropper.execute("select pgq_task.drop_queue(%s)", [Q])
    push = calls.blocked(tasks.push, writer, Q)
    dropper.execute("select pgq_task.drop_queue(%s)", [OTHER])
    dropper.commit()
    refused(push.result, TaskQueueNotFound)


def test_an_open_transaction_finds_the_new_queue(conn: Connection, connect: Connect) -> None:
    """Though it has looked up the other one by the same name."""
    user = connect()
    tasks.push(user, Q)
    user.autocommit = False
    tasks.push(user, OTHER)
    recreate(conn)
    task_id = tasks.push(user, Q)
    user.commit()
    assert tasks.claim(conn, Q, number=9) == [(task_id, 2)]
    assert pushed(conn) == 1


def test_an_old_snapshot_knows_a_dropped_queue(conn: Connection, connect: Connect) -> None:
    old = with_snapshot(connect)
    conn.execute("select pgq_task.drop_queue(%s)", [Q])
    sequences = (
        "select format('drop sequence pgq_task_queues.%I', relname) from pg_class"
        " where relnamespace = 'pgq_task_queues'::regnamespace and relname ~ '^dropped_'"
    )
    for (drop,) in conn.execute(sequences).fetchall():
        conn.execute(drop.encode())
    for call in (
        "pgq_task.push('mails', '1')",
        "pgq_task.push('mails', '1', unique_key => 'k')",
        "pgq_task.push_many('mails', array['1'::jsonb])",
        "pgq_task.modify('w', '[{\"queue\": \"mails\"}]')",
    ):
        statement = f"select {call}".encode()
        with old.transaction(force_rollback=True):
            refused(lambda statement=statement: old.execute(statement), TaskQueueNotFound)  # type: ignore[misc]
    found = "select queue_name, pushed from pgq_task.get_statistics() order by 1"
    assert old.execute(found).fetchall() == [(Q, None), (OTHER, 0)]


def test_a_drop_that_is_rolled_back_changes_nothing(
    conn: Connection, connect: Connect, calls: Calls, writer: Connection
) -> None:
    tasks.push(writer, Q)
    dropper = connect(autocommit=False)
    dropper.execute(DROP)
    push = calls.blocked(tasks.push, writer, Q)
    dropper.rollback()
    push.result()
    assert pushed(conn) == 2
    assert len(tasks.claim(conn, Q, number=9)) == 2


def test_a_drop_waits_for_pushes_in_no_circle_and_leaves_no_task(
    conn: Connection, connect: Connect, calls: Calls
) -> None:
    """The longer way takes the same sequence first."""
    one = [{"queue": Q}]
    pushes: tuple[tuple[Callable[[Connection], object], dict[str, object]], ...] = (
        (lambda user: tasks.push(user, Q), {"priority": 1}),
        (lambda user: tasks.push(user, Q, priority=1), {}),
        (lambda user: tasks.push(user, Q, unique_key="k"), {}),
        (lambda user: tasks.modify(user, inserts=one), {}),
        (lambda user: tasks.push_many(user, Q), {}),
    )
    for first, second in pushes:
        moved = tasks.push(conn, OTHER, priority=8)
        user = connect(autocommit=False)
        first(user)
        drop = calls.blocked(psycopg.Connection.execute, connect(), DROP)
        tasks.push(user, Q, **second)
        tasks.modify(user, changes=[{"id": moved, "version": 1, "queue": Q}])
        user.commit()
        drop.result()
        assert tasks.statuses(conn) == {}
        conn.execute("select pgq_task.create_queue(%s)", [Q])
