"""Replication runs no code of the roles whose tables it reads, nor what lies on a search_path."""

from __future__ import annotations

import psycopg
import pytest

from pgqpy_consumers.replicate import ReplicaError
from pgqpy_consumers.replicate import _sequences as sequences
from pgqpy_consumers.replicate._source import reading
from pgqpy_consumers.replicate.compare import Comparer
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_replicate import CONSUMER, Pair


def test_a_view_in_the_place_of_a_table_or_sequence_is_not_read(pair: Pair) -> None:
    """Its functions would have the rights of the role that replicates."""
    pair.both("create table item (id int primary key, name text); create sequence number")
    pair.manager.add("item")
    pair.source.execute(
        "alter table item rename to old; create view item as select 1 as id, current_user as name;"
        " alter sequence number rename to old_number; create view number as select 7 as last_value"
    )
    with pytest.raises(ReplicaError, match=r"no table public\.item any more"):
        pair.follow()
    assert ops.value(pair.target, "select count(*) from item") == 0
    # Nor if that is a moment after it was looked at.
    for read in (
        lambda: sequences.last_value(pair.source, ("public", "number")),
        lambda: read_in_snapshot(pair),
    ):
        with pytest.raises(psycopg.Error, match="access to non-system view"):
            read()


def read_in_snapshot(pair: Pair) -> None:
    with reading(pair.source, pair.queue, ("public", "item"), 1, lambda: None):
        pair.source.execute("select from public.item")


PLANTED = """
create table hit (what text);
create function public.equal(varchar, varchar) returns boolean language sql
    as $$ insert into hit values ('='); select $1::text = $2::text $$;
create operator public.= (leftarg = varchar, rightarg = varchar, function = public.equal);
create function public.modulo(bigint, int) returns bigint language sql
    as $$ insert into hit values ('%'); select pg_catalog.mod($1, $2::bigint) $$;
create operator public.% (leftarg = bigint, rightarg = int, function = public.modulo);
"""


def test_operators_of_others_on_the_search_path_are_not_called(pair: Pair) -> None:
    """They fit better than PostgreSQL's own, which are for text."""
    pair.both("create table item (id varchar(9) primary key, name varchar)")
    pair.both(PLANTED)
    pair.source.execute("insert into item values ('1', 'one'), ('2', 'two')")
    pair.manager.add("item")
    pair.follow()
    pair.follow()
    pair.source.execute("update item set name = 'x' where id = '1'")
    pair.source.execute("delete from item where id = '2'")
    pair.becomes_same("item")
    compare = Comparer(pair.source_dsn, pair.target_dsn, pair.queue, CONSUMER).compare
    with pair.running():
        assert compare(pair.manager.replica("item")).differences == []
    assert pair.target.execute("select * from hit").fetchall() == []
