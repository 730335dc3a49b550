"""The row counter: its number is what count(*) would have said at the batch's tick."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg import IsolationLevel

from pgqpy import Admin
from pgqpy.embedded import Server
from pgqpy.errors import PermissionDenied, RowsNotCountable
from pgqpy_consumers.row_counter import RowCounter
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import (
    AsRole,
    Calls,
    Connect,
    Connection,
    MakeRole,
    create_database,
    drop_database,
)
from tests.fixtures.fix_ticker import PATIENCE, eventually

Counter = Callable[..., RowCounter]
Kill = Callable[..., None]


@pytest.fixture
def captured(conn: Connection, queue: str) -> str:
    """A captured table with three rows that were there before its capture."""
    conn.execute("create table item (id int primary key, note text)")
    conn.execute("insert into item select generate_series(1, 3)")
    conn.execute("select pgq.capture_table('item', %s)", [queue])
    return "public.item"


@pytest.fixture
def counter(dsn: str, queue: str) -> Counter:
    """``counter("public.item", ...)``: one that runs in this process."""

    def make(*tables: str) -> RowCounter:
        config = RowCounter.Config(dsn=dsn, queue=queue, tables=tables)
        return RowCounter.from_config(config)

    return make


@pytest.fixture
def each(counter: Counter, captured: str) -> RowCounter:
    """A counter of the captured table, which has counted it."""
    made = counter(captured)
    made.run(until_empty=True)
    return made


Follow = Callable[[RowCounter], None]


@pytest.fixture
def follow(tick: Tick) -> Follow:
    """``follow(each)``: it counts what is committed."""

    def tick_and_run(counter: RowCounter) -> None:
        tick()
        counter.run(until_empty=True)

    return tick_and_run


def counted(conn: Connection, table: str = "item") -> int:
    number: int = ops.value(conn, "select pgq.row_count(%s::regclass)", table)
    return number


@pytest.mark.smoke
def test_inserts_deletes_and_truncates_are_added_to_what_was_there(
    conn: Connection, each: RowCounter, follow: Follow
) -> None:
    assert counted(conn) == 3
    conn.execute("insert into item select generate_series(4, 10)")
    conn.execute("update item set note = 'x'")
    conn.execute("update item set id = -id")
    conn.execute("delete from item where id in (-1, -2)")
    follow(each)
    assert counted(conn) == 8
    conn.execute("insert into item values (99)")
    conn.execute("truncate item")
    conn.execute("insert into item values (1), (2)")
    conn.execute("delete from item where id = 1")
    follow(each)
    assert counted(conn) == 1
    conn.execute("insert into item values (5)")
    assert counted(conn) == 1, "it is the number of the last batch"
    assert ops.value(conn, "select as_of < now() from pgq.row_counts")


def test_what_the_first_count_has_seen_is_not_added_and_what_it_has_not_is(
    conn: Connection, connect: Connect, captured: str, counter: Counter, tick: Tick, follow: Follow
) -> None:
    each = counter(captured)
    each.register()
    conn.execute("insert into item values (10)")  # its event comes, and is in the count
    early = connect(autocommit=False)
    early.execute("insert into item values (11), (12)")  # begun before the count, ends after it
    tick()
    conn.execute("insert into item values (13)")
    with connect() as other:
        each.start_counts(other)
    assert counted(conn) == 5
    conn.execute("delete from item where id = 13")
    tick()
    early.commit()
    follow(each)
    assert counted(conn) == 6 == ops.value(conn, "select count(*) from item")


def test_a_table_that_is_named_later_joins_in_the_middle_of_the_stream(
    conn: Connection, queue: str, captured: str, counter: Counter, tick: Tick
) -> None:
    counter(captured).run(until_empty=True)
    conn.execute('create schema "Odd"')
    conn.execute('create table "Odd"."a ""b""" (id int primary key)')
    conn.execute("select pgq.capture_table(%s, %s)", ['"Odd"."a ""b"""', queue])
    conn.execute('insert into "Odd"."a ""b""" values (1), (2)')
    conn.execute("insert into item values (4)")
    tick()
    both = counter(captured, '"Odd"."a ""b"""')
    # Not by run(): the count happens in the batch.
    assert both.run_once()
    assert (counted(conn), counted(conn, '"Odd"."a ""b"""')) == (4, 2)
    conn.execute('delete from "Odd"."a ""b""" where id = 1')
    tick()
    both.run(until_empty=True)
    assert (counted(conn), counted(conn, '"Odd"."a ""b"""')) == (4, 1)


