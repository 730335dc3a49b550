"""Cascaded queues in SQL: copies, watermarks, takeover, the fence around an old root, rights.

What PgQ's functions answer is compared in tests/acceptance/reference.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgqpy.embedded import Server
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import (
    AsRole,
    Connect,
    Connection,
    MakeRole,
    create_database,
    drop_database,
)
from tests.fixtures.fix_server import WITH_NODE

COLUMNS = "ev_id, ev_time, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"


def answer(conn: Connection, call: str, *arguments: object) -> ops.Row:
    """The row of a function of pgq_node for the queue q."""
    given = ", ".join(["'q'", *["%s"] * len(arguments)])
    row = conn.execute(f"select * from pgq_node.{call}({given})".encode(), arguments).fetchone()
    assert row is not None
    return row


def code(conn: Connection, call: str, *arguments: object) -> object:
    return answer(conn, call, *arguments)[0]


def administrator(conn: Connection) -> Connection:
    """Without a superuser's rights from here on."""
    conn.execute("set role pgq_admin")
    return conn


@pytest.fixture
def root(node: Connection) -> Connection:
    """The root a, which b subscribes to."""
    administrator(node)
    for name in ("a", "b", "c"):
        assert code(node, "register_location", name, f"dbname={name}", False) == 200
    assert code(node, "create_node", "root", "a", "a_worker", None, None, None) == 200
    assert code(node, "register_subscriber", "b", "b_worker", None) == 200
    ops.rotate_whenever_asked(node, "q")
    return node


@pytest.fixture
def branch(root: Connection, server: Server, connect: Connect) -> Iterator[Connection]:
    """The branch b in a database of its own."""
    database = create_database(server, WITH_NODE)
    conn = connect(server.dsn_of(database))
    administrator(conn)
    for name, location, dead in root.execute("select * from pgq_node.get_queue_locations('q')"):
        assert code(conn, "register_location", name, location, dead) == 200
    assert code(conn, "create_node", "branch", "b", "b_worker", "a", 1, None) == 200
    ops.rotate_whenever_asked(conn, "q")
    yield conn
    conn.close()
    drop_database(server, database)


def copy_batch(source: Connection, target: Connection) -> bool:
    """What a worker does for one batch; false if there is none."""
    batch = ops.value(source, "select pgq.next_batch('q', 'b_worker')")
    if batch is None:
        return False
    info = "select tick_id, batch_end, seq_end from pgq.get_batch_info(%s)"
    [(tick, time, seq)] = source.execute(info, [batch]).fetchall()
    events = source.execute(
        f"select {COLUMNS} from pgq.get_batch_events(%s)".encode(), [batch]
    ).fetchall()
    with target.transaction():
        table = ops.value(target, "select pgq_node.begin_copy('q')")
        with (
            target.cursor() as cursor,
            cursor.copy(f"copy {table} ({COLUMNS}) from stdin".encode()) as rows,
        ):
            for event in events:
                rows.write_row(event)
        for event in events:
            if event[3] == "pgq.global-watermark":
                assert code(target, "set_global_watermark", int(event[4])) == 200
            if event[3] == "pgq.location-info" and event[8] is not None:
                assert code(target, "learn_epoch", int(event[8])) == 200
        target.execute("select pgq.ticker('q', %s, %s, %s)", [tick, time, seq])
        assert code(target, "set_consumer_completed", "b_worker", tick) == 100
    ops.finish(source, batch)
    return True


def follow(source: Connection, target: Connection) -> None:
    ops.tick(source, "q")
    while copy_batch(source, target):
        pass


def publish(root: Connection, branch: Connection) -> None:
    """The branch's watermark goes up, the global watermark down."""
    local = ops.value(branch, "select local_watermark from pgq_node.get_node_info('q')")
    assert code(root, "set_subscriber_watermark", "b", local) in (100, 200)
    assert code(root, "set_global_watermark", None) == 200
    follow(root, branch)


def contents(conn: Connection) -> list[ops.Row]:
    return conn.execute(f"select {COLUMNS} from pgq.event_1 order by 1".encode()).fetchall()


# copies


