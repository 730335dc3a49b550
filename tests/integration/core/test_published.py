"""An application may publish all tables of its database, as programs for change data capture do.

PostgreSQL then refuses to change rows of tables without a replica identity.
"""

from __future__ import annotations

from pgqpy import Producer
from tests.fixtures.fix_db import Connection

#: Rows are inserted and truncated only.
NEVER_CHANGED = "^pgq_task[.](finished|limit_log)|^pgq[.]group_key_check$"


def test_everything_works_while_all_tables_are_published(conn: Connection, queue: str) -> None:
    conn.execute("create publication everything for all tables")
    producer = Producer(queue)
    assert producer.cancel_event(conn, producer.insert_event(conn, "t", delay=100))
    conn.execute("create table captured (id int primary key)")
    conn.execute("select pgq.capture_table('captured', %s)", [queue])
    conn.execute("select pgq.set_contract(%s, 't', '{}', enforced => true)", [queue])
    conn.execute("select pgq.adopt_restored()")
    conn.execute("select pgq.drop_queue(%s, true)", [queue])


def test_every_table_whose_rows_are_changed_has_a_replica_identity(
    conn: Connection, queue: str
) -> None:
    conn.execute("select pgq_task.create_queue('limited')")
    conn.execute("select pgq_task.set_limits('limited', max_running => 1)")
    without = conn.execute(
        "select c.oid::regclass::text from pg_class c"
        " where relnamespace::regnamespace::text like 'pgq%%' and relkind = 'r'"
        "   and relpersistence = 'p' and relreplident = 'd'"
        "   and not exists (select from pg_index where indrelid = c.oid and indisprimary)"
        "   and c.oid::regclass::text !~ %s",
        [NEVER_CHANGED],
    )
    assert without.fetchall() == []