def test_all_formats_of_captured_changes_are_counted(
    conn: Connection, queue: str, captured: str, counter: Counter, follow: Follow
) -> None:
    for number, format_ in enumerate(("row_json", "jsontriga", "logutriga"), 1):
        conn.execute(
            "select pgq.capture_table('item', %s, format => %s, replace => true)", [queue, format_]
        )
        each = counter(captured)
        each.run(until_empty=True)
        # Its rows are counted once; from then on changes are added.
        anew = ops.value(conn, "select max(ct_id) from pgq.counted_table")
        conn.execute("truncate item")
        conn.execute("insert into item select generate_series(1, %s + 2)", [number])
        conn.execute("update item set note = 'x'")
        conn.execute("delete from item where id = 1")
        follow(each)
        assert counted(conn) == number + 1
        assert ops.value(conn, "select max(ct_id) from pgq.counted_table") == anew


@pytest.fixture
def partitioned(conn: Connection, queue: str) -> str:
    conn.execute("create table part (id int primary key) partition by range (id)")
    conn.execute("create table part_1 partition of part for values from (0) to (10)")
    conn.execute("create table part_2 partition of part for values from (10) to (20)")
    conn.execute("select pgq.capture_table('part', %s)", [queue])
    return "part"


def test_partitions_are_counted_with_their_table_whatever_becomes_of_them(
    conn: Connection, partitioned: str, counter: Counter, follow: Follow
) -> None:
    each = counter(partitioned)
    conn.execute("insert into part values (1), (2), (11)")
    each.run(until_empty=True)
    assert counted(conn, "part") == 3

    for statement in (
        "insert into part values (3), (12)",
        "truncate part_1",
        "alter table part detach partition part_2",
        "alter table part attach partition part_2 for values from (10) to (20)",
        "drop table part_2",
        "insert into part values (4)",
    ):
        conn.execute(statement)
        conn.execute("insert into part values (9)")
        follow(each)
        assert counted(conn, "part") == ops.value(conn, "select count(*) from part"), statement
        conn.execute("delete from part where id = 9")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("select pgq.release_table('item')", "item is not captured into queue 'test_queue'"),
        (
            "select pgq.capture_table('item', 'test_queue', operations => 'insert', {again})",
            "item is captured without delete,truncate",
        ),
        (
            "select pgq.capture_table('item', 'test_queue', condition => 'true', {again})",
            "item is captured on a condition",
        ),
        ("alter table item disable trigger all", "item has its capture disabled"),
        ("create table child () inherits (item)", "item has tables that inherit from it"),
        ("drop table item", "there is no table public.item"),
    ],
)
def test_a_table_that_is_not_captured_as_it_must_be_is_refused(
    conn: Connection, each: RowCounter, tick: Tick, change: str, said: str
) -> None:
    conn.execute("insert into item values (4)")
    tick()
    conn.execute(change.format(again="replace => true").encode())
    # At the start, and when it happens while batches are processed.
    for run in (lambda: each.run(until_empty=True), each.run_once):
        with pytest.raises(RowsNotCountable, match=said) as raised:
            run()
        assert raised.value.hint


def test_neither_a_view_in_the_place_of_a_table_nor_its_policies_are_run(
    conn: Connection,
    connect: Connect,
    counter: Counter,
    captured: str,
    calls: Calls,
    make_role: MakeRole,
) -> None:
    """They would have the rights of the role that counts."""
    made = counter(captured)
    made.register()
    conn.execute(
        "create sequence ran; create function spring() returns boolean language sql"
        " as 'select setval(''ran'', 2) is not null'"
    )
    owner = connect(autocommit=False)
    owner.execute("alter table item rename to old; create view item as select 1 where spring()")
    count = calls.blocked(made.start_counts, connect(autocommit=False))
    owner.commit()
    with pytest.raises(RowsNotCountable):
        count.result(PATIENCE)
    assert ops.value(conn, "select last_value from ran") == 1
    conn.execute("drop view item; alter table old rename to item")
    role = make_role("teller", "pgq_reader")
    conn.execute(
        f"grant select on item to {role}; grant all on sequence ran to {role};"
        " alter table item enable row level security; create policy p on item using (spring())"
    )
    reader = connect(autocommit=False)
    reader.execute(f"set session authorization {role}".encode())
    reader.commit()
    with pytest.raises(PermissionDenied, match="row-level security"):
        made.start_counts(reader)
    assert ops.value(conn, "select last_value from ran") == 1


