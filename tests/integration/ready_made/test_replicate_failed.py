"""A table that cannot be changed waits for its remedy; the others go on, and nothing is lost."""

from __future__ import annotations

import logging

import pytest

from pgqpy.errors import NoPrimaryKey
from pgqpy_consumers.apply import ColumnMissing, TableMissing
from pgqpy_consumers.replicate import ReplicaError
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_replicate import PATIENCE, Pair
from tests.fixtures.fix_ticker import eventually


@pytest.fixture
def shop(pair: Pair) -> Pair:
    """Two tables in step."""
    for table in ("item", "sale"):
        pair.both(f"create table {table} (id int primary key, name text)")
        pair.source.execute(f"insert into {table} values (1, 'one'), (2, 'two')".encode())
        pair.manager.add(table)
    pair.follow()
    pair.follow()
    return pair


def test_a_column_that_the_target_lacks(shop: Pair) -> None:
    """The reason names it; once it is there all that came meanwhile is applied."""
    shop.source.execute("alter table item add price numeric")
    shop.source.execute("update item set price = 1.50 where id = 1")
    shop.source.execute("insert into sale values (3, 'three')")
    with pytest.raises(ReplicaError, match='has no column "price"'):
        shop.follow()
    assert shop.states() == {"public.item": "failed", "public.sale": "in_step"}
    assert 'ALTER TABLE public.item ADD COLUMN "price"' in str(shop.manager.replica("item").error)
    shop.same("sale")
    shop.source.execute("delete from item where id = 2")
    with pytest.raises(ReplicaError):
        shop.follow()
    shop.target.execute("alter table item add price numeric")
    shop.follow()
    assert set(shop.states().values()) == {"in_step"}
    shop.same("item", "sale")
    assert ops.value(shop.target, "select count(*) from pgq_ext.replica_event") == 0
    # Likewise for a value that does not fit.
    shop.target.execute("alter table item alter name type varchar(3)")
    shop.source.execute("update item set name = 'too long' where id = 1")
    with pytest.raises(ReplicaError, match="value too long"):
        shop.follow()
    shop.target.execute("alter table item alter name type text")
    shop.becomes_same("item")


def test_a_table_heals_while_it_runs(shop: Pair, caplog: pytest.LogCaptureFixture) -> None:
    shop.target.execute("insert into item values (3, 'in the way')")
    shop.target.execute("alter table item add unique (name)")
    with shop.running():
        with caplog.at_level(logging.ERROR, "pgqpy"):
            shop.source.execute("insert into item values (4, 'in the way')")
            shop.await_state("public.item", "failed")
        assert "table public.item failed" in caplog.text
        shop.source.execute("insert into sale values (3, 'three')")
        eventually(shop.target, "select count(*) = 3 from sale", patience=PATIENCE)
        shop.source.execute("update item set name = 'more' where id = 2")
        shop.target.execute("delete from item where id = 3")
        shop.await_state("public.item", "in_step")
    shop.becomes_same("item", "sale")


def test_a_type_that_was_widened_on_both_sides_needs_nothing(shop: Pair) -> None:
    with shop.running():
        shop.source.execute("update item set name = 'x' where id = 1")
        eventually(shop.target, "select name = 'x' from item where id = 1", patience=PATIENCE)
        shop.both("alter table item alter id type bigint")
        shop.source.execute("insert into item values (3000000000, 'large')")
        eventually(
            shop.target, "select count(*) = 1 from item where id = 3000000000", patience=PATIENCE
        )
        assert shop.states()["public.item"] == "in_step"


def test_a_copy_that_fails_says_why_and_begins_again(shop: Pair) -> None:
    shop.both("create table fresh (id int primary key, n int)")
    shop.source.execute("insert into fresh values (1, 1), (2, -2)")
    shop.target.execute("alter table fresh add check (n > 0)")
    shop.manager.add("fresh")
    with pytest.raises(ReplicaError, match="violates check constraint"):
        shop.follow()
    assert shop.states()["public.fresh"] == "failed"
    assert ops.value(shop.target, "select count(*) from fresh") == 0
    shop.source.execute("update fresh set n = 2 where id = 2")
    shop.becomes_same("fresh")


def test_tables_that_cannot_be_replicated_are_refused_with_the_remedy(pair: Pair) -> None:
    pair.both(
        "create table keyless (id int); create table late (id int primary key deferrable);"
        "create view seen as select 1 as id"
    )
    pair.source.execute(
        "create table alone (id int primary key); create table wide (id int primary key, x int);"
        "create table other (id int primary key, k int)"
    )
    pair.target.execute(
        "create table wide (id int primary key); create table other (id int, k int primary key)"
    )
    for table, error, remedy in (
        ("keyless", NoPrimaryKey, "ADD PRIMARY KEY"),
        ("late", NoPrimaryKey, "not deferrable"),
        ("seen", ReplicaError, "Nothing else"),
        ("missing", ReplicaError, "with schema"),
        ("alone", TableMissing, "pg_dump --schema-only"),
        ("wide", ColumnMissing, "ADD COLUMN"),
        ("other", ReplicaError, "ADD PRIMARY KEY (id)"),
    ):
        with pytest.raises(error) as caught:
            pair.manager.add(table)
        assert remedy in str(caught.value.hint), table
    with pytest.raises(ReplicaError, match='no column "y"'):
        pair.manager.add("wide", columns=["y"])
    assert pair.states() == {}
    assert pair.source.execute("select * from pgq.capture_info()").fetchall() == []


def test_a_capture_that_does_not_tell_enough_is_refused_and_any_other_is_used(pair: Pair) -> None:
    pair.both("create table item (id int primary key, name text)")
    capture = f"select pgq.capture_table('item', '{pair.queue}', replace => true, format => "
    for options, what in (
        ("'row_json'", "in the format row_json"),
        ("'jsontriga', condition => 'new.id > 1'", "with a condition"),
        ("'jsontriga', operations => 'insert'", "for insert only"),
        ("'jsontriga', exclude => '{name}'", "without name"),
        ("'jsontriga', key_changes => 'error'", "keys must not change"),
    ):
        pair.source.execute(f"{capture}{options})".encode())
        with pytest.raises(ReplicaError, match=what) as caught:
            pair.manager.add("item")
        assert "--replace" in str(caught.value.hint)
    pair.source.execute(f"{capture}'jsontriga')".encode())
    pair.manager.add("item")
    pair.follow()
    pair.source.execute("insert into item values (1, 'one')")
    pair.becomes_same("item")
