"""CascadedWorker: a node has the ticks and events of its provider, exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from pgqpy import Connection, Event, errors
from pgqpy._runtime.listener import Subscription
from pgqpy.cascade import CascadedConsumer, CascadedWorker, Nodes, _provider, change_provider
from pgqpy.cascade import _statements as statements
from pgqpy.cascade._provider import Provider
from pgqpy.errors import PgqError
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import AddNode, Before, Node, locate
from tests.fixtures.fix_client import running, wait_until
from tests.fixtures.fix_db import Connect

#: What a worker reads and calls at its provider, as another role may make it.
TRAP = """
create function public.spring() returns text language sql
    as 'select pg_catalog.setval(''public.ran'', 2)::text';
create view pgq_node.node_info as select public.spring() as queue_name, 'root' as node_type;
create view pgq.queue as select public.spring() as queue_name, 1 as queue_id;
create view pgq.tick as select 1 as tick_queue, 1::bigint as tick_id, now() as tick_time;
create view pgq_node.subscriber_info as
    select public.spring() as queue_name, 'branch' as subscriber_node;
create function pgq.register_consumer(text, text, text) returns int language sql
    as 'select public.spring()::int';
create function pgq_node.get_node_info(text) returns text language sql as 'select public.spring()';
"""


OPERATOR = """
create sequence public.ran;
create function public.same(a text, b text) returns boolean language sql
    as 'select pg_catalog.setval(''public.ran'', 2) is not null and pg_catalog.texteq(a, b)';
create operator public.= (leftarg = text, rightarg = text, function = public.same);
do $$ begin
    execute format('alter database %I set search_path = public, pg_catalog', current_database());