def test_a_branch_takes_copies_from_its_worker_and_from_no_other(
    root: Connection, branch: Connection, server: Server, connect: Connect
) -> None:
    ops.insert(root, "q", "one")
    follow(root, branch)
    assert contents(branch) == contents(root) != []
    assert ops.value(branch, "select max(tick_id) from pgq.tick") == ops.value(
        root, "select max(tick_id) from pgq.tick"
    )
    other = connect(server.dsn_of(branch.info.dbname))
    with branch.transaction():
        table = ops.value(branch, "select pgq_node.begin_copy('q')")
        with ops.refused("PQ006"):
            ops.insert(other, "q", "not of the worker")
        ops.copy(branch, table, ["two"])
    # It ends with the transaction, and is for administrators.
    with ops.refused("PQ006"):
        ops.insert(branch, "q", "later")
    other.execute("set role pgq_writer; select set_config('pgqpy.copies_into', 'q', false)")
    with ops.refused("PQ006"):
        ops.insert(other, "q", "by a writer")
    with ops.refused("42501"):
        other.execute("select pgq_node.begin_copy('q')")
    with ops.refused("PQ006", "no branch"):
        root.execute("select pgq_node.begin_copy('q')")
    assert [row[4] for row in contents(branch)] == ["one", "two"]


# watermarks


def test_rotation_waits_at_each_node_for_the_slowest(root: Connection, branch: Connection) -> None:
    ops.register(branch, "q", "slow")
    ops.insert(root, "q", "one")
    follow(root, branch)
    for _ in range(3):
        publish(root, branch)
        ops.rotate(root, "q")
        ops.rotate(branch, "q")
    before = ops.rotations(root, "q"), ops.rotations(branch, "q")
    for _ in range(2):
        publish(root, branch)
        assert not ops.rotate(root, "q")
        assert not ops.rotate(branch, "q")
    # Below the root all is done; but no node has heard of it.
    assert ops.drain(branch, "q", "slow")[0] == "one"
    assert not ops.rotate(root, "q")
    assert not ops.rotate(branch, "q")
    for _ in range(6):
        ops.drain(branch, "q", "slow")
        publish(root, branch)
        ops.rotate(root, "q")
        ops.rotate(branch, "q")
    assert ops.rotations(root, "q") > before[0]
    assert ops.rotations(branch, "q") > before[1]


def test_a_subscriber_that_is_gone_holds_nothing_back(root: Connection) -> None:
    assert ops.value(root, "select local_watermark from pgq_node.get_node_info('q')") == 1
    ops.tick(root, "q")
    assert code(root, "drop_node", "b") == 200
    info = "select local_watermark > 1, target_for is null from pgq_node.get_node_info('q')"
    assert root.execute(info.encode()).fetchall() == [(True, True)]
    consumers = "select consumer_name from pgq.get_consumer_info('q')"
    assert root.execute(consumers.encode()).fetchall() == [(".global_watermark",)]


def test_maintenance_moves_the_watermark_of_a_root_without_a_worker(root: Connection) -> None:
    operations = root.execute("select * from pgq.maint_operations()").fetchall()
    assert ("pgq_node.maint_watermark", "q") in operations
    assert "pgq.maint_refused" not in [name for name, _ in operations]
    root.execute("select pgq_node.maint_watermark('q')")
    assert contents(root) == []
    root.execute("reset role")
    for table in ("tick_0", "tick_1"):
        root.execute(f"update pgq.{table} set tick_time = tick_time - interval '1 hour'".encode())
    root.execute("set role pgq_admin; select pgq_node.maint_watermark('q')")
    assert [row[3] for row in contents(root)] == ["pgq.global-watermark"]


def test_maintenance_does_not_wait_for_a_transaction_that_registers_a_consumer(
    root: Connection, connect: Connect
) -> None:
    other = connect(autocommit=False)
    other.execute("set role pgq_writer")
    assert code(other, "register_consumer", "c", "b", 1) == 200
    root.execute("set lock_timeout = '10s'")
    assert ops.value(root, "select pgq_node.maint_watermark('q')") == 0


