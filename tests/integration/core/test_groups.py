"""Consumer groups: the SQL functions, and the invariants in sql/pgq/groups/tables.sql."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection
from tests.fixtures.fix_ticker import eventually
from tests.fixtures.group_ops import (
    AGES,
    GROUP,
    beat,
    create,
    drain,
    fail,
    fill,
    finish,
    insert,
    join,
    must_take,
    one_batch,
    owned,
    read,
    resize,
    silence,
    take,
)


def open_parked(conn: Connection, member: int) -> tuple[int, int, list[int]]:
    """(parked_id, generation, pe_ids) of the key that is due."""
    [row] = conn.execute(
        "select parked_id, generation, pe_ids from pgq.open_parked(%s)", [member]
    ).fetchall()
    return row


FINISH_PARKED = "select pgq.finish_parked(%s, %s, %s)"
GIVE_UP = "select pgq.give_up_parked(%s, %s, 'a')"


def test_events_of_a_key_are_in_one_partition(conn: Connection, queue: str) -> None:
    create(conn, queue)
    for number in range(10):
        fill(conn, queue, *(f"k{customer}" for customer in range(20)), data=str(number))
    found = drain(conn, join(conn, queue))
    assert sorted(found) == [0, 1, 2, 3]
    assert sum(map(len, found.values())) == 200
    for partition, events in found.items():
        for key in {key for key, _ in events}:
            numbers = [data for other, data in events if other == key]
            assert numbers == [str(number) for number in range(10)]
            assert ops.value(conn, "select pgq.key_partition(%s, 4)", key) == partition


def test_keys_stay_in_their_partition_in_any_version(conn: Connection) -> None:
    keys = ["", "a", "customer 17", "ключ"]
    partitions = [ops.value(conn, "select pgq.key_partition(%s, 1024)", key) for key in keys]
    assert partitions == [621, 177, 769, 384]


@pytest.mark.parametrize(
    ("key", "same"),
    [
        ("ev_extra1", False),
        ("ev_data::jsonb ->> 'customer'", True),
        ("lower(ev_extra2)", True),
        ("(ev_data::jsonb ->> 'number')::int % 2 || ''", True),
    ],
)
def test_an_event_without_key_is_alone(conn: Connection, queue: str, key: str, same: bool) -> None:
    create(conn, queue, 64, key)
    payloads = ['{"customer": "c", "number": 3}'] * 20 + ["no json", '{"number": "x"}'] * 20
    conn.execute(
        "select pgq.insert_event(%s, 't', d, null, 'X', null, null) from unnest(%s::text[]) d",
        [queue, payloads],
    )
    ops.tick(conn, queue)
    found = drain(conn, join(conn, queue))
    assert sum(map(len, found.values())) == 60
    with_key = [n for n, events in found.items() if any(data == payloads[0] for _, data in events)]
    assert (len(with_key) == 1) == same


def test_the_key_of_captured_rows_is_their_primary_key(conn: Connection, queue: str) -> None:
    conn.execute("create table item (shop int, id text, n int, primary key (shop, id))")
    conn.execute("select pgq.capture_table('item', %s)", [queue])
    create(conn, queue, 16, "pkey")
    for number in range(3):
        conn.execute(
            "insert into item select s, 'i&' || i, %s"
            " from generate_series(1, 5) s, generate_series(1, 5) i"
            " on conflict (shop, id) do update set n = excluded.n",
            [number],
        )
        ops.tick(conn, queue)
    conn.execute("delete from item where shop = 3")
    ops.tick(conn, queue)
    member = join(conn, queue)
    rows: dict[tuple[Any, Any], set[int]] = defaultdict(set)
    while (batch := take(conn, member)) is not None:
        for row in conn.execute(
            "select e.ev_data::json ->> 'shop', e.ev_data::json ->> 'id'"
            f" from ({batch.sql}) e".encode()
        ).fetchall():
            rows[row[0], row[1]].add(batch.partition)
        finish(conn, batch)
    assert len(rows) == 25
    assert all(len(partitions) == 1 for partitions in rows.values())
    assert len(set.union(*rows.values())) > 8


def test_the_key_of_pgqs_triggers_is_the_primary_key(conn: Connection, queue: str) -> None:
    for function in ("logutriga", "jsontriga"):
        conn.execute("drop table if exists item; create table item (id int primary key, n int)")
        conn.execute(
            "create trigger item after insert or update or delete on item"
            f" for each row execute function pgq.{function}('{queue}')".encode()
        )
        conn.execute("insert into item select n, n from generate_series(1, 3) n")
        conn.execute("update item set n = n + 1")
        conn.execute("delete from item")
    keys = conn.execute(
        "select ev_type like '{%', pgq.event_pkey(ev_type, ev_data), count(*)"
        " from pgq.event_template group by 1, 2"
    ).fetchall()
    assert len(keys) == 6
    assert {count for *_, count in keys} == {3}


NO_KEYS = [
    "now()::text",
    "random()::text",
    "ev_time::text",
    "count(*)",
    "unnest(array[ev_data])",
    "(select ev_data)",
    "ev_data) from pgq.queue; drop schema pgq cascade; --",
    "ev_data), (ev_extra1",
    "ev_data)::text)); select setval('public.touched', 99); --",
    "public.harmless(ev_data)",
    "ev_data::public.mine",
    "ev_data operator(public.+) ev_data",
    "pg_temp.f(ev_data)",
    "",
    None,
]


def test_a_key_is_one_immutable_expression_of_postgresqls_own(
    conn: Connection, queue: str, subtests: pytest.Subtests
) -> None:
    conn.execute(
        "create sequence public.touched; grant all on public.touched to public;"
        "create function public.harmless(text) returns text immutable return $1;"
        "create domain public.mine as text;"
        "create function public.plus(text, text) returns text immutable return $1;"
        "create operator public.+ (function = public.plus, leftarg = text, rightarg = text)"
    )
    for key in NO_KEYS:
        with subtests.test(key):
            with ops.refused("PQ011"):
                conn.execute("select pgq.create_group(%s, %s, 4, %s)", [queue, GROUP, key])
            assert conn.execute("select from pgq.group_partition").fetchall() == []
            assert ops.value(conn, "select last_value from public.touched") == 1


def test_names_in_a_key_keep_their_meaning(conn: Connection, queue: str) -> None:
    create(conn, queue, 4, "ev_extra1 || 1")
    conn.execute(
        "create table called (); create schema evil;"
        "create function evil.concatenate(text, int) returns text language plpgsql immutable as"
        " $$ begin drop table called; return ''; end $$;"
        "create operator evil.|| (function = evil.concatenate, leftarg = text, rightarg = int)"
    )
    conn.execute("set search_path = evil, pg_catalog")
    fill(conn, queue, "a")
    assert sum(map(len, drain(conn, join(conn, queue)).values())) == 1
    assert ops.value(conn, "select pg_catalog.to_regclass('public.called') is not null")


def test_nonsense_and_what_is_not_there_are_refused(conn: Connection, queue: str) -> None:
    for partitions, lease, limit in (
        *((partitions, "1 s", 1) for partitions in (0, 1025, None)),
        (1, "0 s", 1),
        (1, "-71582788 months 2147483641 days", 1),
        (1, "1 s", -1),
    ):
        with ops.refused("PQ011"):
            conn.execute(
                "select pgq.create_group(%s, %s, %s, 'ev_data', %s, %s)",
                [queue, GROUP, partitions, lease, limit],
            )
    create(conn, queue)
    for sqlstate, call in (
        ("PQ001", "pgq.create_group('nowhere', 'g', 4, 'ev_data')"),
        ("PQ036", f"pgq.join_group('{queue}', 'unknown', 'w')"),
        ("PQ035", "pgq.next_group_batch(4711, 1000)"),
        ("PQ035", "pgq.finish_group_batch(4711, 1)"),
        ("PQ011", f"pgq.set_group_config('{queue}', 'g', 'color', 'red')"),
    ):
        with ops.refused(sqlstate):
            conn.execute(f"select {call}".encode())
    assert beat(conn, 4711) is False


def test_a_retry_that_would_never_come_is_refused(conn: Connection, queue: str) -> None:
    member, batch = one_batch(conn, queue)
    event = conn.execute(batch.sql.encode()).fetchall()[0][0]
    late = "array['bad'], array['9000 years'::interval])"
    finish_batch = f"select pgq.finish_group_batch(%s, %s, array[%s], {late}"
    with ops.refused("PQ050"):
        conn.execute(finish_batch, [batch.id, batch.generation, event])
    fail(conn, must_take(conn, member), event)
    parked, generation, _ = open_parked(conn, member)
    finish_one = f"{FINISH_PARKED[:-1]}, true, 'bad', '9000 years')"
    with ops.refused("PQ050"):
        conn.execute(finish_one, [parked, generation, []])
    assert ops.value(conn, "select parked_next < now() + '1 day' from pgq.parked_key")


def test_no_failure_is_lost_because_its_event_is_null(conn: Connection, queue: str) -> None:
    member, batch = one_batch(conn, queue)
    for events in ("null", "'{}'", "array[null::bigint]"):
        with ops.refused("PQ011"):
            conn.execute(
                f"select pgq.finish_group_batch(%s, %s, {events}, '{{bad}}', '{{1 s}}')".encode(),
                [batch.id, batch.generation],
            )
    assert must_take(conn, member) == batch


def test_the_same_batch_comes_again_until_it_is_finished(conn: Connection, queue: str) -> None:
    member, batch = one_batch(conn, queue)
    assert must_take(conn, member) == batch
    finish(conn, batch)
    assert take(conn, member) is None


def test_an_owner_that_lost_its_partition_cannot_finish(conn: Connection, queue: str) -> None:
    first, batch = one_batch(conn, queue)
    second = join(conn, queue)
    silence(conn, first)
    assert beat(conn, second)
    again = must_take(conn, second)
    assert (again.partition, again.id) == (batch.partition, batch.id)
    assert again.generation > batch.generation
    with ops.refused("PQ035"):
        finish(conn, batch)
    finish(conn, again)
    with ops.refused("PQ035"):
        finish(conn, again)
    with ops.refused("PQ035"):
        take(conn, first)
    assert beat(conn, first) is False


def test_nor_can_it_with_any_snapshot(conn: Connection, queue: str, connect: Connect) -> None:
    member, batch = one_batch(conn, queue)
    for level in IsolationLevel:
        other = connect(level=level)
        read(other, batch)
        conn.execute("select pgq.leave_group(%s)", [member])
        member = join(conn, queue)
        again = must_take(conn, member)
        with pytest.raises(errors.Error) as raised:
            finish(other, batch)
        assert raised.value.sqlstate in ("PQ035", "40001")
        other.rollback()
        finish(conn, again)
        fill(conn, queue, "a")
        batch = must_take(conn, member)


def test_while_a_batch_is_being_finished_its_partition_is_not_handed_on(
    conn: Connection, queue: str, connect: Connect
) -> None:
    first, batch = one_batch(conn, queue)
    finishing = connect(autocommit=False)
    finish(finishing, batch)
    silence(conn, first)
    second = join(conn, queue)
    assert beat(conn, second)
    assert owned(conn, first) == [0]
    finishing.commit()
    assert beat(conn, second)
    assert owned(conn, first) == []
    assert take(conn, second) is None
    assert owned(conn, second) == [0]


def test_partitions_are_shared_out_evenly(conn: Connection, queue: str) -> None:
    create(conn, queue, 8)
    members: list[int] = []
    for count, shares in [(1, [8]), (2, [4, 4]), (3, [2, 3, 3]), (5, [1, 1, 2, 2, 2])]:
        members += [join(conn, queue) for _ in range(count - len(members))]
        for _ in range(2):
            for member in members:
                take(conn, member)
        assert sorted(len(owned(conn, member)) for member in members) == shares
    before = [owned(conn, member) for member in members]
    for member in members:
        take(conn, member)
    assert [owned(conn, member) for member in members] == before
    # Little moves: a worker that stays keeps its partitions.
    conn.execute("select pgq.leave_group(%s)", [members[0]])
    for _ in range(2):
        for member in members[1:]:
            take(conn, member)
    after = [owned(conn, member) for member in members[1:]]
    assert sum(map(len, after)) == 8
    assert all(set(b) <= set(a) for a, b in zip(after, before[1:], strict=True))


@pytest.mark.parametrize("ages", [AGES, "-1 day"], ids=["", "and the clock went back"])
def test_a_member_that_is_silent_for_a_lease_is_buried_and_no_other(
    conn: Connection, queue: str, ages: str
) -> None:
    create(conn, queue)
    alive, dead, other = (join(conn, queue, name) for name in ("alive", "dead", "other"))
    for _ in range(2):
        for member in (alive, dead, other):
            take(conn, member)
    silence(conn, dead, ages)
    assert beat(conn, alive)
    assert beat(conn, other)
    take(conn, alive), take(conn, other)
    assert len(owned(conn, alive)) == len(owned(conn, other)) == 2
    names = conn.execute("select member_name from pgq.group_member order by 1").fetchall()
    assert names == [("alive",), ("other",)]


def test_a_partition_is_not_left_with_a_worker_that_has_gone(conn: Connection, queue: str) -> None:
    create(conn, queue)
    gone = join(conn, queue)
    conn.execute("select pgq.leave_group(%s)", [gone])
    # The result of taking and leaving at the same moment.
    conn.execute("update pgq.group_partition set part_member = %s", [gone])
    member = join(conn, queue)
    take(conn, member)
    assert owned(conn, member) == [0, 1, 2, 3]


def test_heartbeats_survive_the_rotation_of_the_log(conn: Connection, queue: str) -> None:
    create(conn, queue)
    first, second = join(conn, queue), join(conn, queue)
    for _ in range(3):
        ops.rotate_logs(conn)
    assert beat(conn, first)
    assert beat(conn, second)
    assert ops.value(conn, "select count(*) from pgq.group_member") == 2


def test_while_all_goes_well_no_row_dies(conn: Connection, queue: str) -> None:
    create(conn, queue, 2)
    ops.register(conn, queue, "keeps up")
    members = [join(conn, queue) for _ in range(3)]

    def work(cycles: int) -> int:
        for number in range(cycles):
            insert(conn, queue, f"k{number}")
            ops.deliver(conn, queue, "keeps up")
            for member in members:
                drain(conn, member)
                assert beat(conn, member)
        conn.execute("select pg_stat_force_next_flush()")
        died: int = ops.value(
            conn,
            "select sum(n_tup_upd + n_tup_del)::int from pg_stat_user_tables"
            " where schemaname = 'pgq'",
        )
        return died

    before = work(2)
    assert work(20) == before


def test_rotation_waits_for_the_slowest_partition(conn: Connection, queue: str) -> None:
    ops.rotate_whenever_asked(conn, queue)
    create(conn, queue, 3)
    keys = [f"k{number}" for number in range(30)]
    fill(conn, queue, *keys)
    member = join(conn, queue)
    batch = must_take(conn, member)
    finish(conn, batch)
    for _ in range(4):
        ops.tick(conn, queue)
        ops.rotate(conn, queue)
    rest = drain(conn, member)
    assert len(rest) == 2
    done = ops.value(
        conn,
        "select count(*) from unnest(%s::text[]) k where pgq.key_partition(k, 3) = %s",
        keys,
        batch.partition,
    )
    assert done + sum(map(len, rest.values())) == len(keys)
    for _ in range(3):
        ops.tick(conn, queue)
        drain(conn, member)
        assert ops.rotate(conn, queue)


def test_a_partition_is_not_unregistered_alone(conn: Connection, queue: str) -> None:
    create(conn, queue)
    with ops.refused("PQ038"):
        conn.execute("select pgq.unregister_consumer(%s, %s)", [queue, f"{GROUP}#1"])
    assert ops.value(conn, "select count(*) from pgq.subscription") == 4
    with ops.refused("PQ007"):
        conn.execute("select pgq.drop_queue(%s)", [queue])


def test_a_dropped_queue_takes_its_groups_along(conn: Connection, queue: str) -> None:
    create(conn, queue, 4, "lower(ev_data)")
    join(conn, queue)
    conn.execute("select pgq.drop_queue(%s, true)", [queue])
    tables = ("consumer_group", "group_member", "group_partition", "registration", "consumer")
    for table in tables:
        left = conn.execute(f"select from pgq.{table}".encode()).fetchall()
        assert left == []
    assert ops.value(conn, "select count(*) from pg_proc where proname ~ '^group_key_[0-9]'") == 0


def test_a_consumers_name_is_not_taken_by_a_partition(conn: Connection, queue: str) -> None:
    ops.register(conn, queue, f"{GROUP}#2")
    with ops.refused("PQ038"):
        create(conn, queue)
    assert ops.value(conn, "select count(*) from pgq.subscription") == 1


FOR_A_CONSUMER = [
    "pgq.next_batch(%(queue)s, %(partition)s)",
    "pgq.next_batch_info(%(queue)s, %(partition)s)",
    "pgq.next_batch_custom(%(queue)s, %(partition)s, null, null, null)",
    "pgq.next_batch_upto(%(queue)s, %(partition)s, 10)",
    "pgq.open_next_batch(%(queue)s, %(partition)s, null, null, null, 10, 10)",
    "pgq.finish_batch(%(batch)s)",
    "pgq.advance_consumer(%(queue)s, %(partition)s, %(tick)s)",
]


def test_a_plain_consumer_takes_no_partition(
    conn: Connection, connect: Connect, queue: str, subtests: pytest.Subtests
) -> None:
    """A foreign session would finish the owner's batches without seeing their parked keys."""
    member, batch = one_batch(conn, queue)
    tick = ops.value(conn, "select max(tick_id) from pgq.tick")
    names = {"queue": queue, "partition": f"{GROUP}#0", "batch": batch.id, "tick": tick}
    for level in IsolationLevel:
        stranger = connect(level=level)
        for call in FOR_A_CONSUMER:
            with subtests.test(call, level=level):
                with ops.refused("PQ038") as error, stranger.transaction(force_rollback=True):
                    stranger.execute(f"select {call}".encode(), names)
                assert "pgq.next_group_batch" in (error.value.diag.message_hint or "")
                assert must_take(conn, member) == batch
    assert read(conn, batch) == [("a", "")]
    finish(conn, batch)
    resize(conn, queue, 2)
    with ops.refused("PQ038"):
        conn.execute("select pgq.next_batch(%s, %s)", [queue, f"{GROUP}#1"])


