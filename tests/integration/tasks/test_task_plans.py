"""No statement on tasks reads dead rows, whatever PostgreSQL's statistics say.

A transaction that stays open keeps dead rows, and autovacuum then counts a table that is nearly
empty: a plan that walks a whole index looks cheap, and steps over each of them.
"""

from __future__ import annotations

from typing import Any, LiteralString

import pytest
from psycopg import IsolationLevel
from psycopg.types.json import Jsonb

from pgqpy.tasks import TaskColumnNames
from pgqpy.tasks._rows.table import RowOutcome, TaskTable
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.task_ops import pages_read

QUEUE = "tasks"
FAILED = "tasks.failed"
LIMITED = "limited"
FLOW = [{"queue": QUEUE}, {"queue": QUEUE, "after": [1]}]
DEAD = 20_000

# Calls that get claimed tasks: the claimant, their ids and versions, as JSON, and as a filter.
CALLS: tuple[LiteralString, ...] = (
    "claim(array[%(queue)s], %(claimant)s, max_tasks => 8)",
    "claim(array[%(queue)s], %(claimant)s, max_tasks => 8, random_choice => false)",
    "claim(array[%(limited)s], %(claimant)s, max_tasks => 8)",
    "claim(array[%(queue)s, %(limited)s], %(claimant)s, max_tasks => 8)",
    "pop(%(queue)s, 8)",
    "finish(%(claimant)s, %(id)s, %(version)s)",
    "finish_and_claim(%(claimant)s, %(id)s, %(version)s, %(queue)s)",
    "finish_many(%(claimant)s, %(ids)s, %(versions)s)",
    "renew(%(claimant)s, %(ids)s, %(versions)s)",
    "release(%(claimant)s, %(ids)s, %(versions)s)",
    "get_leases(%(claimant)s, %(ids)s, true)",
    "fail(%(claimant)s, %(id)s, %(version)s, 'bad')",
    "fail(%(claimant)s, %(id)s, %(version)s, 'bad', final => true)",
    "fail_many(%(claimant)s, %(ids)s, %(versions)s, array_fill('bad'::text, array[8]))",
    "heartbeat(%(claimant)s, %(ids)s, %(ids)s, array_fill(0.5::float8, array[8]))",
    "get_progress(%(queue)s, %(ids)s)",
    "cancel(%(id)s)",
    "get_result(%(id)s)",
    "modify(%(claimant)s, deletes => %(tasks)s)",
    "modify(%(claimant)s, changes => %(tasks)s)",
    "modify(%(claimant)s, depends => %(tasks)s)",
    """modify(%(claimant)s, '[{"queue": "tasks", "unique_key": "u"}]')""",
    "stop(%(waiting)s)",
    """change_tasks(%(queue)s, %(these)s, '{"priority": 1}', claimed => true)""",
    "remove_tasks(%(queue)s, %(these)s, claimed => true)",
    "remove_tasks(%(queue)s, %(step)s)",
    "get_flow(%(flow)s)",
    "list_flows(10)",
    "requeue(%(failed)s)",
    "list_tasks(%(queue)s, %(these)s)",
    "push(%(queue)s, '1')",
    "push(%(queue)s, '1', order_key => 'key 1')",
    "push_many(%(queue)s, array_fill('1'::jsonb, array[8]))",
    "push_unique(%(queue)s, '1', 'u')",
    "_close_lanes()",
    "catch_up(array[%(queue)s])",
    "set_waiting(array[%(queue)s])",
    "next_time(array[%(queue)s])",
    "queue_is_empty(array[%(queue)s])",
    "get_queue_info()",
    "get_workers()",
    "get_limits()",
    "_conflicts_of('other', %(ids)s, %(versions)s)",
    "_collisions_of(null, %(tasks)s, '{}')",
)
# These are for a whole queue; or name one task, or the first one of an order; or only describe.
OTHERS = {
    *("drop_queue", "_drop_idle_tenants", "set_limits", "_set_clock_back"),
    *("_hold_back", "_holders_of", "_is_full", "_claim_parked", "_claim_without_keys"),
    *("payload_index_sql", "_estimate_total"),
}