def test_subscribing_again_begins_at_the_given_tick(root: Connection) -> None:
    for _ in range(3):
        ops.tick(root, "q")
    for tick in (3, 2, None):
        assert answer(root, "register_subscriber", "b", "b_worker", tick)[0::2] == (200, 1)
        position = "select last_tick from pgq.get_consumer_info('q', 'b_worker')"
        assert ops.value(root, position) == (tick or 1)
    assert code(root, "register_subscriber", "b", "another", 2) == 200
    consumers = "select consumer_name from pgq.get_consumer_info('q') order by 1"
    assert [name for (name,) in root.execute(consumers.encode())] == [
        ".b.watermark",
        ".global_watermark",
        "another",
    ]


# takeover


def test_after_a_takeover_ticks_and_ids_go_on_and_the_old_root_follows(
    root: Connection, branch: Connection
) -> None:
    ops.insert(root, "q", "one")
    follow(root, branch)
    assert code(root, "demote_root", 1, "b") == 200
    with ops.refused("PQ006"):
        ops.insert(root, "q", "refused")
    last = answer(root, "demote_root", 2, "b")[2]
    while copy_batch(root, branch):
        pass
    assert ops.value(branch, "select max(tick_id) from pgq.tick") == last
    assert code(branch, "promote_branch") == 200
    assert code(branch, "register_subscriber", "a", "b_worker", last) == 200
    assert answer(root, "demote_root", 3, "b")[::2] == (200, last)
    ops.insert(branch, "q", "two")
    assert ops.tick(branch, "q") == last + 1
    # The same copying, the other way.
    root.execute("update pgq_node.local_state set consumer_name = 'b_worker'")
    while copy_batch(branch, root):
        pass
    assert contents(root) == contents(branch)
    assert [row[4] for row in contents(root)] == ["one", "b", "two"]
    # All know the new epoch, by an event.
    epochs = {answer(conn, "get_epoch")[2] for conn in (root, branch)}
    assert len(epochs) == 1
    assert epochs.pop() > 1_700_000_000_000
    assert code(root, "learn_epoch", 5) == 201


def test_an_id_that_the_last_tick_did_not_count_is_not_used_again(
    root: Connection, branch: Connection
) -> None:
    ops.insert(root, "q", "one")
    late = ops.insert(root, "q", "late") + 1_000_000
    root.execute("reset role")
    root.execute("update pgq.event set ev_id = %s where ev_data = 'late'", [late])
    administrator(root)
    follow(root, branch)
    assert code(branch, "promote_branch") == 200
    assert ops.insert(branch, "q", "two") > late


def test_an_event_after_the_last_tick_is_not_passed_over(root: Connection) -> None:
    """Its producer had passed the check, and inserts after the tick."""
    assert code(root, "demote_root", 1, "b") == 200
    assert code(root, "demote_root", 2, "b") == 200
    with root.transaction():
        root.execute("select set_config('pgqpy.copies_into', 'q', true)")
        ops.insert(root, "q", "late")
    assert code(root, "demote_root", 3, "b") == 409
    assert code(root, "demote_root", 2, "b") == 200
    assert code(root, "demote_root", 3, "b") == 200


def test_a_tick_that_pgqs_worker_did_not_make_is_made_by_the_takeover(
    root: Connection, branch: Connection
) -> None:
    """It copies, and notes that; then it makes the tick, if it was not killed."""
    follow(root, branch)
    tick = 1 + ops.value(branch, "select max(tick_id) from pgq.tick")
    with branch.transaction():
        ops.copy(branch, ops.value(branch, "select pgq_node.begin_copy('q')"), ["one"])
        assert code(branch, "set_consumer_completed", "b_worker", tick) == 100
    assert code(branch, "promote_branch") == 200
    assert ops.value(branch, "select last_tick_id from pgq_node.local_state") == tick
    assert ops.value(branch, "select max(tick_id) from pgq.tick") == tick
    assert ops.tick(branch, "q") == tick + 1


AT_ITS_TIME = "select pgq.insert_event_at('q', now() + interval '1 day', 't', 'delayed')"
HANDED_OVER = """
    select coalesce(jsonb_agg(h), '[]')::text from pgq_node.handed_over as h where not taken
"""