def test_a_failed_event_parks_its_key_from_there_on(conn: Connection, queue: str) -> None:
    create(conn, queue, 1)
    ids = [insert(conn, queue, data[0], data) for data in ("a1", "a2", "b1", "a3", "b2")]
    ops.tick(conn, queue)
    member = join(conn, queue)
    assert fail(conn, must_take(conn, member), ids[1]) == 2
    last = insert(conn, queue, "a", "a4")
    insert(conn, queue, "b", "b3")
    ops.tick(conn, queue)
    # Not before the parked key is looked at: it is due.
    assert take(conn, member) is None
    later = must_take(conn, member, parked=False)
    assert read(conn, later) == [("b", "b3")]
    assert finish(conn, later) == 1
    opened = ops.value(conn, "select ev_ids from pgq.open_parked(%s)", member)
    assert opened == [ids[1], ids[3], last]


def test_a_batch_read_around_a_parked_key_goes_with_it(conn: Connection, queue: str) -> None:
    member, batch = one_batch(conn, queue)
    fail(conn, batch, 1)
    fill(conn, queue, "a", data="a2")
    batch = must_take(conn, member, parked=False)
    assert read(conn, batch) == []
    assert ops.value(conn, FINISH_PARKED, *open_parked(conn, member)) == 0
    with ops.refused("PQ035"):
        finish(conn, batch)
    assert read(conn, must_take(conn, member)) == [("a", "a2")]


