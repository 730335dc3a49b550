"""Tables of another database follow this one's."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgqpy_consumers.replicate import ReplicaError
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect
from tests.fixtures.fix_replicate import Pair
from tests.fixtures.fix_ticker import eventually

FLIGHT = "create table flight (id int primary key, origin text not null, delay int unique)"


@pytest.fixture
def flight(pair: Pair) -> Pair:
    """One table, with rows, that is copied and in step."""
    pair.both(FLIGHT)
    pair.source.execute("insert into flight select n, 'EWR', n from generate_series(1, 100) n")
    pair.manager.add("flight")
    pair.follow()
    return pair


def as_admin(pair: Pair, connect: Connect) -> Pair:
    """The pair for a role that is no superuser, and owns the tables parent and child."""
    pair.both(
        "do $$ begin if to_regrole('test_replicator') is null then"
        " create role test_replicator login; end if; end $$;"
        "grant pgq_admin to test_replicator;"
        "alter table parent owner to test_replicator; alter table child owner to test_replicator"
    )
    # where the capture's function lies
    pair.source.execute("grant create on schema public to test_replicator")
    source = make_conninfo(pair.source_dsn, user="test_replicator")
    target = make_conninfo(pair.target_dsn, user="test_replicator")
    return Pair(connect(source), connect(target), source, target, pair.queue)


@pytest.mark.smoke
def test_a_table_that_is_added_is_copied_and_changes_of_all_kinds_are_applied(flight: Pair) -> None:
    flight.same("flight")
    # Triggers of the target do not fire.
    flight.target.execute(
        "create function no() returns trigger language plpgsql as"
        " $$ begin raise exception 'fired'; end $$;"
        "create trigger no before insert on flight for each row execute function no()"
    )
    flight.source.execute("insert into flight values (200, 'JFK', 200)")
    flight.source.execute("update flight set origin = 'LGA' where id < 10")
    flight.source.execute("delete from flight where id between 20 and 30")
    flight.source.execute("update flight set id = 1000 + id where id between 40 and 50")
    flight.becomes_same("flight")
    assert flight.states() == {"public.flight": "in_step"}
    flight.source.execute("truncate flight")
    flight.source.execute("insert into flight values (1, 'SFO', 1)")
    flight.becomes_same("flight")


def test_rows_may_exchange_keys_and_unique_values(flight: Pair) -> None:
    """Between two batches; in the target both change in one statement, where the one is in the
    other's way.
    """
    flight.source.execute("update flight set delay = -1 where id = 1")
    flight.source.execute("update flight set delay = 1 where id = 2")
    flight.source.execute("update flight set delay = 2 where id = 1")
    flight.becomes_same("flight")
    with flight.source.transaction():
        flight.source.execute("update flight set id = -id where id in (1, 2)")
        flight.source.execute("update flight set id = 3 + id where id in (-1, -2)")
    flight.source.execute("delete from flight where id = 3")
    flight.becomes_same("flight")


TYPES = """
create type mood as enum ('fine', 'so so');
create type place as (name text, at point, tags text[]);
create domain positive as int check (value > 0);
create table every (
    id int primary key,
    big bigint, small smallint, numbers numeric, exact numeric(12, 3), f4 real, f8 float8,
    truth bool, note text, code char(5), name varchar(20), one "char", raw bytea,
    day date, clock time, zoned timetz, at timestamp, tz timestamptz, span interval,
    u uuid, j json, jb jsonb, ip inet, net cidr, mac macaddr, bits bit(3), vbits varbit,
    m mood, p place, d positive, ints int[], texts text[], places place[], moods mood[],
    jsons jsonb[], times timestamptz[], r int4range, tsr tstzrange, mr int4multirange, pt point,
    cash money, ts tsvector, oids oid)
"""
VALUES = r"""
insert into every values (
    1,
    9223372036854775807, -32768, 1e-130, 1.500, '1.1754944e-38', 0.1,
    true, E'quote " back \\ tab \t', 'ab', E'\u00e4\u20ac', 'x', '\x00ff10',
    '4714-11-24 BC', '24:00:00', '12:00:00+05:30', '2024-02-29 23:59:59.999999',
    '2024-02-29 12:00:00+00', '-1 year 2 days -03:04:05',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"b":  1, "a":[1.0,null], "b": 2}', '{"x": 1.10}',
    '::1/64', '10.0.0.0/8', '08:00:2b:01:02:03', '101', '1',
    'so so', row('x, "y"', '(1,2)', '{a,"b c",NULL}'), 3, '[0:1]={1,NULL}',
    E'{"a,b","\\"",NULL,""}', array[row('z', null, '{}')::place], '{fine}',
    array['{"a": null}', '[]']::jsonb[], '{"2024-01-01 00:00+00"}', '[1,5)',
    '[2024-01-01,infinity)', '{[1,2),[5,6)}', '(1e300,-0)',
    '12.34', 'a:1 b:2', 4294967295);