def test_delayed_events_go_to_the_new_root_once_and_keep_their_ids(
    root: Connection, branch: Connection
) -> None:
    waiting = [ops.value(root, AT_ITS_TIME) for _ in range(2)]
    for step in (1, 2):
        assert code(root, "demote_root", step, "b") == 200
    while copy_batch(root, branch):
        pass
    assert ops.value(root, "select count(*) from pgq.waiting_event") == 0
    events = ops.value(root, HANDED_OVER)
    assert code(branch, "take_delayed", events) == 301
    assert code(branch, "promote_branch") == 200
    assert code(root, "demote_root", 3, "b") == 200
    assert answer(branch, "take_delayed", events)[::2] == (200, 2)
    assert ops.value(branch, "select pgq.cancel_event('q', %s)", waiting[0]) is True
    branch.execute("reset role; update pgq.delayed set due = now() - interval '1 hour'")
    administrator(branch)
    assert ops.value(branch, "select moved from pgq.maint_delayed_events()") == 1
    assert [row[0] for row in contents(branch) if row[3] == "t"] == waiting[1:]
    # A takeover that was killed begins again.
    assert answer(branch, "take_delayed", events)[2] == 0


def test_delayed_events_of_a_fenced_root_can_be_taken(root: Connection, branch: Connection) -> None:
    event = ops.value(root, AT_ITS_TIME)
    follow(root, branch)
    assert code(branch, "promote_branch") == 200
    epoch = answer(branch, "get_epoch")[2]
    assert answer(root, "fence_root", "b", epoch, 2)[::3] == (200, 1)
    assert answer(branch, "take_delayed", ops.value(root, HANDED_OVER))[2] == 1
    assert ops.value(branch, "select ev_id from pgq.waiting_event") == event
    # It becomes a branch once more, with the event.
    assert code(branch, "demote_root", 1, "c") == 200
    assert ops.value(branch, "select ev_id from pgq_node.handed_over where not taken") == event


def test_delayed_events_come_back_if_the_takeover_is_given_up(root: Connection) -> None:
    event = ops.value(root, AT_ITS_TIME)
    assert code(root, "demote_root", 1, "b") == 200
    root.execute("select pgq_node.maint_watermark('q')")
    assert ops.value(root, "select count(*) from pgq.waiting_event") == 0
    for setting in ("disable_insert", "external_ticker"):
        root.execute("select pgq.set_queue_config('q', %s, 'false')", [setting])
    root.execute("select pgq_node.maint_watermark('q')")
    assert root.execute("select ev_id, ev_data from pgq.waiting_event").fetchall() == [
        (event, "delayed")
    ]
    assert ops.value(root, HANDED_OVER) == "[]"


@pytest.mark.any_pg
@pytest.mark.slow
def test_they_do_though_they_are_more_than_a_json_array_holds(root: Connection) -> None:
    root.execute(
        "select pgq.insert_event_at('q', now() + interval '1 hour', 't', repeat('x', 100000000))"
        " from generate_series(1, 3)"
    )
    assert code(root, "demote_root", 1, "b") == 200
    for setting in ("disable_insert", "external_ticker"):
        root.execute("select pgq.set_queue_config('q', %s, 'false')", [setting])
    root.execute("select pgq_node.maint_watermark('q')")
    assert ops.value(root, "select count(*) from pgq.waiting_event") == 3


# the fence