end $$;
"""


class Registered(CascadedConsumer):
    queue = "q"
    consumer = "c"

    def process_remote_event(self, target: Connection, event: Event) -> None: ...


@pytest.fixture
def root(add_node: AddNode) -> Node:
    node = add_node("root")
    ops.tick(node.conn, "q")
    return node


@pytest.fixture
def branch(root: Node, add_node: AddNode) -> Node:
    return add_node("branch", root)


def test_refuses_a_database_that_is_no_node_and_a_provider_that_is_none(
    root: Node, branch: Node, target_dsn: str
) -> None:
    with pytest.raises(errors.SchemaMissing):
        CascadedWorker(target_dsn, queue="q").run_once()
    with pytest.raises(PgqError, match="no node of queue 'other'"):
        CascadedWorker(root.dsn, queue="other").run_once()
    ops.value(branch.conn, "select pgq_node.register_location('q', 'root', %s, false)", target_dsn)
    with pytest.raises(PgqError, match="provider root has no copy of queue q"):
        branch.worker.run_once()


def test_refuses_an_attribute_that_only_pgqs_worker_heeds(root: Node, branch: Node) -> None:
    set_attrs = "select pgq_node.set_node_attrs('q', %s)"
    branch.conn.execute(set_attrs, ["a=b&sync_watermark=branch%2Cother"])
    with pytest.raises(PgqError, match="sync_watermark"):
        branch.worker.run_once()
    assert "sync_watermark" in branch.state["cur_error"]
    branch.conn.execute(set_attrs, ["a=b"])
    branch.catch_up()


@pytest.mark.smoke
def test_each_batch_of_a_branch_is_that_of_the_root(
    root: Node, branch: Node, connect: Connect
) -> None:
    late, slow = connect(root.dsn, autocommit=False), connect(root.dsn, autocommit=False)
    # Ids and ticks interleave: the events of these come ticks after those with higher ids.
    ops.insert(late, "q", "late")
    ops.insert(slow, "q", "slow")
    for number in range(6):
        root.conn.execute(
            "insert into pgq_queue.q (ev_type, ev_data, ev_extra1, ev_extra4)"
            " select 't', n || ' pgq. \u20ac', case when n %% 2 = 0 then 'x' end, %s"
            "   from generate_series(1, %s) n",
            ["\n\t\\" * number, number * 7],
        )
        ops.tick(root.conn, "q")
        if number == 2:
            late.commit()
        if number == 4:
            slow.commit()
            branch.catch_up()
    # An early tick, and ticks without events.
    root.conn.execute("update pgq.queue set queue_ticker_max_lag = '1 hour'")
    ops.insert(root.conn, "q", "early")
    root.conn.execute("select pg_sleep(0.01) from pgq.ticker_round()")
    root.conn.execute("select pgq.ticker_round()")
    branch.catch_up()
    assert any(tick[3] for tick in root.ticks())
    assert branch.ticks() == root.ticks()
    batches = root.batches()
    types = [row[3] for rows in batches.values() for row in rows]
    assert (types.count("t"), types.count("test")) == (7 * 15, 3)
    assert branch.batches() == batches
    assert branch.state["last_tick_id"] == root.ticks()[-1][0]


def test_needs_an_administrator_of_its_node_and_a_reader_of_its_provider(
    root: Node, branch: Node
) -> None:
    for role, group in (("keeper", "pgq_admin"), ("onlooker", "pgq_reader")):
        name = f"{role}_{branch.conn.info.dbname}"
        branch.conn.execute(f"create role {name} login in role {group}".encode())
    reader = root.dsn.replace("postgres@", f"onlooker_{branch.conn.info.dbname}@")
    branch.conn.execute("select pgq_node.register_location('q', 'root', %s, false)", [reader])
    ops.insert_ticked(root.conn, "q", "a")
    keeper = branch.dsn.replace("postgres@", f"keeper_{branch.conn.info.dbname}@")
    worker = CascadedWorker(keeper, queue="q")
    worker.watermark_interval = 0
    worker.run(until_empty=True)
    assert branch.batches() == root.batches()
    # What a worker may, a producer may not.
    with psycopg.connect(keeper) as conn, ops.refused("PQ006"):
        ops.insert(conn, "q", "b")


def test_goes_on_after_a_tick_that_the_provider_has_forgotten_before_it_was_told(
    root: Node, branch: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops.insert_ticked(root.conn, "q", "a")
    branch.catch_up()
    ops.register(branch.conn, "q", "c")
    root.conn.execute("update pgq.queue set queue_ticker_max_lag = '1 hour'")
    ops.insert(root.conn, "q", "b")
    wait_until(lambda: ops.value(root.conn, "select ticks from pgq.ticker_round()"))
    assert root.ticks()[-1][3], "it is not early"

    def killed(*_: object, more: bool) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Provider, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            branch.catch_up()
    ops.rotate_logs(root.conn)
    ops.insert_ticked(root.conn, "q", "d")
    ops.rotate_logs(root.conn)
    assert branch.state["last_tick_id"] not in [tick[0] for tick in root.ticks()]
    branch.catch_up()
    assert ops.drain(branch.conn, "q", "c") == ["b", "d"]
    assert branch.ticks()[-1] == root.ticks()[-1]


@pytest.mark.parametrize(
    ("seen", "mine", "snapshot"),
    [
        ("100:100:", "{100,102}", "101:103:101"),  # began beside the copy
        ("90:100:90,95", "{100}", "90:101:90,95"),
        ("90:105:90,100,104", "{100,106}", "90:107:90,104,105"),
        ("100:105:100", "{100}", "105:105:"),
    ],
)
def test_a_copied_tick_sees_its_own_ids_and_none_that_may_end_later(
    root: Node, seen: str, mine: str, snapshot: str
) -> None:
    copied = "select pgq._snapshot_with(%s::txid_snapshot, %s)::text"
    assert ops.value(root.conn, copied, seen, mine) == snapshot


def test_a_provider_is_told_in_the_end_though_it_was_not_told_of_each_tick(
    root: Node, branch: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Subscription, "up_to_date", lambda *_: False)
    monkeypatch.setattr(_provider, "monotonic", lambda: 0.0)
    told: list[int] = []
    stand = Provider.stand

    async def note(provider: Provider, conn: Any, consumer: str, tick: int) -> None:
        told.append(tick)
        await stand(provider, conn, consumer, tick)

    monkeypatch.setattr(Provider, "stand", note)
    monkeypatch.setattr(CascadedWorker, "batch_size", 1)
    ticks = [ops.insert_ticked(root.conn, "q", data) for data in "abc"]
    branch.catch_up()
    assert len(told) == 2 < len(ticks)
    position = "select last_tick from pgq.get_consumer_info('q', 'branch_worker')"
    assert ops.value(root.conn, position) == told[-1] == root.ticks()[-1][0]


def test_what_a_consumer_of_the_root_retries_is_not_copied(root: Node, branch: Node) -> None:
    ops.register(root.conn, "q", "c")
    batch = ops.open_batch(root.conn, "q", "c", "again")
    event = next(row[0] for row in ops.events(root.conn, batch) if row[5] == "again")
    root.conn.execute("select pgq.event_retry(%s, %s, 0)", [batch, event])
    ops.finish(root.conn, batch)
    assert ops.value(root.conn, "select pgq.maint_retry_events()") == 1
    assert ops.deliver(root.conn, "q", "c") == ["again"]
    branch.catch_up()
    datas = [row[4] for rows in branch.batches().values() for row in rows]
    assert datas.count("again") == 1


def test_retries_of_a_consumer_on_a_branch_come_while_the_branch_copies(
    root: Node, branch: Node
) -> None:
    branch.catch_up()
    ops.register(branch.conn, "q", "c")
    ops.insert_ticked(root.conn, "q", "first")
    branch.catch_up()
    batch = ops.next_batch(branch.conn, "q", "c")
    event = next(row[0] for row in ops.events(branch.conn, batch) if row[5] == "first")
    branch.conn.execute("select pgq.event_retry(%s, %s, 0)", [batch, event])
    ops.finish(branch.conn, batch)
    with psycopg.connect(branch.dsn) as moving:
        # Its transaction is older than those that copy, and ends later.
        assert ops.value(moving, "select pgq.maint_retry_events()") == 1
        for data in "ab":
            ops.insert_ticked(root.conn, "q", data)
        branch.catch_up()
        assert ops.drain(branch.conn, "q", "c") == ["a", "b"]
    ops.insert_ticked(root.conn, "q", "d")
    branch.catch_up()
    assert sorted(ops.drain(branch.conn, "q", "c")) == ["d", "first"]


def test_rotation_on_a_branch_loses_nothing(root: Node, branch: Node) -> None:
    branch.catch_up()
    ops.register(branch.conn, "q", "c")
    ops.rotate_whenever_asked(branch.conn, "q")
    branch.conn.execute("select pgq.unregister_consumer('q', '.global_watermark')")
    seen = []
    for number in range(8):
        for part in "ab":
            ops.insert_ticked(root.conn, "q", f"{number}{part}")
        branch.catch_up()
        seen += ops.drain(branch.conn, "q", "c") if number % 3 else []
        ops.rotate(branch.conn, "q")
    seen += ops.drain(branch.conn, "q", "c")
    assert ops.rotations(branch.conn, "q") > 3
    assert [data for data in seen if data != "branch"] == [
        f"{number}{part}" for number in range(8) for part in "ab"
    ]


@pytest.fixture
def chain(root: Node, branch: Node, add_node: AddNode) -> Iterator[list[Node]]:
    """root, two branches of it, and a leaf of the first; their workers run."""
    nodes = [root, branch, add_node("second", root), add_node("leaf", branch, "leaf")]
    with running(*(node.worker for node in nodes)):
        yield nodes


def test_a_branch_goes_on_at_another_provider_while_it_runs(chain: list[Node]) -> None:
    root, first, second, _ = chain
    second.has(ops.tick(root.conn, "q"))
    providers = {0: "branch", 10: "root", 20: "branch"}
    for number in range(30):
        tick = ops.insert_ticked(root.conn, "q", str(number))
        if number in providers:
            with Nodes("q", root.dsn) as nodes:
                assert change_provider(nodes, "second", providers[number])
    for node in chain[1:]:
        node.has(tick)
    assert second.batches() == root.batches()
    # The last provider is told.
    position = "select last_tick from pgq.get_consumer_info('q', 'second_worker')"
    wait_until(lambda: ops.value(first.conn, position) == tick)


def test_a_paused_worker_waits_and_an_error_is_noted_until_it_is_over(chain: list[Node]) -> None:
    root, branch, _, leaf = chain
    leaf.conn.execute("select pgq_node.set_consumer_paused('q', 'leaf_worker', true)")
    wait_until(lambda: leaf.state["uptodate"])
    before = leaf.state["last_tick_id"]
    tick = ops.insert_ticked(root.conn, "q", "x")
    branch.has(tick)
    assert leaf.state["last_tick_id"] == before
    leaf.conn.execute("select pgq_node.register_location('q', 'branch', 'dbname=none', false)")
    leaf.conn.execute("select pgq_node.set_consumer_paused('q', 'leaf_worker', false)")
    wait_until(lambda: "ConnectionFailed" in (leaf.state["cur_error"] or ""))
    leaf.conn.execute("select pgq_node.register_location('q', 'branch', %s, false)", [branch.dsn])
    wait_until(lambda: leaf.state["last_tick_id"] == tick and leaf.state["cur_error"] is None)


def test_rotation_of_the_root_waits_for_a_leaf_that_is_gone_until_it_is_dropped(
    root: Node, branch: Node, add_node: AddNode
) -> None:
    add_node("gone", branch, "leaf")
    ops.rotate_whenever_asked(root.conn, "q")

    def turn() -> bool:
        """Whether the root rotates, after all workers that are there have told what they need."""
        for _ in range(3):
            ops.insert_ticked(root.conn, "q", "x")
            root.catch_up()
            ops.tick(root.conn, "q")
            branch.catch_up()
        return ops.rotate(root.conn, "q")

    turns = [turn() for _ in range(4)]
    assert not any(turns[1:])
    branch.conn.execute("select pgq_node.unregister_subscriber('q', 'gone')")
    assert any(turn() for _ in range(4))


@pytest.mark.parametrize("moves", ["position", "watermark"])
def test_a_node_that_moves_on_while_it_is_unsubscribed_leaves_no_position(
    root: Node, branch: Node, moves: str
) -> None:
    branch.catch_up()
    tick = ops.insert_ticked(root.conn, "q", "x")
    report = f"select pgq_node.set_subscriber_watermark('q', 'branch', {tick})"
    waits = "select exists (select from pg_stat_activity where %s = any(pg_blocking_pids(pid)))"
    with ThreadPoolExecutor() as pool, psycopg.connect(root.dsn) as leaving:
        leaving.execute("select pgq_node.unregister_subscriber('q', 'branch')")
        call = pool.submit(
            *((branch.worker.run_once,) if moves == "position" else (root.conn.execute, report))
        )
        wait_until(lambda: ops.value(branch.conn, waits, leaving.info.backend_pid))
        leaving.commit()
        call.result()
    left = "select array_agg(consumer_name) from pgq.get_consumer_info('q')"
    assert ops.value(root.conn, left) == [".global_watermark"]


def test_a_worker_that_is_paused_while_it_looks_copies_nothing_once_it_has_noticed(
    root: Node, branch: Node, before: Before
) -> None:
    branch.catch_up()
    ticks = branch.ticks()
    set_paused = "select pgq_node.set_consumer_paused('q', 'branch_worker', %s)"
    branch.conn.execute("select pgq_node.set_consumer_uptodate('q', 'branch_worker', false)")
    before(statements.UPTODATE, lambda: branch.conn.execute(set_paused, [True]))
    ops.insert_ticked(root.conn, "q", "x")
    branch.worker.run_once()
    assert branch.state["uptodate"]
    assert branch.ticks() == ticks
    branch.conn.execute(set_paused, [False])
    branch.catch_up()
    assert branch.ticks() == root.ticks()


def test_a_provider_of_another_history_or_one_that_is_behind_is_refused(
    root: Node, branch: Node, add_node: AddNode
) -> None:
    other = add_node("other", root)
    for data in "abc":
        ops.insert_ticked(root.conn, "q", data)
    branch.catch_up()
    branch.conn.execute("select pgq_node.change_consumer_provider('q', 'branch_worker', 'other')")
    with pytest.raises(errors.TargetAhead, match="up to tick 5, its provider other up to"):
        branch.worker.run_once()
    # A root of its own.
    other.catch_up()
    other.conn.execute(
        "update pgq.tick set tick_time = tick_time - interval '1 s' where tick_id = 5"
    )
    with pytest.raises(errors.ForeignTick, match=re.escape("tick 5 of queue q")):
        branch.worker.run_once()
    assert branch.batches() == root.batches()


@pytest.mark.parametrize(
    ("location", "refused"),
    [
        ("host=good hostaddr=::1", "hostaddr"),
        ("postgresql://good/?%70assfile=/root/.pgpass", "passfile"),
        ("service=good host=bad", "host beside service"),
    ],
)
def test_a_location_that_leads_passwords_astray_is_not_connected_to(
    root: Node, branch: Node, location: str, refused: str
) -> None:
    change = "update pgq_node.node_location set node_location = %s where node_name = 'root'"
    branch.conn.execute(change, [location])
    with pytest.raises(errors.CascadeError, match=f"may not set {refused}"):
        branch.worker.run_once()
    assert refused in branch.state["cur_error"]
    with Nodes("q", branch.dsn) as nodes:
        assert f"may not set {refused}" in str(nodes.look()["root"])


def test_no_function_of_others_is_called_at_a_location(
    root: Node, branch: Node, empty_dsn: str, connect: Connect
) -> None:
    """Administrators of other nodes choose it, and the program may have more rights than they."""
    trap = connect(empty_dsn)
    trap.execute("create role test_planter; create sequence ran")
    trap.execute("grant all on sequence ran to public; grant create on schema public to public")
    try:
        for schema in ("pgq", "pgq_node"):
            trap.execute(f"create schema {schema} authorization test_planter".encode())
        trap.execute("set role test_planter")
        trap.execute(TRAP.encode())
        trap.execute("reset role")
        registered, new = Registered(branch.dsn), Registered(branch.dsn, consumer="new")
        registered.register()
        locate(branch, Node("root", empty_dsn))
        for call in (branch.worker.run_once, registered.run_once, new.register):
            with pytest.raises(PgqError, match=r"schema pgq.* belongs to role test_planter"):
                call()
        with Nodes("q", branch.dsn) as nodes:
            assert "belongs to role test_planter" in str(nodes.look()["root"])
        assert ops.value(trap, "select last_value from ran") == 1
    finally:
        trap.execute("reset role; drop owned by test_planter cascade; drop role test_planter")


def test_a_worker_uses_no_operator_of_others_at_any_node(root: Node, branch: Node) -> None:
    """The owner of a database decides its search_path."""
    for node in (root, branch):
        node.conn.execute(OPERATOR)
    ops.insert_ticked(root.conn, "q", "event")
    branch.catch_up()
    assert branch.batches() == root.batches()
    for node in (root, branch):
        assert ops.value(node.conn, "select last_value from ran") == 1


def test_a_root_that_was_taken_over_is_refused(root: Node, branch: Node, add_node: AddNode) -> None:
    other = add_node("other", root)
    for node in (branch, other):
        node.catch_up()
    other.conn.execute("select pgq_node.promote_branch('q')")
    epoch = ops.value(other.conn, "select epoch from pgq_node.get_epoch('q')")
    branch.conn.execute("select pgq_node.learn_epoch('q', %s)", [epoch])
    ops.insert_ticked(root.conn, "q", "of the old root")
    with pytest.raises(PgqError, match="provider root is an old root"):
        branch.worker.run_once()
    assert "old root" in branch.state["cur_error"]


@pytest.mark.parametrize("garbage", ["", "\u20ac", "9" * 30])
def test_a_producer_can_forge_no_news_of_the_nodes(
    root: Node, branch: Node, add_node: AddNode, garbage: str
) -> None:
    other = add_node("other", branch, "leaf")
    branch.catch_up()
    places = "select * from pgq_node.get_queue_locations('q')"
    known = branch.conn.execute(places).fetchall()
    watermark = "select global_watermark, node_name from pgq_node.get_node_info('q')"
    before = branch.conn.execute(watermark).fetchall()
    for event in (
        ("pgq.location-info", "root", "q", "host=192.0.2.1", "false", "999999999999999"),
        ("pgq.location-info", "new", "q", "host=192.0.2.1", garbage, garbage),
        ("pgq.unregister-location", "other", "q", None, None, None),
        ("pgq.unregister-location", garbage, "q", None, None, None),
        ("pgq.global-watermark", "2", "q", None, None, None),
        ("pgq.global-watermark", garbage, garbage, None, None, None),
        ("pgq.tick-id", garbage, "q", None, None, None),
        ("pgq.tick-id", "9", "q", None, None, None),
        ("pgq.location-info", None, None, None, None, None),
    ):
        root.conn.execute("select pgq.insert_event('q', %s, %s, %s, %s, %s, %s)", event)
    ops.tick(root.conn, "q")
    for node in (branch, other):
        node.catch_up()
        assert node.conn.execute(places).fetchall() == known
        assert ops.value(node.conn, "select epoch from pgq_node.get_epoch('q')") == 0
    assert branch.conn.execute(watermark).fetchall() == before
    assert branch.batches() == root.batches()
    # What the root's functions publish is heeded.
    root.conn.execute("select pgq_node.register_location('q', 'new', 'dbname=new', false)")
    root.conn.execute("select pgq_node.register_location('q', 'root', null, true)")
    ops.tick(root.conn, "q")
    branch.catch_up()
    assert branch.conn.execute(places).fetchall() == root.conn.execute(places).fetchall()
    # And that among more than a worker keeps.
    root.conn.execute(
        "select pgq.insert_event('q', 'pgq.location-info', n::text, 'q', null, null, null)"
        " from generate_series(1, 1100) n"
    )
    root.conn.execute("select pgq_node.unregister_location('q', 'new')")
    ops.tick(root.conn, "q")
    branch.catch_up()
    assert branch.conn.execute(places).fetchall() == root.conn.execute(places).fetchall()