def test_parked_events_that_moved_meanwhile_are_not_finished(conn: Connection, queue: str) -> None:
    create(conn, queue, 1)
    events = fill(conn, queue, *(f"k{number}" for number in range(8)))
    batch = must_take(conn, join(conn, queue))
    conn.execute(
        "select pgq.finish_group_batch(%s, %s, %s, array_fill('bad'::text, array[8]),"
        " array_fill('0 s'::interval, array[8]))",
        [batch.id, batch.generation, events],
    )
    opened = conn.execute(
        "select k.parked_id, part_generation from pgq.parked_key k, pgq.group_partition"
    ).fetchall()
    assert len(opened) == 8
    assert resize(conn, queue, 2) is None
    for parked, generation in opened:
        with ops.refused("PQ035"):
            conn.execute(FINISH_PARKED, [parked, generation, []])


def test_parked_events_that_were_given_up_are_not_done(conn: Connection, queue: str) -> None:
    """A dead letter may be replayed."""
    create(conn, queue, 1)
    bad, _ = fill(conn, queue, "a", "a")
    member = join(conn, queue)
    fail(conn, must_take(conn, member), bad)
    parked, generation, events = open_parked(conn, member)
    assert len(events) == 2
    assert ops.value(conn, GIVE_UP, queue, GROUP) == 1
    with ops.refused("PQ035"):
        conn.execute(FINISH_PARKED, [parked, generation, events])
    parked, generation, rest = open_parked(conn, member)
    assert rest == events[1:]
    assert ops.value(conn, FINISH_PARKED, parked, generation, rest) == 0