@pytest.fixture
def held(conn: Connection, connect: Connect) -> Connection:
    """Dead rows that an old transaction keeps, in a table that seems to be empty; then tasks."""
    conn.execute("alter table pgq_task.task set (autovacuum_enabled = false)")
    for queue in (QUEUE, FAILED, LIMITED):
        conn.execute("select pgq_task.create_queue(%s)", [queue])
    conn.execute("select pgq_task.set_limits(%s, 100, 10)", [LIMITED])
    # Neighbours in an index are in different pages of the table: each dead row costs one more.
    conn.execute(
        "insert into pgq_task.task (id, queue_id, pos, order_key)"
        " select nextval('pgq_task.task_id_seq'), queue_id, pos - n, 'key'"
        "   from pgq_task.queue q, pgq_task._position_now() pos, generate_series(1, %s) n"
        "  where q.queue_name = %s order by hashint4(n)",
        [DEAD, QUEUE],
    )
    connect(level=IsolationLevel.REPEATABLE_READ).execute("select from pgq_task.task limit 1")
    conn.execute(
        "insert into pgq_task.key_low select queue_id, order_key, max(id) + 1"
        "  from pgq_task.task group by 1, 2"
    )
    conn.execute("delete from pgq_task.task")
    conn.execute("vacuum (analyze) pgq_task.task")
    for number in [*range(1, 25), 2]:
        task_ops.push(conn, QUEUE, order_key=f"key {number}")
        task_ops.push(conn, LIMITED, headers={"limit_key": "a"})
    conn.execute("select pgq_task.push_flow(%s)", [Jsonb(FLOW)])
    task_ops.sweep(conn, 3)
    return conn


def test_no_statement_reads_dead_rows(held: Connection) -> None:
    held.execute("set track_functions = 'all'")
    bad, *claimed = sorted(task_ops.claim(held, QUEUE, number=9))
    task_ops.claim(held, LIMITED, number=8)
    task_ops.fail(held, bad, final=True)
    ids, versions = map(list, zip(*claimed, strict=True))
    given = {
        "queue": QUEUE,
        "failed": FAILED,
        "limited": LIMITED,
        "claimant": "w",
        "id": ids[0],
        "version": versions[0],
        "ids": ids,
        "versions": versions,
        "waiting": ops.value(held, "select max(id) from pgq_task.tasks where queue = %s", QUEUE),
        "flow": ops.value(held, "select max(flow_id) from pgq_task.flow"),
        "step": Jsonb({"ids": [ops.value(held, "select id from pgq_task.flow_step where nr = 1")]}),
        "tasks": Jsonb(task_ops.named(claimed)),
        "these": Jsonb({"ids": ids}),
    }
    read = {}
    for call in CALLS:
        # The first one makes the plans.
        for _ in range(2):
            with held.transaction(force_rollback=True):
                read[call] = pages_read(held, f"select * from pgq_task.{call}", given)
    # With settings as claims have them, this key's dead rows, which lie side by side, are passed.
    held.execute("set enable_seqscan = off; set enable_bitmapscan = off")
    key = "(select queue_id from pgq_task.queue where queue_name = %(queue)s), 'key'"
    for call in (f"_is_first({key}, %(id)s)", f"_is_behind({key})"):
        assert pages_read(held, f"select * from pgq_task.{call}", given) < 100, call
    held.execute("reset enable_seqscan; reset enable_bitmapscan")
    # Not too soon after the last one.
    held.execute("update pgq_task.sweep set sweep_time = sweep_time - interval '1 second'")
    read["sweep"] = pages_read(held, "select pgq_task.sweep()")
    assert not {call: pages for call, pages in read.items() if pages > DEAD / 20}

    # Nor do many tasks cost more than few.
    task_ops.push_many(held, QUEUE, 400)
    claimed = task_ops.claim(held, QUEUE, number=400)
    ids, versions = map(list, zip(*claimed, strict=True))
    for call in ("renew", "release", "finish_many"):
        with held.transaction(force_rollback=True):
            statement = f"select * from pgq_task.{call}(%(claimant)s, %(ids)s, %(versions)s)"
            pages = pages_read(held, statement, given | {"ids": ids, "versions": versions})
            assert pages < 50 * len(ids), call

    held.execute("select pg_stat_force_next_flush()")
    untried = held.execute(
        "select p.proname from pg_proc p left join pg_stat_user_functions on funcid = p.oid"
        " where p.pronamespace = 'pgq_task'::regnamespace and funcid is null"
        r"   and p.prosrc ~ 'pgq_task\.task(_status)?\M'"
    )
    assert {name for (name,) in untried} <= OTHERS