def test_an_old_root_is_fenced_and_its_rest_is_counted(
    root: Connection, branch: Connection, server: Server, connect: Connect
) -> None:
    ops.insert(root, "q", "copied")
    follow(root, branch)
    last = ops.value(branch, "select last_tick_id from pgq_node.local_state")
    writer = connect(server.dsn_of(root.info.dbname), autocommit=False)
    ops.insert(writer, "q", "still open")
    ops.insert(root, "q", "lost")
    ops.tick(root, "q")
    root.execute("select pgq.insert_event('q', null, 'not ticked')")
    root.execute("select pgq.insert_event_at('q', now() + interval '1 day', 't', 'delayed')")
    assert code(branch, "promote_branch") == 200
    epoch = answer(branch, "get_epoch")[2]

    # An old root that hears of the new epoch does not become the newer one.
    assert code(root, "learn_epoch", epoch) == 201
    assert code(root, "fence_root", "b", 0, last) == 405
    ops.insert(root, "q", "open as before")
    assert answer(root, "fence_root", "b", epoch, last)[::2] == (200, 3)
    assert answer(root, "get_epoch")[2:] == (0, "b", epoch, last)
    with ops.refused("PQ006"):
        ops.insert(root, "q", "refused")
    with ops.refused("PQ014"):
        root.execute("select pgq.ticker('q')")
    writer.commit()
    assert answer(root, "fence_root", "b", epoch, last)[::2] == (201, 4)
    assert answer(root, "fence_root", "b", epoch, last)[3] == 1
    rest = "select ev_data from pgq_node.get_rest_events('q', %s)"
    assert [data for (data,) in root.execute(rest, [last])] == [
        "still open",
        "lost",
        "not ticked",
        "open as before",
    ]
    # It neither fails in maintenance nor gets nodes back.
    root.execute("select pgq_node.maint_watermark('q')")
    assert code(root, "set_global_watermark", None) == 405
    assert code(root, "register_location", "c", "dbname=d", False) == 200
    assert code(root, "register_subscriber", "c", "c_worker", None) == 405
    for step in (1, 2, 3):
        assert code(root, "demote_root", step, "b") == 405
    # The new root is not to be fenced by mistake.
    assert code(branch, "fence_root", "a", 0, last) == 405
    # It comes back as a new branch.
    assert code(root, "drop_node", "a") == 200
    assert answer(root, "get_epoch")[0] == 404
    for name in ("a", "b"):
        code(root, "register_location", name, f"dbname={name}", False)
    assert code(root, "create_node", "branch", "a", "a_worker", "b", 1, None) == 200


def test_the_rest_after_a_forgotten_tick_is_unknown(root: Connection) -> None:
    assert answer(root, "fence_root", "b", 7, 99)[::2] == (200, None)
    with ops.refused("PQ008"):
        root.execute("select pgq_node.get_rest_events('q', 99)")


# bad input, and rights


def test_a_branch_is_not_opened_for_events_or_ticks_of_its_own_nor_dropped_as_a_queue(
    branch: Connection,
) -> None:
    with ops.refused("PQ006") as refused:
        ops.insert(branch, "q", "x")
    assert "branch b of a cascaded queue: insert at the root" in str(refused.value)
    for statement, sqlstate in (
        ("select pgq.set_queue_config('q', 'disable_insert', 'false')", "PQ011"),
        ("select pgq.set_queue_config('q', 'external_ticker', 'false')", "PQ011"),
        ("update pgq.queue set queue_disable_insert = false", "PQ011"),
        ("select pgq.drop_queue('q', true)", "PQ007"),
    ):
        with ops.refused(sqlstate) as refused:
            branch.execute(statement.encode())
        assert "branch b of" in str(refused.value)
    with ops.refused("PQ006"):
        ops.insert(branch, "q", "x")
    assert code(branch, "promote_branch") == 200
    ops.insert(branch, "q", "x")


def test_a_leaf_says_that_it_keeps_no_events(node: Connection) -> None:
    for name in ("a", "d"):
        code(node, "register_location", name, f"dbname={name}", False)
    assert code(node, "create_node", "leaf", "d", "d_worker", "a", 1, None) == 200
    for sqlstate, act in (
        ("PQ001", lambda: ops.insert(node, "q", "x")),
        ("PQ007", lambda: node.execute("select pgq.create_queue('q')")),
    ):
        with ops.refused(sqlstate) as refused:
            act()
        assert "is leaf d of" in str(refused.value)


def test_a_queue_that_is_no_node_survives_drop_node(node: Connection, queue: str) -> None:
    node.execute("select pgq_node.drop_node(%s, 'a')", [queue])
    assert ops.value(node, "select count(*) from pgq.get_queue_info(%s)", queue) == 1
    for name in ("a", "b"):
        node.execute("select pgq_node.register_location(%s, %s, '', false)", [queue, name])
    ops.tick(node, queue)
    create = "select ret_code from pgq_node.create_node(%s, 'branch', 'a', 'w', 'b', 5, null)"
    assert ops.value(node, create, queue) == 401