def test_any_number_of_parked_events_may_be_allowed(conn: Connection, queue: str) -> None:
    create(conn, queue, 1)
    most = "select pgq.set_group_config(%s, %s, 'park_limit', '2147483647')"
    assert ops.value(conn, most, queue, GROUP) == 1
    fill(conn, queue, "a")
    assert drain(conn, join(conn, queue)) == {0: [("a", "")]}


def test_giving_up_and_finishing_at_once_wait_for_each_other_in_no_circle(
    conn: Connection, connect: Connect, queue: str, calls: Calls
) -> None:
    member, batch = one_batch(conn, queue)
    fail(conn, batch, 1)
    # As pgq.give_up_parked() begins.
    admin = connect(autocommit=False)
    admin.execute("select from pgq.parked_key for update")
    done = calls.blocked(ops.value, connect(), FINISH_PARKED, *open_parked(conn, member))
    assert ops.value(admin, GIVE_UP, queue, GROUP) == 1
    admin.commit()
    with ops.refused("PQ035"):
        done.result()
    assert ops.value(conn, "select count(*) from pgq.dead_letter") == 1


def test_only_events_of_the_batch_can_have_failed_in_it(conn: Connection, queue: str) -> None:
    _, batch = one_batch(conn, queue)
    with ops.refused("PQ005"):
        fail(conn, batch, 1001)
    with ops.refused("PQ011"):
        conn.execute(
            "select pgq.finish_group_batch(%s, %s, array[1::bigint])", [batch.id, batch.generation]
        )


