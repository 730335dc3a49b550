"""Consumer groups: the SQL functions, and the invariants in sql/pgq/groups/tables.sql."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Calls, Connect, Connection, with_snapshot
from tests.fixtures.fix_ticker import eventually

GROUP = "g"
AGES = "1 day"


class Batch(NamedTuple):
    partition: int
    generation: int
    id: int
    sql: str


def create(conn: Connection, queue: str, partitions: int = 4, key: str = "ev_extra1") -> None:
    assert ops.value(conn, "select pgq.create_group(%s, %s, %s, %s)", queue, GROUP, partitions, key)


def join(conn: Connection, queue: str, name: str = "w") -> int:
    member: int = ops.value(
        conn, "select member_id from pgq.join_group(%s, %s, %s)", queue, GROUP, name
    )
    return member


def take(conn: Connection, member: int, *, after: int = -1, parked: bool = True) -> Batch | None:
    """The member's next batch; not before its parked keys are looked at, if any is due."""
    row = conn.execute(
        "select partition, generation, batch_id, batch_sql"
        " from pgq.next_group_batch(%s, 1000, i_parked => %s, i_after => %s)",
        [member, parked, after],
    ).fetchone()
    assert row is not None
    return None if row[2] is None else Batch(*row)


def must_take(conn: Connection, member: int, *, parked: bool = True) -> Batch:
    batch = take(conn, member, parked=parked)
    assert batch is not None
    return batch


def read(conn: Connection, batch: Batch) -> list[tuple[str | None, str | None]]:
    """(key, data) of its events."""
    return [(row[6], row[5]) for row in conn.execute(batch.sql.encode()).fetchall()]


def finish(conn: Connection, batch: Batch) -> int:
    parked: int = ops.value(
        conn, "select pgq.finish_group_batch(%s, %s)", batch.id, batch.generation
    )
    return parked


def fail(conn: Connection, batch: Batch, event: int) -> int:
    """Finish it, but for an event that failed."""
    parked: int = ops.value(
        conn,
        "select pgq.finish_group_batch(%s, %s, array[%s], array['bad'], array['0 s'::interval])",
        batch.id,
        batch.generation,
        event,
    )
    return parked


def drain(conn: Connection, member: int) -> dict[int, list[tuple[str | None, str | None]]]:
    """All that there is for a member, by partition."""
    found: dict[int, list[tuple[str | None, str | None]]] = defaultdict(list)
    while (batch := take(conn, member)) is not None:
        found[batch.partition] += read(conn, batch)
        finish(conn, batch)
    return dict(found)


def insert(conn: Connection, queue: str, key: str | None, data: str = "") -> int:
    ev_id: int = ops.value(
        conn, "select pgq.insert_event(%s, 't', %s, %s, null, null, null)", queue, data, key
    )
    return ev_id


def fill(conn: Connection, queue: str, *keys: str | None, data: str = "") -> list[int]:
    """Events with these keys, and a tick; returns their ids."""
    ids = [insert(conn, queue, key, data) for key in keys]
    ops.tick(conn, queue)
    return ids


def beat(conn: Connection, member: int) -> bool:
    alive: bool = ops.value(conn, "select pgq.group_heartbeat(%s)", member)
    return alive


def owned(conn: Connection, member: int) -> list[int]:
    return [
        number
        for (number,) in conn.execute(
            "select part_nr from pgq.group_partition where part_member = %s order by 1", [member]
        )
    ]


def silence(conn: Connection, member: int, ages: str = AGES) -> None:
    """The member gave its last sign of life a day ago."""
    conn.execute(
        "select pgq._append_position(-%s, (pgq._get_position(-%s)).pos_nr + 1, null, null, null,"
        " now() - %s::interval)",
        [member, member, ages],
    )


def one_batch(conn: Connection, queue: str, partitions: int = 1) -> tuple[int, Batch]:
    """A group, and a member of it that has taken the batch of an event with key "a"."""
    create(conn, queue, partitions)
    fill(conn, queue, "a")
    member = join(conn, queue)
    return member, must_take(conn, member)


def resize(conn: Connection, queue: str, partitions: int) -> int | None:
    """The tick at which the partitions will meet, unless they stand on one already."""
    tick: int | None = ops.value(
        conn, "select pgq.resize_group(%s, %s, %s)", queue, GROUP, partitions
    )
    return tick


def partitions_now(conn: Connection) -> int:
    number: int = ops.value(conn, "select partitions from pgq.get_group_info()")
    return number


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


def test_resizing_waits_until_all_stand_on_one_tick(conn: Connection, queue: str) -> None:
    create(conn, queue, 2)
    keys = [f"k{number}" for number in range(20)]
    fill(conn, queue, *keys)
    member = join(conn, queue)
    batch = must_take(conn, member)
    first = read(conn, batch)
    assert resize(conn, queue, 5) is not None
    fill(conn, queue, *keys, data="later")
    finish(conn, batch)
    other = must_take(conn, member)
    assert other.partition != batch.partition
    # Not beyond the tick.
    assert sorted(first + read(conn, other)) == sorted((key, "") for key in keys)
    finish(conn, other)
    found = drain(conn, member)
    assert len(found) > 2
    assert sorted(chain(*found.values())) == sorted((key, "later") for key in keys)
    assert partitions_now(conn) == 5


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