def test_a_capture_may_be_interrupted_and_its_table_renamed(
    conn: Connection, queue: str, captured: str, counter: Counter, tick: Tick
) -> None:
    each = counter(captured)
    each.run(until_empty=True)
    conn.execute("insert into item values (4)")
    conn.execute("select pgq.release_table('item')")
    conn.execute("insert into item values (5)")
    conn.execute("select pgq.capture_table('item', %s)", [queue])
    conn.execute("insert into item values (6)")
    tick()
    assert each.run_once()
    assert counted(conn) == 6, "it was not counted anew"
    conn.execute("insert into item values (7)")
    conn.execute("alter table item rename to thing")
    conn.execute("insert into thing values (8)")
    tick()
    each = counter("thing")
    each.run(until_empty=True)
    assert counted(conn, "thing") == 8
    # A consumer that is unregistered leaves no number.
    each.unregister()
    with pytest.raises(psycopg.Error) as raised:
        counted(conn, "thing")
    assert raised.value.sqlstate == "PQ061"


@pytest.mark.parametrize("back", [True, False])
def test_a_consumer_that_is_moved_counts_anew(
    conn: Connection, queue: str, each: RowCounter, tick: Tick, back: bool
) -> None:
    before = ops.value(conn, "select max(tick_id) from pgq.tick")
    conn.execute("insert into item values (4), (5)")
    tick()
    if back:
        each.run(until_empty=True)
    to = before if back else ops.value(conn, "select max(tick_id) from pgq.tick")
    Admin(conn).register_consumer_at(queue, "row_counter", to)
    conn.execute("delete from item where id = 1")
    tick()
    while each.run_once():
        pass
    assert counted(conn) == 4


def test_a_batch_that_is_rolled_back_and_comes_again_is_added_once(
    conn: Connection, each: RowCounter, tick: Tick
) -> None:
    conn.execute("insert into item values (4)")
    tick()

    class Failing(RowCounter):
        def process_batch(self, conn: Connection, batch: object) -> None:
            super().process_batch(conn, batch)  # type: ignore[arg-type]
            raise RuntimeError("after the count")

    failing = Failing(each.dsn, queue=each.queue, consumer=each.consumer)
    failing.tables = each.tables
    for _ in range(2):
        with pytest.raises(RuntimeError):
            failing.run_once()
    assert counted(conn) == 3
    assert each.run_once()
    assert counted(conn) == 4


def fill_log(conn: Connection) -> None:
    """As many batches as fill it."""
    conn.execute(
        "insert into pgq.row_count_log"
        " select rc_counted, n, rc_rows, rc_tick, rc_seq, rc_time"
        "   from pgq.row_count_log, generate_series(1, 20000) n"
    )


def maintain(conn: Connection) -> None:
    operations = conn.execute("select func_name from pgq.maint_operations()").fetchall()
    assert ("pgq.maint_row_counts",) in operations
    conn.execute("select pgq.maint_row_counts()")


def test_no_consumer_makes_others_wait_until_its_transaction_ends(
    conn: Connection, connect: Connect, each: RowCounter, queue: str
) -> None:
    fill_log(conn)
    conn.execute("insert into item values (4)")
    ops.tick(conn, queue)
    waiting = connect(autocommit=False)
    batch = ops.next_batch(waiting, queue, each.consumer)
    waiting.execute("select pgq.count_batch_rows(%s, '{item}')", [batch])
    conn.execute("set lock_timeout = '1s'")
    assert counted(conn) == 3
    waiting.rollback()


def test_numbers_stay_few_and_none_dies_while_a_transaction_is_open(
    conn: Connection, connect: Connect, each: RowCounter, follow: Follow
) -> None:
    forgotten = connect(autocommit=False)
    forgotten.isolation_level = IsolationLevel.REPEATABLE_READ
    assert ops.value(forgotten, "select txid_current()")
    fill_log(conn)
    conn.execute("insert into item values (4)")
    follow(each)
    maintain(conn)
    assert counted(conn) == 4
    assert ops.value(conn, "select count(*) from pgq.row_count_log") == 1
    operations = conn.execute("select func_name from pgq.maint_operations()").fetchall()
    assert ("pgq.maint_row_counts",) not in operations
    conn.execute("select pg_stat_force_next_flush()")
    assert not ops.value(
        conn,
        "select n_tup_upd + n_tup_del from pg_stat_user_tables where relname = 'row_count_log'",
    )
    # A session that cannot see the new row gets an error, not a wrong number.
    with pytest.raises(psycopg.errors.SerializationFailure, match="rewritten since"):
        forgotten.execute("select pgq.row_count('item')")