def test_a_node_copies_neither_from_itself_nor_from_an_unknown_one(branch: Connection) -> None:
    assert code(branch, "change_consumer_provider", "b_worker", "b") == 405
    assert code(branch, "change_consumer_provider", "b_worker", "nope") == 404
    assert code(branch, "register_consumer", "c", "nope", 1) == 404
    assert code(branch, "register_subscriber", "nope", "w", 1) == 404
    assert code(branch, "register_consumer", "c", "c", 1) == 200
    # A location that is in use stays.
    assert code(branch, "drop_node", "c") == 403


def test_on_a_restricted_queue_nodes_need_the_rights_of_consumers(
    root: Connection, make_role: MakeRole, as_role: AsRole
) -> None:
    root.execute("select pgq.restrict_queue('q')")
    root.execute("reset role")
    role = make_role("noder", "pgq_reader", "pgq_writer")
    other = as_role(role)
    calls = (
        "register_subscriber('q', 'nope', 'w', null)",
        "register_subscriber('q', 'c', 'c_worker', null)",
        "unregister_subscriber('q', 'b')",
        # What it is already, too: to find out locks the subscriber.
        "set_subscriber_watermark('q', 'b', 1)",
        "set_subscriber_watermark('q', 'b', 2)",
        "register_consumer('q', 'c', 'a', 1)",
        "set_consumer_completed('q', 'c', 9)",
        "set_consumer_paused('q', 'c', true)",
    )
    ops.tick(root, "q")
    for call in calls:
        with ops.refused("42501"):
            other.execute(f"select pgq_node.{call}".encode())
    assert code(other, "get_node_info") == 100
    # An error may quote an event.
    root.execute("update pgq_node.local_state set cur_error = 'bad payload: x'")
    shown = "select array_agg(cur_error) from pgq_node.get_consumer_info('q')"
    of_one = "select cur_error from pgq_node.get_consumer_state('q', 'a_worker')"
    assert ops.value(other, shown) == [None]
    assert ops.value(other, of_one) is None
    with ops.refused("42501"):
        other.execute("select cur_error from pgq_node.local_state")
    assert ops.value(other, "select paused from pgq_node.local_state") is False
    root.execute("select pgq.grant_queue('q', '{consume}', 'test_noder')")
    assert ops.value(other, shown) == ["bad payload: x"]
    assert ops.value(other, of_one) == "bad payload: x"
    with other.transaction():
        other.execute(f"select pgq_node.{calls[0]}".encode())
        # What was refused locks nothing.
        root.execute("select from pgq_node.node_info for update nowait")
    for call in calls:
        other.execute(f"select pgq_node.{call}".encode())
    # PostgreSQL would quote the consumer's row.
    root.execute("update pgq_node.local_state set cur_error = 'bad payload: x'")
    for call in (
        "register_consumer('q', 'c', 'a', null)",
        "set_consumer_completed('q', 'c', null)",
        "set_consumer_paused('q', 'c', null)",
        "set_consumer_uptodate('q', 'c', null)",
    ):
        with ops.refused("PQ011"):
            other.execute(f"select pgq_node.{call}".encode())
    for call in (
        "get_rest_events('q', 1)",
        "fence_root('q', 'b', 9, 1)",
        "drop_node('q', 'a')",
    ):
        with ops.refused("42501"):
            other.execute(f"select pgq_node.{call}".encode())


def test_a_worker_is_moved_by_administrators_only(
    root: Connection, make_role: MakeRole, as_role: AsRole
) -> None:
    """What it skips, no consumer of the node gets."""
    root.execute("reset role")
    other = as_role(make_role("writer", "pgq_reader", "pgq_writer"))
    for call in (
        "register_consumer('q', 'a_worker', 'b', 9)",
        "unregister_consumer('q', 'a_worker')",
        "change_consumer_provider('q', 'a_worker', 'b')",
        "set_consumer_completed('q', 'a_worker', 9)",
        "set_consumer_paused('q', 'a_worker', true)",
        "set_consumer_uptodate('q', 'a_worker', true)",
        "set_consumer_error('q', 'a_worker', 'x')",
    ):
        with ops.refused("42501"):
            other.execute(f"select pgq_node.{call}".encode())
    assert code(other, "register_consumer", "c", "b", 9) == 200