def test_a_worker_that_hangs_before_its_commit_is_buried_too(
    connect: Connect, conn: Connection, queue: str
) -> None:
    ops.value(conn, "select pgq.create_group(%s, %s, 1, 'ev_extra1', '200 ms')", queue, GROUP)
    fill(conn, queue, "a")
    hanging = connect(autocommit=False)
    finish(hanging, must_take(conn, join(conn, queue, "hangs")))
    heir = join(conn, queue, "heir")
    eventually(
        conn,
        "select pgq.group_heartbeat(%s)"
        " and not exists (select from pgq.group_member where member_name = 'hangs')",
        heir,
    )
    assert read(conn, must_take(conn, heir)) == [("a", "")]
    with pytest.raises(psycopg.Error):
        hanging.commit()


def test_a_worker_that_asks_for_a_batch_waits_for_no_partition(
    conn: Connection, connect: Connect, queue: str
) -> None:
    create(conn, queue, 2)
    member = join(conn, queue)
    assert take(conn, member) is None
    fill(conn, queue, *(f"k{number}" for number in range(20)))
    # As pgq.resize_group() begins, which then waits for what the worker may hold.
    admin = connect(autocommit=False)
    admin.execute("select pgq._lock_position(part_reg) from pgq.group_partition where part_nr = 0")
    conn.execute("set lock_timeout = '1s'")
    assert must_take(conn, member).partition == 1
    assert take(conn, member, after=1) is not None
    admin.commit()
    assert must_take(conn, member).partition == 0