insert into every (id) values (2), (3)
"""
EXTREMES = """
update every
   set numbers = 'NaN', f4 = '-Infinity', f8 = 'NaN', day = 'infinity', at = '-infinity',
       tz = 'infinity', j = 'null', jb = 'null', note = '', code = '', texts = '{}',
       ints = '{{1,2},{3,4}}', raw = '', span = 'P1Y', r = 'empty', one = ''
 where id = %s
"""


@pytest.mark.smoke
def test_every_type_survives_the_copy_and_the_stream(pair: Pair) -> None:
    pair.both(TYPES)
    pair.source.execute(VALUES)
    pair.source.execute(EXTREMES, [2])
    pair.manager.add("every")
    pair.becomes_same("every")
    pair.source.execute("update every set big = 0 where id = 1")
    pair.source.execute(EXTREMES, [3])
    pair.source.execute("insert into every (id, jb, j) values (4, '\"text\"', '\"text\"')")
    pair.becomes_same("every")


ODD_SETTINGS: dict[str, tuple[LiteralString, LiteralString]] = {
    "extra_float_digits": ("-15", "0"),
    "datestyle": ("'ISO, DMY'", "'ISO, MDY'"),
    "intervalstyle": ("sql_standard", "iso_8601"),
    "timezone": ("'Asia/Tokyo'", "'America/New_York'"),
    "bytea_output": ("escape", "escape"),
}


def test_it_makes_no_difference_how_the_databases_are_set_to_write_values(pair: Pair) -> None:
    pair.both(TYPES)
    pair.source.execute(VALUES)
    pair.source.execute("update every set f8 = 0.1 + 0.2, f4 = 1.0000001 where id = 2")
    for side, conn in enumerate((pair.source, pair.target)):
        for name, values in ODD_SETTINGS.items():
            conn.execute(f"alter database {conn.info.dbname} set {name} = {values[side]}".encode())
    pair.manager.add("every")
    pair.becomes_same("every")
    # An event holds the texts of its producer's session: rounded, if the session rounds.
    with psycopg.connect(pair.source_dsn, options="-c extra_float_digits=1") as conn:
        conn.execute("update every set big = 0 where id <> 3")
    pair.becomes_same("every")


def test_keys_that_are_equal_but_not_the_same_and_columns_that_the_target_computes(
    pair: Pair,
) -> None:
    pair.both(
        "create table price (amount numeric primary key, note text);"
        "create table area (id int generated always as identity primary key, w int,"
        " h int generated always as (w * 2) stored)"
    )
    pair.source.execute("insert into price values (1.0, 'a'), (2.0, 'b')")
    pair.source.execute("insert into area (w) values (1), (2)")
    pair.manager.add("price")
    pair.manager.add("area")
    pair.follow()
    pair.source.execute("update price set amount = 1.00, note = 'c' where amount = 1")
    pair.source.execute("update area set w = 3 where w = 1")
    pair.source.execute("insert into area (w) values (9)")
    pair.becomes_same("price", "area")


def test_some_columns_only_and_another_name_in_the_target(pair: Pair) -> None:
    pair.source.execute("create table person (id int primary key, name text, secret text)")
    pair.target.execute("create table person (id int primary key, name text, own text)")
    pair.source.execute("insert into person values (1, 'Ann', 'x')")
    pair.source.execute('create table "Od.d" (id int primary key, "A b" text)')
    pair.target.execute(
        'create schema "S"; create table "S"."T t" (id int primary key, "A b" text)'
    )
    pair.source.execute("""insert into "Od.d" values (1, 'x')""")
    pair.manager.add("person", columns=["name"])
    pair.manager.add('"Od.d"', target='"S"."T t"')
    pair.follow()
    pair.target.execute("update person set own = 'kept'")
    pair.source.execute("update person set name = 'Bea', secret = 'y'")
    pair.source.execute("""insert into "Od.d" values (2, 'y')""")
    pair.follow()
    assert pair.target.execute("select * from person").fetchall() == [(1, "Bea", "kept")]
    secrets = "select from pgq.event_template where ev_data like '%secret%'"
    assert pair.source.execute(secrets).fetchall() == []
    copied = pair.target.execute('select * from "S"."T t" order by 1').fetchall()
    assert copied == [(1, "x"), (2, "y")]


def test_a_transaction_that_was_open_during_the_copy_is_not_lost(
    pair: Pair, connect: Connect
) -> None:
    """Its changes are in neither the copy nor a batch yet; of others they are in both."""
    pair.both(FLIGHT)
    pair.manager.add("flight")
    pair.follow()
    pair.manager.copy_again("flight")
    slow = connect(pair.source_dsn, autocommit=False)
    slow.execute("insert into flight values (1, 'slow', 1)")
    pair.source.execute("insert into flight values (2, 'seen', 2)")
    pair.follow()
    # Applied twice, this would undo the target's own knowledge of what came later.
    assert pair.states() == {"public.flight": "catching_up"}
    slow.commit()
    pair.becomes_same("flight")
    pair.follow()
    assert pair.states() == {"public.flight": "in_step"}


def test_tables_can_be_removed_and_added_again(flight: Pair) -> None:
    # One that is gone touches no other.
    flight.both("create table other (id int primary key)")
    flight.manager.add("other")
    flight.source.execute("drop table other")
    assert flight.manager.remove("other")
    assert [*flight.states()] == ["public.flight"]
    flight.source.execute("delete from flight where id = 1")
    flight.becomes_same("flight")

    assert flight.manager.remove("flight")
    flight.source.execute("update flight set origin = 'gone'")
    flight.follow()
    assert ops.value(flight.target, "select count(*) from flight where origin = 'gone'") == 0
    assert flight.source.execute("select * from pgq.capture_info()").fetchall() == []
    with pytest.raises(ReplicaError, match="not empty"):
        flight.manager.add("flight")
    flight.manager.add("flight", overwrite=True)
    flight.becomes_same("flight")

    # The capture stays for other consumers of the queue.
    ops.register(flight.source, flight.queue, "other")
    assert not flight.manager.remove("flight")
    assert len(flight.source.execute("select * from pgq.capture_info()").fetchall()) == 1


def test_foreign_keys_hold_whether_they_are_checked_or_not(pair: Pair, connect: Connect) -> None:
    """Without the right to silence triggers, parents are inserted first and deleted last."""
    pair.both(
        "create table parent (id numeric primary key, name text unique);"
        "create table child (id int primary key, parent numeric not null references parent)"
    )
    pair.source.execute("insert into parent select n, n::text from generate_series(1, 9) n")
    pair.source.execute("insert into child select n, n from generate_series(1, 9) n")
    admin = as_admin(pair, connect)
    admin.manager.add("parent")
    admin.follow()
    admin.manager.add("child")
    admin.follow()
    pair.same("parent", "child")
    with pair.source.transaction():
        pair.source.execute("insert into parent values (0, 'zero'), (10, 'ten')")
        pair.source.execute("update child set parent = 10 where parent < 5")
        pair.source.execute("insert into child values (100, 0)")
        pair.source.execute("delete from parent where id < 5 and id > 0")
        pair.source.execute("delete from child where id = 9")
        pair.source.execute("delete from parent where id = 9")
        # Equal, but not the same.
        pair.source.execute("update parent set id = 8.0, name = '8.0' where id = 8")
    admin.follow()
    pair.same("parent", "child")


@pytest.mark.smoke
def test_a_partitioned_table_and_the_truncate_of_one_partition(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The target has other partitions."""
    columns = "(id int, day date, primary key (id, day)) partition by range (day)"
    pair.source.execute(
        f"create table log {columns};"
        "create table log_1 partition of log for values from ('2024-01-01') to ('2024-02-01');"
        "create table log_2 partition of log for values from ('2024-02-01') to ('2024-03-01')"
    )
    pair.target.execute(f"create table log {columns}; create table logs partition of log default")
    pair.source.execute(
        "insert into log select n, date '2024-01-01' + n from generate_series(0, 50) n"
    )
    pair.manager.add("log")
    pair.follow()
    pair.source.execute("update log set day = day + 31 where id < 5")
    pair.becomes_same("log")
    pair.source.execute("truncate log_1")
    pair.source.execute("insert into log values (77, '2024-01-05')")
    pair.becomes_same("log")
    assert "the table is copied again" in caplog.text
    caplog.clear()
    pair.source.execute("truncate log")
    pair.source.execute("insert into log values (78, '2024-01-05')")
    pair.becomes_same("log")
    assert "the table is copied again" not in caplog.text


def test_batches_leave_nothing_dead_in_the_lists_or_the_catalog(flight: Pair) -> None:
    """A temporary table that is made for each batch would."""
    flight.follow()

    def dead_rows() -> int:
        flight.target.execute("select pg_stat_force_next_flush()")
        return int(ops.value(flight.target, DEAD))

    def dead_rows_of(batches: int) -> int:
        # Sessions report what they did at the latest when they end.
        others = (
            "select count(*) = 0 from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        eventually(flight.target, others)
        before = dead_rows()
        with flight.running():
            for n in range(batches):
                note = f"{n} of {batches}"
                flight.source.execute("update flight set origin = %s where id < 9", [note])
                eventually(flight.target, "select count(*) > 5 from flight where origin = %s", note)
        eventually(flight.target, others)
        return dead_rows() - before

    # One or two come of what is done for each session.
    assert dead_rows_of(22) < dead_rows_of(2) + 15


DEAD = """
select sum(pg_stat_get_tuples_updated(oid) + pg_stat_get_tuples_deleted(oid))
  from pg_class
 where starts_with(relname, 'replica')
    or oid in ('pg_class'::regclass, 'pg_attribute'::regclass, 'pg_type'::regclass)
"""
