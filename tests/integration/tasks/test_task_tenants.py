"""A queue's tenants have queues of their own, made by the first push, and share its claims."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import count, cycle
from typing import LiteralString

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures import task_ops as tasks
from tests.fixtures.dumps import dump, restore
from tests.fixtures.fix_db import AsRole, Calls, Connect, Connection, MakeRole

INVALID, NOT_FOUND, HAS_TASKS, FORBIDDEN = "PQ072", "PQ070", "PQ073", "42501"
QUEUES = "select array_agg(queue_name order by queue_name) from pgq_task.queue"
#: Each way to put a task into the queue of a tenant.
PUSHES: dict[str, LiteralString] = {
    "push": "select pgq_task.push('mails/acme', '1')",
    "push with options": "select pgq_task.push('mails/acme', '1', priority => 3)",
    "push_unique": "select pgq_task.push_unique('mails/acme', '1', 'key')",
    "push_many": "select pgq_task.push_many('mails/acme', array['1'::jsonb])",
    "modify": "select pgq_task.modify('w', '[{\"queue\": \"mails/acme\"}]')",
    "flow": 'select pgq_task.push_flow(\'[{"queue": "mails/acme"}]\')',
    "move": "select pgq_task.change_tasks('mails', '{}', '{\"queue\": \"mails/acme\"}')",
}


@pytest.fixture(autouse=True)
def mails(conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('mails')")
    config(conn, "mails", "keep_tenants", "1 day")


def config(conn: Connection, queue: str, param: str, value: object) -> None:
    text = None if value is None else str(value)
    conn.execute("select pgq_task.set_queue_config(%s, %s, %s)", [queue, param, text])


def fill(conn: Connection, **numbers: int) -> None:
    for tenant, number in numbers.items():
        tasks.push_many(conn, f"mails/{tenant}", number)


def push_many(conn: Connection, queue: str, number: int) -> None:
    conn.execute(
        "select pgq_task.push_many(%s, array_fill('1'::jsonb, array[%s]))", [queue, number]
    )


def claim(conn: Connection, number: int = 1, queue: str = "mails") -> Counter[str]:
    """The number of tasks of each tenant."""
    rows = conn.execute(
        "select queue from pgq_task.claim(array[%s], 'w', '1 hour', %s)", [queue, number]
    ).fetchall()
    return Counter(name.removeprefix("mails/") for (name,) in rows)


def setting(conn: Connection, what: LiteralString) -> dict[str, object]:
    query: LiteralString = "select queue_name, " + what + " from pgq_task.queue"
    return dict(conn.execute(query + " left join pgq_task.queue_limit using (queue_id)").fetchall())


# --- shares


@pytest.mark.parametrize(("number", "claims"), [(1, 60), (2, 1), (100, 1)])
def test_a_tenant_does_not_wait_for_the_100_000_tasks_of_another(
    conn: Connection, connect: Connect, number: int, claims: int
) -> None:
    """Of two tenants each has half of every batch; one by one, each claim is a throw of a coin."""
    push_many(conn, "mails/big", 100_000)
    push_many(conn, "mails/small", 1)
    workers = [connect() for _ in range(4)]
    for seed, worker in enumerate(workers):
        worker.execute("select setseed(%s)", [seed / 10])
    for made, worker in zip(count(1), cycle(workers), strict=False):
        found = claim(worker, number)
        assert found.total() == number
        if found["small"]:
            break
        assert made < claims


def test_tenants_share_claims_by_their_weights(conn: Connection) -> None:
    for tenant, weight in {"a": 1, "b": 3, "c": 4}.items():
        push_many(conn, f"mails/{tenant}", 1000)
        config(conn, f"mails/{tenant}", "weight", weight)
    for _ in range(5):
        assert claim(conn, 8) == {"a": 1, "b": 3, "c": 4}
        assert claim(conn, 24) == {"a": 3, "b": 9, "c": 12}
    conn.execute("select setseed(0.5)")
    one_by_one = Counter[str]()
    for _ in range(400):
        one_by_one += claim(conn)
    # With any other seed, too: these bounds are six standard deviations wide.
    assert 10 <= one_by_one["a"] <= 90
    assert 140 <= one_by_one["c"] <= 260


def test_queues_of_one_worker_have_shares_too(conn: Connection) -> None:
    for queue in ("x", "y"):
        conn.execute("select pgq_task.create_queue(%s)", [queue])
        push_many(conn, queue, 50)
    config(conn, "x", "weight", 4)
    found = conn.execute("select queue from pgq_task.claim('{x,y}', 'w', max_tasks => 10)")
    assert Counter(found) == {("x",): 8, ("y",): 2}


def test_a_share_that_is_not_used_goes_to_the_others(conn: Connection) -> None:
    fill(conn, a=3, b=1, c=40)
    conn.execute("select pgq_task.push('mails', '1')")
    assert claim(conn, 40) == {"a": 3, "b": 1, "c": 35, "mails": 1}
    assert claim(conn, 40) == {"c": 5}
    assert not claim(conn, 40)


def test_higher_priorities_of_any_tenant_come_first(conn: Connection) -> None:
    fill(conn, a=20)
    for tenant, number in {"b": 2, "c": 9}.items():
        conn.execute(
            "select pgq_task.push_many(%s, array_fill('1'::jsonb, array[%s]), priority => 5)",
            [f"mails/{tenant}", number],
        )
    assert claim(conn, 10) == {"b": 2, "c": 8}
    assert claim(conn, 10) == {"c": 1, "a": 9}


def test_a_tenants_limits_do_not_hold_up_others(conn: Connection, connect: Connect) -> None:
    """Neither when they are reached, nor while another session claims from it."""
    conn.execute("select pgq_task.set_limits('mails', max_running => 2)")
    fill(conn, a=50, b=50)
    assert claim(conn, 10) == {"a": 2, "b": 2}
    fill(conn, c=1)
    other = connect(autocommit=False)
    assert claim(other, 1) == {"c": 1}
    fill(conn, d=1)
    assert claim(conn, 10) == {"d": 1}


def test_a_worker_of_the_parent_finishes_and_claims_the_next(conn: Connection) -> None:
    fill(conn, a=2)
    ((task_id, version),) = tasks.claim(conn, "mails")
    following = "select queue from pgq_task.finish_and_claim('w', %s, %s, 'mails')"
    assert ops.value(conn, following, task_id, version) == "mails/a"
    assert ops.value(conn, "select pgq_task.next_time('{mails}') is null")
    assert not ops.value(conn, "select pgq_task.queue_is_empty('{mails}')")


# --- the first push, and the last


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_the_first_push_makes_the_queue(conn: Connection, push: LiteralString) -> None:
    conn.execute("select pgq_task.push('mails', '1')")
    conn.execute(push)
    conn.execute(push)
    assert ops.value(conn, QUEUES) == ["mails", "mails/acme"]
    assert claim(conn, 5)["acme"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("push", ["push", "push_unique", "push_many", "modify"])
def test_first_pushes_at_once_agree_on_one_queue(
    conn: Connection, connect: Connect, calls: Calls, push: str, end: LiteralString
) -> None:
    first, second = connect(autocommit=False), connect()
    first.execute(PUSHES["push"])
    waiting = calls.blocked(ops.value, second, PUSHES[push])
    first.execute(end)
    waiting.result()
    assert ops.value(conn, QUEUES) == ["mails", "mails/acme"]
    assert claim(conn, 5) == {"acme": 2 if end == "commit" else 1}


@pytest.mark.parametrize("push", ["push", "push_unique", "push_many", "modify"])
def test_a_push_during_the_drop_makes_the_queue_again(
    conn: Connection, connect: Connect, calls: Calls, push: str
) -> None:
    conn.execute("select pgq_task.create_queue('mails/acme')")
    dropping, pushing = connect(autocommit=False), connect()
    dropping.execute("select pgq_task.drop_queue('mails/acme')")
    waiting = calls.blocked(ops.value, pushing, PUSHES[push])
    dropping.commit()
    waiting.result()
    assert claim(conn, 5) == {"acme": 1}


def test_an_idle_tenant_is_dropped_unless_something_would_be_lost(conn: Connection) -> None:
    kept = ("claimed", "granted", "heavy", "limited", "paused", "periodic", "unique", "young")
    for tenant in ("idle", *kept):
        conn.execute("select pgq_task.create_queue(%s)", [f"mails/{tenant}"])
    conn.execute("select pgq_task.push('mails/claimed', '1')")
    conn.execute("select pgq_task.grant_queue('mails/granted', '{read}', 'pgq_reader')")
    config(conn, "mails/heavy", "weight", 9)
    conn.execute("select pgq_task.set_limits('mails/limited', 1)")
    conn.execute("select pgq_task.pause_queue('mails/paused')")
    conn.execute("select pgq_task.set_periodic('p', 'mails/periodic', '* * * * *', 'UTC', '1')")
    conn.execute("select pgq_task.push_unique('mails/unique', '1', 'k', unique_for => '9 days')")
    assert claim(conn, 5) == {"claimed": 1, "unique": 1}
    conn.execute("select pgq_task.remove_tasks('mails/unique', '{}', claimed => true)")
    conn.execute("update pgq_task.queue set queue_created = now() - interval '2 days'")
    conn.execute(
        "insert into pgq_task.counted (queue_id, what, tasks)"
        " select queue_id, 'claimed', 1 from pgq_task.queue where queue_name = 'mails/young'"
    )
    tasks.sweep_twentieth(conn)
    assert ops.value(conn, QUEUES) == ["mails", *(f"mails/{tenant}" for tenant in kept)]
    fill(conn, idle=1)
    assert claim(conn) == {"idle": 1}


def test_a_failed_task_goes_back_to_a_tenant_that_was_dropped(conn: Connection) -> None:
    fill(conn, acme=1)
    (claimed,) = tasks.claim(conn, "mails")
    tasks.fail(conn, claimed, final=True)
    conn.execute("select pgq_task.drop_queue('mails/acme')")
    assert ops.value(conn, QUEUES) == ["mails", "mails.failed"]
    assert ops.value(conn, "select pgq_task.requeue('mails.failed')") == 1
    assert claim(conn) == {"acme": 1}


# --- settings


def test_settings_of_the_parent_hold_for_tenants_without_their_own(conn: Connection) -> None:
    config(conn, "mails", "max_attempts", 5)
    conn.execute("select pgq_task.set_limits('mails', rate => 50)")
    fill(conn, a=1, b=1)
    config(conn, "mails/b", "max_attempts", 9)
    conn.execute("select pgq_task.set_limits('mails/b', max_running => 9)")
    config(conn, "mails", "max_attempts", 7)
    config(conn, "mails", "error_queue", "errors")
    conn.execute("select pgq_task.set_limits('mails', max_running => 4)")
    fill(conn, c=1)
    of = "mails", "mails/a", "mails/b", "mails/c"
    assert setting(conn, "queue_max_attempts") == dict(zip(of, (7, 7, 9, 7), strict=True))
    assert setting(conn, "max_running") == dict(zip(of, (4, 4, 9, 4), strict=True))
    assert setting(conn, "rate") == dict.fromkeys(of)
    assert setting(conn, "queue_error_queue") == dict.fromkeys(of, "errors")
    config(conn, "mails", "error_queue", None)
    assert setting(conn, "queue_error_queue") == dict.fromkeys(of, "mails.failed")


def test_a_pause_of_the_parent_pauses_all_and_ends_for_those(conn: Connection) -> None:
    fill(conn, a=1, b=1)
    conn.execute("select pgq_task.pause_queue('mails/b')")
    assert claim(conn, 5) == {"a": 1}
    fill(conn, a=1)
    conn.execute("select pgq_task.pause_queue('mails')")
    fill(conn, c=1)
    assert not claim(conn, 5)
    conn.execute("select pgq_task.resume_queue('mails')")
    assert claim(conn, 5) == {"a": 1, "c": 1}


def test_queues_with_such_names_become_tenants(conn: Connection) -> None:
    for queue in ("shop", "shop/old", "shop/deep/er"):
        conn.execute("select pgq_task.create_queue(%s)", [queue])
    config(conn, "shop/old", "weight", 2)
    conn.execute("select pgq_task.push('shop/old', '1')")
    config(conn, "shop", "keep_tenants", "1 hour")
    assert claim(conn, queue="shop") == {"shop/old": 1}
    assert ops.value(conn, "select count(*) from pgq_task.queue where queue_parent > 0") == 1
    assert setting(conn, "queue_weight")["shop/old"] == 2


BAD_INPUT = [
    (INVALID, "names no tenant", "push('mails/', '1')"),
    (INVALID, "names no tenant", "create_queue('mails/')"),
    (NOT_FOUND, "'mails/a/b' does not exist", "push('mails/a/b', '1')"),
    (NOT_FOUND, "the parameter keep_tenants of 'nosuch'", "push('nosuch/a', '1')"),
    (NOT_FOUND, "does not exist", "set_queue_config('mails/b', 'weight', '2')"),
    (INVALID, "is that of a tenant", "set_queue_config('mails/a', 'keep_tenants', '1 day')"),
    (INVALID, "is that of a tenant", "restrict_queue('mails/a')"),
    (INVALID, "has tenants", "set_queue_config('mails', 'keep_tenants', null)"),
    (INVALID, "cannot be kept", "set_queue_config('mails', 'keep_tenants', '0')"),
    (INVALID, "cannot be", "set_queue_config('mails', 'keep_tenants', 'yes')"),
    (HAS_TASKS, "'mails/a' has a task", "drop_queue('mails')"),
    *(
        (INVALID, "weight", f"set_queue_config('mails/a', 'weight', '{weight}')")
        for weight in ("0", "-1", "1001", "1.5", "infinity", "")
    ),
    (INVALID, "weight", "set_queue_config('mails/a', 'weight', null)"),
]


def test_bad_input(conn: Connection, subtests: pytest.Subtests) -> None:
    fill(conn, a=1)
    for sqlstate, said, call in BAD_INPUT:
        with subtests.test(call):
            with ops.refused(sqlstate, said):
                conn.execute(f"select pgq_task.{call}".encode())
            assert ops.value(conn, QUEUES) == ["mails", "mails/a"]
    assert claim(conn) == {"a": 1}


def test_dropping_the_parent_drops_its_tenants(conn: Connection) -> None:
    fill(conn, a=1, b=1)
    conn.execute("select pgq_task.drop_queue('mails', true)")
    assert ops.value(conn, "select count(*) from pgq_task.queue") == 0
    with ops.refused(NOT_FOUND):
        fill(conn, a=1)


# --- rights


@pytest.fixture
def roles(conn: Connection, make_role: MakeRole, as_role: AsRole) -> tuple[Connection, Connection]:
    """A role with rights on all tenants, and one with rights on acme."""
    shop, acme = (make_role(name, "pgq_reader", "pgq_writer") for name in ("shop", "acme"))
    conn.execute("select pgq_task.create_queue('mails/acme')")
    conn.execute("select pgq_task.restrict_queue('mails')")
    grant = "select pgq_task.grant_queue(%s, '{insert,claim}', %s)"
    conn.execute(grant, ["mails", shop])
    conn.execute(grant, ["mails/acme", acme])
    return as_role(shop), as_role(acme)


def test_rights_on_the_parent_are_rights_on_its_tenants(
    conn: Connection, roles: tuple[Connection, Connection]
) -> None:
    shop, acme = roles
    fill(shop, new=1)
    fill(shop, new=1, acme=1)
    assert claim(shop, 5, "mails/acme") == {"acme": 1}
    assert setting(conn, "queue_restricted") == dict.fromkeys(
        ("mails", "mails/acme", "mails/new"), True
    )
    fill(acme, acme=1)
    for tenant in ("new", "newer"):
        with ops.refused(FORBIDDEN):
            fill(acme, **{tenant: 1})
    for queue in ("mails", "mails/new"):
        with ops.refused(FORBIDDEN):
            claim(acme, queue=queue)
    assert claim(acme, 5, "mails/acme") == {"acme": 1}
    assert claim(shop, 5) == {"new": 2}
    for statement in (
        "select pgq_task.list_tasks('mails/new')",
        "select pgq_task.create_queue('x')",
    ):
        with ops.refused(FORBIDDEN):
            shop.execute(statement.encode())
    assert "mails/newer" not in ops.value(conn, QUEUES)


def test_the_error_queue_has_the_grants_of_the_parent(
    conn: Connection, roles: tuple[Connection, Connection]
) -> None:
    _, acme = roles
    fill(acme, acme=1)
    (claimed,) = tasks.claim(acme, "mails/acme")
    tasks.fail(acme, claimed, final=True)
    granted = "select role from pgq_task.get_queue_grants('mails.failed')"
    assert conn.execute(granted).fetchall() == [("test_shop",)]


# --- dumps

SETTINGS: LiteralString = "(queue_parent, queue_weight, queue_restricted, max_running)::text"


def test_a_dump_keeps_tenants(server: Server, dsn: str, conn: Connection, empty_dsn: str) -> None:
    conn.execute("select pgq_task.restrict_queue('mails')")
    conn.execute("select pgq_task.set_limits('mails', max_running => 2)")
    fill(conn, acme=3)
    config(conn, "mails/acme", "weight", 4)
    before = setting(conn, SETTINGS)
    restore(server, empty_dsn, dump(server, dsn))
    with psycopg.connect(empty_dsn, autocommit=True) as restored:
        assert setting(restored, SETTINGS) == before
        fill(restored, new=1)
        assert claim(restored, 9) == {"acme": 2, "new": 1}


def test_a_worker_that_waits_for_any_number_of_tenants_holds_a_limited_number_of_locks(
    conn: Connection,
) -> None:
    """All sessions of the server share them."""
    held: LiteralString = (
        "select count(*) from pg_locks where pid = pg_backend_pid() and relation is not null"
    )
    conn.execute("select pgq_task.set_limits('mails', rate => 1)")
    fill(conn, **{f"t{number}": 1 for number in range(100)})
    assert claim(conn, 100).total() == 100
    with conn.transaction():
        [(wait,)] = conn.execute("select pgq_task.set_waiting('{mails}')").fetchall()
        assert ops.value(conn, held) < 200, "one each"
    assert wait > timedelta(seconds=30), "that of the rate"
    conn.execute("select pgq_task.set_limits('mails')")
    fill(conn, **{f"t{number}": 1 for number in range(100, 1010)})
    conn.execute("select setval(queue_waiting, 0) from pgq_task.queue")
    with conn.transaction():
        conn.execute("select pgq_task.set_waiting('{mails}')")
        assert ops.value(conn, held) < 1100
    waiting: LiteralString = (
        "select count(*) from pgq_task.queue where pg_sequence_last_value(queue_waiting) = 1"
    )
    assert ops.value(conn, waiting) == 1000