@pytest.mark.parametrize(
    "late", ["pgq.resize_group('test_queue', 'g', 3)", "pgq.drop_group('test_queue', 'g')"]
)
def test_changing_a_group_that_is_being_dropped_does_not_find_it(
    connect: Connect, conn: Connection, queue: str, calls: Calls, late: str
) -> None:
    create(conn, queue, 2)
    worker = connect(autocommit=False)
    worker.execute("select pgq._lock_position(max(part_reg)) from pgq.group_partition")
    drop = "select pgq.drop_group(%s, %s)"
    dropped = calls.blocked(ops.value, connect(), drop, queue, GROUP)
    changed = calls.blocked(ops.value, connect(), f"select {late}")
    worker.commit()
    assert dropped.result() == 1
    with ops.refused("PQ036"):
        changed.result()


def test_a_group_survives_dumping_and_restoring_its_positions(conn: Connection, queue: str) -> None:
    create(conn, queue)
    fill(conn, queue, "a", data="before")
    conn.execute("select pgq.adopt_restored()")
    fill(conn, queue, "a", data="after")
    found = drain(conn, join(conn, queue))
    assert list(found.values()) == [[("a", "before"), ("a", "after")]]


def test_readers_use_groups_and_writers_do_not(conn: Connection, queue: str) -> None:
    conn.execute("set role pgq_reader")
    create(conn, queue, 2, "upper(ev_extra1)")
    member = join(conn, queue)
    conn.execute("reset role")
    (bad,) = fill(conn, queue, "a", data="1")
    conn.execute("set role pgq_reader")
    batch = must_take(conn, member)
    assert read(conn, batch) == [("a", "1")]
    assert fail(conn, batch, bad) == 1
    assert ops.value(conn, "select key from pgq.get_parked_keys(%s, %s)", queue, GROUP) == "A"
    conn.execute("select pgq.drop_group(%s, %s, true)", [queue, GROUP])
    conn.execute("set role pgq_writer")
    with pytest.raises(errors.InsufficientPrivilege):
        create(conn, queue)