def test_the_log_is_not_emptied_under_a_reader(
    conn: Connection, connect: Connect, each: RowCounter, follow: Follow
) -> None:
    reader = connect(autocommit=False)
    assert counted(reader) == 3
    fill_log(conn)
    conn.execute("insert into item values (4)")
    follow(each)
    maintain(conn)
    assert counted(conn) == counted(reader) == 4
    assert ops.value(conn, "select count(*) from pgq.row_count_log") > 20000


def test_it_takes_no_more_than_reading_the_queue_and_the_table(
    conn: Connection,
    dsn: str,
    captured: str,
    counter: Counter,
    follow: Follow,
    make_role: MakeRole,
    as_role: AsRole,
) -> None:
    teller, reader = make_role("teller", "pgq_reader"), make_role("reader")
    conn.execute(f"grant select on item to {teller}".encode())
    each = counter(captured)
    each.dsn = psycopg.conninfo.make_conninfo(dsn, user=teller)
    each.run(until_empty=True)
    conn.execute("insert into item values (4)")
    follow(each)
    stranger = as_role(reader)
    with pytest.raises(psycopg.Error, match="you may not select") as raised:
        counted(stranger)
    assert raised.value.sqlstate == "PQ061"
    conn.execute(f"grant select on item to {reader}".encode())
    assert counted(stranger) == 4


def test_in_a_restored_dump_the_rows_are_counted_anew(
    conn: Connection, connect: Connect, server: Server, each: RowCounter, tick: Tick, tmp_path: Path
) -> None:
    conn.execute("insert into item values (4)")
    tick()
    copy, file = create_database(server, "template0"), tmp_path / "dump"
    try:
        for program, *options in (
            ("pg_dump", "--format=custom", f"--file={file}", each.dsn),
            ("pg_restore", "--exit-on-error", f"--dbname={server.dsn_of(copy)}", str(file)),
        ):
            subprocess.run([server.bin_dir / program, *options], check=True)
        restored = connect(server.dsn_of(copy))
        assert counted(restored) == 3
        restored.execute("delete from item where id < 3")
        ops.tick(restored, each.queue)
        each.dsn = server.dsn_of(copy)
        each.run(until_empty=True)
        assert counted(restored) == 2
        # The old snapshot means nothing for another cluster's transactions.
        assert ops.value(restored, "select min(ct_id) from pgq.counted_table") == 2
        restored.close()
    finally:
        drop_database(server, copy)


@pytest.mark.slow
def test_the_number_is_right_after_kills_in_the_middle_of_a_random_load(
    conn: Connection, connect: Connect, captured: str, kill: Kill
) -> None:
    done = threading.Event()
    writers = [
        threading.Thread(target=write, args=(connect(autocommit=False), seed, done))
        for seed in range(2)
    ]
    for writer in writers:
        writer.start()

    def counts(number: int) -> None:
        eventually(conn, "select coalesce(max(rc_nr), 0) > %s from pgq.row_count_log", number)

    def right() -> bool:
        done.set()
        for writer in writers:
            writer.join(PATIENCE)
        return bool(ops.value(conn, "select pgq.row_count('item') = (select count(*) from item)"))

    try:
        # From the second on, each dies after some batches more.
        waits = (partial(counts, life * 5) for life in range(3))
        kill("row_counter", f'tables = ["{captured}"]', *waits, until=right)
    finally:
        done.set()
    assert right()
    # It was counted at the very start only.
    assert ops.value(conn, "select count(*) from pgq.counted_table where ct_id = 1") == 1


def write(conn: Connection, seed: int, done: threading.Event) -> None:
    """Insert, delete, truncate, commit, roll back, as chance will have it."""
    chance = random.Random(seed)
    number = 10_000_000 * (seed + 1)
    while not done.wait(0.01):
        try:
            write_some(conn, seed, chance, number := number + 100)
        except psycopg.errors.DeadlockDetected:
            conn.rollback()  # two sessions that truncate
    conn.close()


def write_some(conn: Connection, seed: int, chance: random.Random, number: int) -> None:
    for n in range(number, number + 10 * chance.randrange(1, 4), 10):
        conn.execute("insert into item select generate_series(%s::int, %s)", [n, n + 7])
        conn.execute("delete from item where id %% 10 = %s and id <= %s", [seed, n])
    if chance.random() < 0.05:
        conn.execute("truncate item")
    if chance.random() < 0.2:
        conn.rollback()
    else:
        conn.commit()