def test_resizing_and_parking_a_key_do_not_wait_for_each_other(
    connect: Connect, conn: Connection, queue: str, calls: Calls
) -> None:
    _, batch = one_batch(conn, queue)
    worker = connect(autocommit=False)
    # As pgq.finish_group_batch() begins, which parks the key then.
    worker.execute("select pgq._lock_position(part_reg) from pgq.group_partition")
    resized = calls.blocked(resize, connect(), queue, 3)
    assert fail(worker, batch, 1) == 1
    worker.commit()
    assert resized.result() is None


def test_two_resizes_wait_in_no_circle(connect: Connect, conn: Connection, queue: str) -> None:
    worker, admin = connect(), connect(autocommit=False)
    member, batch = one_batch(worker, queue)
    assert resize(conn, queue, 2) is not None
    finish(worker, batch)
    # As pgq.resize_group() begins. The positions are next, which must not be the worker's by then.
    admin.execute("select from pgq.consumer_group for no key update")
    worker.execute("set lock_timeout = '5 s'")
    assert beat(worker, member)
    assert take(worker, member) is None
    assert resize(admin, queue, 3) is None
    admin.commit()
    assert partitions_now(conn) == 3


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


def test_signs_of_life_resize_a_group_whose_workers_ask_under_old_snapshots(
    conn: Connection, connect: Connect, queue: str
) -> None:
    member, batch = one_batch(conn, queue)
    worker = connect()
    worker.execute("set default_transaction_isolation = 'repeatable read'")
    assert must_take(worker, member) == batch
    assert resize(conn, queue, 2) is not None
    finish(worker, batch)
    fill(conn, queue, "a")
    assert take(worker, member) is None
    assert beat(conn, member)
    assert partitions_now(conn) == 2
    assert drain(worker, member) != {}


def test_an_old_snapshot_does_not_go_beyond_the_tick_where_partitions_are_to_meet(
    conn: Connection, connect: Connect, queue: str
) -> None:
    create(conn, queue, 2)
    keys = {ops.value(conn, "select pgq.key_partition(%s, 2)", f"k{n}"): f"k{n}" for n in range(9)}
    fill(conn, queue, keys[0])
    member = join(conn, queue)
    first = must_take(conn, member)
    fill(conn, queue, keys[1], data="beyond")
    old = with_snapshot(connect)
    assert resize(conn, queue, 3) is not None
    with pytest.raises(errors.SerializationFailure):
        take(old, member, after=first.partition)
    old.rollback()
    finish(conn, first)
    assert take(conn, member) is None, "the other one gets there"
    assert list(chain(*drain(conn, member).values())) == [(keys[1], "beyond")]
    assert partitions_now(conn) == 3


def test_a_consumer_with_the_name_of_a_new_partition_stops_the_resizing_and_no_worker(
    conn: Connection, queue: str
) -> None:
    member, batch = one_batch(conn, queue, 2)
    unregister = "select pgq.unregister_consumer(%s, %s)"
    ops.register(conn, queue, f"{GROUP}#3")
    with ops.refused("PQ038"):
        resize(conn, queue, 4)
    conn.execute(unregister, [queue, f"{GROUP}#3"])
    assert resize(conn, queue, 4) is not None
    # And if it comes while the partitions are on their way.
    ops.register(conn, queue, f"{GROUP}#3")
    finish(conn, batch)
    assert drain(conn, member) == {}
    assert beat(conn, member)
    assert partitions_now(conn) == 2
    conn.execute(unregister, [queue, f"{GROUP}#3"])
    assert beat(conn, member)
    assert partitions_now(conn) == 4


def test_resizing_can_be_called_off(conn: Connection, queue: str) -> None:
    member, batch = one_batch(conn, queue, 2)
    assert resize(conn, queue, 5)
    assert resize(conn, queue, 2) is None
    finish(conn, batch)
    drain(conn, member)
    assert partitions_now(conn) == 2


@pytest.mark.parametrize("opened", [False, True], ids=["no batch", "a batch is open"])
def test_a_worker_that_had_read_the_group_before_it_was_resized_takes_no_wrong_keys(
    connect: Connect, conn: Connection, queue: str, calls: Calls, opened: bool
) -> None:
    worker, admin = connect(), connect(autocommit=False)
    create(conn, queue, 2)
    member = join(conn, queue)
    assert take(worker, member) is None
    assert resize(conn, queue, 3) is None
    fill(conn, queue, *"abcdefghij")
    # The worker knows of 3 partitions when it waits for the queue, which is read next.
    admin.execute("lock table pgq.queue")
    taking = calls.blocked(take, worker, member)
    assert resize(admin, queue, 7) is None
    if opened:
        must_take(admin, member)
    admin.commit()
    found = []
    if (batch := taking.result()) is not None:
        found = read(conn, batch)
        finish(conn, batch)
    for events in drain(worker, member).values():
        found += events
    assert sorted(key for key, _ in found if key) == [*"abcdefghij"]


def test_a_group_that_is_up_to_date_is_resized_at_once(conn: Connection, queue: str) -> None:
    create(conn, queue, 2)
    member = join(conn, queue)
    take(conn, member)
    assert resize(conn, queue, 3) is None
    assert owned(conn, member) == []
    fill(conn, queue, "a")
    assert len(drain(conn, member)) == 1
    assert owned(conn, member) == [0, 1, 2]
    assert resize(conn, queue, 1) is None
    assert ops.value(conn, "select count(*) from pgq.subscription") == 1


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