def test_many_tasks_of_a_key_cost_neither_it_nor_others(conn: Connection) -> None:
    """Statistics say that most tasks have this key: a walk along their ids looks cheap."""
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    task_ops.push(conn, QUEUE, order_key="many")
    conn.execute(
        "insert into pgq_task.task (queue_id, pos, order_key) select queue_id, null, 'many'"
        "  from pgq_task.queue q, generate_series(1, %s) n"
        " where q.queue_name = %s order by hashint4(n)",
        [DEAD, QUEUE],
    )
    conn.execute("analyze pgq_task.task")
    read: dict[str, int] = {}

    def look(call: LiteralString, given: dict[str, Any]) -> None:
        pages = pages_read(conn, f"select * from pgq_task.{call}", {"queue": QUEUE} | given)
        read[call] = max(read.get(call, 0), pages)

    for number in range(12):
        look("push(%(queue)s, '1', order_key => %(key)s)", {"key": f"key {number}"})
    # To make its plan.
    conn.execute("select pgq_task.next_time(array[%s])", [QUEUE])
    for _ in range(12):
        ((task, version),) = task_ops.claim(conn, QUEUE)
        with conn.transaction(force_rollback=True):
            call: LiteralString = "finish_and_claim('w', %(id)s, %(version)s, %(queue)s)"
            look(call, {"id": task, "version": version})
        look("next_time(array[%(queue)s])", {})
        look("finish('w', %(id)s, %(version)s)", {"id": task, "version": version})
    assert not {call: pages for call, pages in read.items() if pages > DEAD / 100}


def test_plans_from_before_the_first_task_of_a_key_do_not_walk_along_the_key(
    conn: Connection,
) -> None:
    """Then each of the indexes of keys is one page."""
    conn.execute("select pgq_task.create_queue(%s)", [QUEUE])
    task_ops.push_many(conn, QUEUE, DEAD)
    conn.execute("vacuum (analyze) pgq_task.task")
    for _ in range(12):
        task_ops.push(conn, QUEUE, order_key="many")
    task_ops.push_many(conn, QUEUE, DEAD, key="many")
    # To make its plan.
    task_ops.claim(conn, QUEUE)
    for call in ("push(%(queue)s, '1', order_key => 'many')", "claim(array[%(queue)s], 'w')"):
        assert pages_read(conn, f"select * from pgq_task.{call}", {"queue": QUEUE}) < DEAD / 100


def test_no_statement_on_rows_of_a_table_reads_dead_rows(
    conn: Connection, connect: Connect
) -> None:
    conn.execute("create table mail (id bigint, part text, primary key (id, part))")
    conn.execute("select pgq_task.add_columns('mail')")
    conn.execute("alter table mail set (autovacuum_enabled = false)")
    fill: LiteralString = (
        "insert into mail (id, part) select n, 'a' from generate_series(%s::int, %s::int) n"
        " order by hashint4(n)"
    )
    conn.execute(fill, [1, DEAD])
    connect(level=IsolationLevel.REPEATABLE_READ).execute("select from mail limit 1")
    conn.execute("delete from mail")
    conn.execute("vacuum (analyze) mail")
    conn.execute(fill, [DEAD + 1, DEAD + 8])
    settings = ["on", "on", "on", "auto"]
    table = TaskTable(TaskColumnNames(), "mail", ["id", "part"], ["bigint", "text"], None, settings)
    outcomes = [RowOutcome((str(DEAD + n), "a"), "succeeded") for n in range(1, 9)]
    for statement, values in (table.completed(outcomes), table.deleted(outcomes)):
        assert pages_read(conn, statement.decode(), values) < DEAD / 20
    assert ops.value(conn, "select count(*) from mail") == 0
