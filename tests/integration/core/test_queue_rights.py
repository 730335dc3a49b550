"""Rights of roles on queues of events: every function and relation, as every kind of role.

docs/permissions.md says which right a function takes. A function that is new has to be added there
and here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import LiteralString

import psycopg
import pytest
from psycopg import errors

from pgqpy.errors import PermissionDenied, from_psycopg
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import AsRole, Calls, Connect, Connection, MakeRole
from tests.fixtures.pages import text_of

Q, OPEN = "closed", "open"
SCHEMAS = ("pgq", "pgq_coop", "pgq_ext", "pgq_queue", "pgq_ids", "pgq_slots", "pgq_staging")
ALL = ["insert", "consume", "read", "admin"]

GRANTS: dict[str, tuple[str, list[str], str | None]] = {
    "inserts": (Q, ["insert"], None),
    "consumes": (Q, ["consume"], None),
    "consumes_c": (Q, ["consume"], "c"),
    "consumes_other": (Q, ["consume"], "other"),
    "reads": (Q, ["read"], None),
    "administers": (Q, ["admin"], None),
    "elsewhere": (OPEN, ALL, None),
}
"""Roles in pgq_reader and pgq_writer, and what they are granted."""

WITHOUT = ("outsider", "reader", "writer", "member")
EVERYTHING = {"administers", "pgq_admin"}
MAY: dict[str, set[str]] = {
    "insert": {"inserts"} | EVERYTHING,
    "consume": {"consumes", "consumes_c"} | EVERYTHING,
    "consume or read": {"consumes", "consumes_c", "reads"} | EVERYTHING,
    "any consume, or read": {"consumes", "consumes_c", "consumes_other", "reads"} | EVERYTHING,
    "read": {"reads"} | EVERYTHING,
    "any": set(GRANTS) - {"elsewhere"} | EVERYTHING,
    "admin": EVERYTHING,
}
SEES = {
    "stored": set(GRANTS) - {"inserts", "elsewhere"} | EVERYTHING,
    "private": MAY["consume or read"],
    "delayed": MAY["read"],
}
"""The roles that see events that are stored, what consumer c has set aside, delayed events."""

CALLS: dict[str, tuple[LiteralString, ...]] = {
    "insert_event": (
        "pgq.insert_event('closed', 't', 'x')",
        "pgq.insert_event('closed', 't', 'x', null, null, null, null)",
    ),
    "insert_events": ("pgq.insert_events('closed', '{t}', '{x}')",),
    "insert_event_at": ("pgq.insert_event_at('closed', now() + '1 h', 't', 'x')",),
    "insert_events_at": ("pgq.insert_events_at('closed', array[now()], '{t}', '{x}')",),
    "insert_event_once": (
        "pgq.insert_event_once('closed', 'new', 't', 'x')",
        "pgq.insert_event_once('closed', 'known', 't', 'x')",
    ),
    "insert_events_once": (
        "pgq.insert_events_once('closed', '{new}', '{t}', '{x}')",
        "pgq.insert_events_once('closed', '{known}', '{t}', '{x}')",
    ),
    "cancel_event": ("pgq.cancel_event('closed', %(delayed)s)",),
    "current_event_table": ("pgq.current_event_table('closed')",),
    "write_stream_batch": ("pgq.write_stream_batch('closed', 'w', 's', 1)",),
    "forget_stream_writer": ("pgq.forget_stream_writer('closed', 'w')",),
    "register_consumer": (
        "pgq.register_consumer('closed', 'c')",
        "pgq.register_consumer('closed', 'c', 'first')",
    ),
    "register_consumer_at": ("pgq.register_consumer_at('closed', 'c', %(tick)s)",),
    "unregister_consumer": ("pgq.unregister_consumer('closed', 'c')",),
    "pause_consumer": ("pgq.pause_consumer('closed', 'c')",),
    "resume_consumer": ("pgq.resume_consumer('closed', 'c')",),
    "advance_consumer": ("pgq.advance_consumer('closed', 'c', %(tick)s)",),
    "next_batch": ("pgq.next_batch('closed', 'c')", "pgq_coop.next_batch('closed', 'c', 'm')"),
    "next_batch_info": ("pgq.next_batch_info('closed', 'c')",),
    "next_batch_custom": (
        "pgq.next_batch_custom('closed', 'c', null, null, null)",
        "pgq_coop.next_batch_custom('closed', 'c', 'm', null, null, null, '1 h')",
    ),
    "next_batch_upto": ("pgq.next_batch_upto('closed', 'c', 9)",),
    "open_next_batch": (
        "pgq.open_next_batch('closed', 'c', null, null, null, null, 9)",
        "pgq_coop.open_next_batch('closed', 'c', 'm', '1 h', null, null, null, null, 9)",
    ),
    "finish_batch": (
        "pgq.finish_batch(%(batch)s)",
        "pgq_coop.finish_batch(%(batch)s)",
        "pgq_coop.finish_batch('closed', 'c', 'm', %(batch)s)",
    ),
    "get_batch_info": ("pgq.get_batch_info(%(batch)s)",),
    "batch_event_sql": ("pgq.batch_event_sql(%(batch)s)",),
    "batch_event_tables": ("pgq.batch_event_tables(%(batch)s)",),
    "get_batch_events": ("pgq.get_batch_events(%(batch)s)",),
    "get_batch_cursor": (
        "pgq.get_batch_cursor(%(batch)s, 'k', 9)",
        "pgq.get_batch_cursor(%(batch)s, 'k', 9, 'true')",
    ),
    "event_retry": (
        "pgq.event_retry(%(batch)s, %(event)s, 1)",
        "pgq.event_retry(%(batch)s, %(event)s, now())",
    ),
    "event_retry_many": ("pgq.event_retry_many(%(batch)s, array[%(event)s], array[now()])",),
    "batch_retry": ("pgq.batch_retry(%(batch)s, 1)",),
    "event_dead_letter": ("pgq.event_dead_letter(%(batch)s, %(event)s, 'bad')",),
    "event_dead_letter_many": ("pgq.event_dead_letter_many(%(batch)s, array[%(event)s], '{bad}')",),
    "note_failure": ("pgq.note_failure(%(batch)s, 'forged')",),
    "settle_batch": ("pgq.settle_batch(%(batch)s)",),
    "reopen_batch": ("pgq.reopen_batch('closed', 'c', %(batch)s, 1, now(), 2, now())",),
    "start_row_count": (
        "pgq.start_row_count('closed', 'c', 'pgq.tick', 1, txid_current_snapshot())",
    ),
    "count_batch_rows": ("pgq.count_batch_rows(%(batch)s, '{pgq.tick}')",),
    "create_group": ("pgq.create_group('closed', 'c', 1, 'ev_type')",),
    "drop_group": ("pgq.drop_group('closed', 'c', true)",),
    "set_group_config": ("pgq.set_group_config('closed', 'c', 'park_limit', '5')",),
    "resize_group": ("pgq.resize_group('closed', 'c', 2)",),
    "join_group": ("pgq.join_group('closed', 'c', 'w')",),
    "leave_group": ("pgq.leave_group(%(member)s)",),
    "group_heartbeat": ("pgq.group_heartbeat(%(member)s)",),
    "next_group_batch": (
        "pgq.next_group_batch(%(member)s, null, i_most_inline => 99, i_parked => false)",
    ),
    "finish_group_batch": ("pgq.finish_group_batch(%(group_batch)s, %(generation)s)",),
    "group_batch_keys": ("pgq.group_batch_keys(%(group_batch)s)",),
    "open_parked": ("pgq.open_parked(%(member)s)",),
    "finish_parked": ("pgq.finish_parked(%(parked)s, %(generation)s, '{}')",),
    "unpark_key": ("pgq.unpark_key('closed', 'c')",),
    "give_up_parked": ("pgq.give_up_parked('closed', 'c', 't')",),
    "register_subconsumer": ("pgq_coop.register_subconsumer('closed', 'c', 'm')",),
    "unregister_subconsumer": ("pgq_coop.unregister_subconsumer('closed', 'c', 'm', 1)",),
    "keep_batch": ("pgq_coop.keep_batch('closed', 'c', 'm', %(batch)s)",),
    "replay_dead_letters": ("pgq.replay_dead_letters(array[%(letter)s])",),
    "replay_dead_letters_patched": ("pgq.replay_dead_letters_patched(array[%(letter)s], '{}')",),
    "purge_dead_letters": ("pgq.purge_dead_letters(array[%(letter)s])",),
    "get_parked_keys": ("pgq.get_parked_keys('closed', 'c')",),
    "get_delayed_events": ("pgq.get_delayed_events('closed')",),
    "where_is_event": (
        "pgq.where_is_event('closed', %(event)s)",
        "pgq.where_is_event('closed', %(delayed)s)",
    ),
    "force_tick": ("pgq.force_tick('closed')",),
    "set_queue_config": ("pgq.set_queue_config('closed', 'ticker_paused', 'true')",),
    "drop_queue": ("pgq.drop_queue('closed', true)", "pgq.drop_queue('closed')"),
    "restrict_queue": ("pgq.restrict_queue('closed', false)", "pgq.restrict_queue('closed')"),
    "grant_queue": ("pgq.grant_queue('closed', '{read}', 'pgq_reader')",),
    "revoke_queue": ("pgq.revoke_queue('closed', '{read}', 'pgq_reader')",),
    "get_queue_grants": ("pgq.get_queue_grants('closed')",),
    "set_contract": ("pgq.set_contract('closed', 't', '{}')",),
    "drop_contract": ("pgq.drop_contract('closed', 't')",),
    "set_shard": ("pgq.set_shard('closed', 's', 1)",),
    "drop_shard": ("pgq.drop_shard('closed')",),
    # these take no right
    "version": ("pgq.version()", "pgq_coop.version()"),
    "quote_fqname": ("pgq.quote_fqname('a.b')",),
    "queue_relation": ("pgq.queue_relation('closed')",),
    "seq_getval": ("pgq.seq_getval(%(sequence)s)",),
    "get_queue_info": ("pgq.get_queue_info()", "pgq.get_queue_info('closed')"),
    "get_paused_consumers": ("pgq.get_paused_consumers()",),
    "get_consumer_info": (
        "pgq.get_consumer_info()",
        "pgq.get_consumer_info('closed')",
        "pgq.get_consumer_info('closed', 'c')",
    ),
    "get_consumer_start": ("pgq.get_consumer_start('closed', 'c')",),
    "get_delayed_info": ("pgq.get_delayed_info('closed')",),
    "get_dead_letter_info": ("pgq.get_dead_letter_info('closed')",),
    "get_group_info": ("pgq.get_group_info('closed', 'c')",),
    "get_group_partitions": ("pgq.get_group_partitions('closed', 'c')",),
    "get_tick_snapshot": ("pgq.get_tick_snapshot('closed', %(tick)s)",),
    "find_tick": ("pgq.find_tick('closed', 'now')",),
    "find_tick_helper": ("pgq.find_tick_helper(1, 1, now(), 1, 1, '1 s')",),
    "tick_channel": ("pgq.tick_channel('closed')",),
    "check_event_condition": ("pgq.check_event_condition('ev_id = 1')",),
    "tick_range_sql": ("pgq.tick_range_sql('closed', %(tick)s, %(tick)s)",),
    "snapshot_range_sql": (
        "pgq.snapshot_range_sql('closed', %(tick)s, '1:1:', %(tick)s, '1:1:', 'c')",
    ),
    "find_counted_tables": ("pgq.find_counted_tables('{}')",),
    "row_counts_to_start": ("pgq.row_counts_to_start('closed', 'c', '{}')",),
    "row_count": ("pgq.row_count('pgq.tick')",),
    "event_pkey": ("pgq.event_pkey('', '')",),
    "payload_values": ("pgq.payload_values('[1]', '$[*]')",),
    "key_partition": ("pgq.key_partition('k', 2)",),
    "get_foreign_locks": ("pgq.get_foreign_locks()",),
    "capture_info": ("pgq.capture_info(null)",),
    "create_staging": ("pgq.create_staging('job')",),
    "staging_tables": ("pgq.staging_tables('job')",),
    "drop_staging": ("pgq.drop_staging('pgq_staging.none')",),
    "get_contract": ("pgq.get_contract('closed', 't')",),
    "get_contract_info": ("pgq.get_contract_info('closed')",),
    "log_action": ("pgq.log_action('a test')",),
    "contract_errors": ("pgq.contract_errors('{}', '1')",),
    "has_replayed": ("pgq.has_replayed('closed', 1, now(), false)",),
    "next_ticks": ("pgq.next_ticks('closed', 1, 1, 1)",),
    "get_shard_info": ("pgq.get_shard_info('closed')",),
    "enter_shard": ("pgq.enter_shard('closed')",),
    "shard_writers": ("pgq.shard_writers('closed')",),
    "has_finished": ("pgq.has_finished('closed', 'c', 1)",),
}

OF_THE_CALLERS_TABLE = {
    *("sqltriga", "logutriga", "jsontriga", "maint_capture", "release_table", "capture_table"),
    "capture_new_partitions",
}
"""With the caller's rights on a table; what they insert is checked like any INSERT."""


def documented() -> dict[str, str]:
    """For each function the right that the page says it takes."""
    page = text_of("permissions.md").split("## Queues of events")[1].split("## Queues of tasks")[0]
    found: dict[str, str] = {}
    for row in page.splitlines():
        if row.startswith("| ") and not row.startswith("| right"):
            right, functions = row.strip("| ").split(" | ")
            for name in re.findall(r"`(\w+)`", functions):
                assert name not in found
                found[name] = "none" if right.startswith("none") else right.replace("`", "")
    return found


def role(name: str) -> str:
    return name if name == "pgq_admin" else f"rights_test_{name}"


@pytest.fixture
def roles(conn: Connection) -> Iterator[list[str]]:
    """All kinds of roles, and two queues, of which one is restricted."""
    names = [*WITHOUT, *GRANTS]
    for name in names:
        groups = {"outsider": "", "reader": "in role pgq_reader", "writer": "in role pgq_writer"}
        inside = groups.get(name, "in role pgq_reader, pgq_writer")
        conn.execute(f"create role {role(name)} {inside}".encode())
    for queue in (Q, OPEN):
        conn.execute("select pgq.create_queue(%s)", [queue])
    conn.execute("select pgq.set_queue_config(%s, 'key_window', '1 day')", [Q])
    for name, (queue, actions, consumer) in GRANTS.items():
        conn.execute(
            "select pgq.grant_queue(%s, %s, %s, %s)", [queue, actions, role(name), consumer]
        )
    yield [*names, "pgq_admin"]
    conn.execute("reset session authorization")
    everyone = ", ".join(map(role, names))
    conn.execute(f"drop owned by {everyone} cascade; drop role {everyone}".encode())


@pytest.fixture
def named(conn: Connection, roles: list[str]) -> dict[str, object]:
    """The restricted queue with an event of every kind, and their ids."""
    ids: dict[str, object] = {}
    ops.register(conn, Q, "c")
    ops.register(conn, Q, "other")
    conn.execute("select pgq_coop.register_subconsumer(%s, 'c', 'm')", [Q])
    conn.execute("select pgq.create_group(%s, 'c', 1, 'ev_type')", [Q])
    conn.execute("select pgq.insert_event_once(%s, 'known', 'other', 'x')", [Q])
    ids["delayed"] = ops.value(
        conn, "select pgq.insert_event_at(%s, now() + '1 hour', 't', 'a delayed event')", Q
    )
    ids["event"] = ops.insert(conn, Q, "a stored event")
    ids["tick"] = ops.tick(conn, Q)
    ids["batch"] = batch = ops.next_batch(conn, Q, "c")
    dead: LiteralString = "select pgq.event_dead_letter(%s, %s, 'a private reason')"
    conn.execute(dead, [batch, ids["event"]])
    ids["letter"] = ops.value(conn, "select dl_id from pgq.dead_letter")
    conn.execute("select pgq.note_failure(%s, e'a private error\\n\\na private place')", [batch])
    conn.execute("select pgq.event_retry(%s, %s, 3600)", [batch, ids["event"]])
    ids["member"] = ops.value(conn, "select member_id from pgq.join_group(%s, 'c', 'w')", Q)
    opened = "select batch_id, generation from pgq.next_group_batch(%s, null)"
    [(first, generation)] = conn.execute(opened.encode(), [ids["member"]]).fetchall()
    conn.execute(
        "select pgq.finish_group_batch(%s, %s, array[%s], '{a private failure}', '{0}')",
        [first, generation, ids["event"]],
    )
    ops.insert_ticked(conn, Q, "a stored event")
    conn.execute("select pgq.insert_event(%s, 'key', 'a stored event'), pgq.force_tick(%s)", [Q, Q])
    ops.tick(conn, Q)
    opened = "select batch_id, generation from pgq.next_group_batch(%s, null, i_parked => false)"
    [(ids["group_batch"], ids["generation"])] = conn.execute(
        opened.encode(), [ids["member"]]
    ).fetchall()
    ids["parked"] = ops.value(conn, "select parked_id from pgq.parked_key")
    assert None not in ids.values()
    conn.execute("select pgq.restrict_queue(%s)", [Q])
    ids["sequence"] = ops.value(
        conn, "select queue_event_seq from pgq.queue where queue_name = %s", Q
    )
    return ids


def test_every_function_that_is_granted_is_in_the_table(conn: Connection) -> None:
    granted = conn.execute(
        "select distinct p.proname from pg_proc p, aclexplode(p.proacl) a"
        " where p.pronamespace in ('pgq'::regnamespace, 'pgq_coop'::regnamespace)"
        " and a.grantee in (0, 'pgq_reader'::regrole, 'pgq_writer'::regrole)"
        " and p.proname !~ '^_'"
    ).fetchall()
    assert {name for (name,) in granted} - OF_THE_CALLERS_TABLE == documented().keys()
    assert documented().keys() == CALLS.keys()


def test_each_function_takes_the_right_that_the_table_says(
    conn: Connection, roles: list[str], named: dict[str, object]
) -> None:
    wrong = []
    for name in roles:
        conn.execute(f"set session authorization {role(name)}".encode())
        for function, right in documented().items():
            for call in CALLS[function]:
                seen, sqlstate = "", None
                try:
                    with conn.transaction(force_rollback=True):
                        seen = str(conn.execute("select " + call, named).fetchall())
                except psycopg.Error as error:
                    sqlstate = error.sqlstate
                    assert sqlstate == "42501" or str(sqlstate).startswith("PQ"), call
                if right == "none":
                    # Roles outside may call few of them.
                    is_right = name in WITHOUT or sqlstate != "42501"
                else:
                    is_right = (sqlstate == "42501") == (name not in MAY[right])
                unseen = [mark for mark, who in SEES.items() if mark in seen and name not in who]
                if not is_right or unseen:
                    wrong.append((name, call, sqlstate, unseen))
        conn.execute("reset session authorization")
    assert wrong == [], "\n".join(map(str, wrong))


def test_relations_show_a_role_what_it_may_see(
    conn: Connection, roles: list[str], named: dict[str, object]
) -> None:
    relations = conn.execute(
        "select format('%%I.%%I', relnamespace::regnamespace, relname) from pg_class"
        " where relkind in ('r', 'p', 'v') and relnamespace = any (%s::text[]::regnamespace[])",
        [list(SCHEMAS)],
    ).fetchall()
    for name in roles:
        conn.execute(f"set session authorization {role(name)}".encode())
        text = ""
        for (relation,) in relations:
            try:
                text += str(conn.execute(f"select t::text from {relation} t".encode()).fetchall())
            except errors.InsufficientPrivilege:
                continue
        conn.execute("reset session authorization")
        for mark in ("stored", "private"):
            assert (f"a {mark}" in text) == (name in SEES[mark]), (name, mark)
        assert "a delayed" not in text or name in SEES["delayed"], name


NATIVE: dict[LiteralString, str] = {
    "insert into pgq_queue.closed (ev_type) values ('x') returning ev_id": "insert",
    "copy {table} (ev_type) from stdin": "insert",
    "select nextval('{sequence}')": "insert",
    "select from pgq_queue.closed where ev_data <> ''": "stored",
    "select * from {view}": "stored",
    "select ev_data from {table}": "stored",
    "copy {table} (ev_data) to stdout": "stored",
    "{batch}": "stored",
    "{range}": "stored",
}


def test_postgresql_checks_statements_that_name_a_relation(
    conn: Connection, roles: list[str], named: dict[str, object]
) -> None:
    table = ops.value(conn, "select pgq.current_event_table(%s)", Q)
    names = {
        "table": table,
        "view": table.rpartition("_")[0],
        "sequence": named["sequence"],
        "batch": ops.value(conn, "select pgq.batch_event_sql(%s)", named["batch"]),
        "range": ops.value(conn, "select pgq.tick_range_sql(%s, 1, %s)", Q, named["tick"]),
    }
    for name in roles:
        conn.execute(f"set session authorization {role(name)}".encode())
        for template, right in NATIVE.items():
            statement = template.format(**names)
            may = name in (SEES[right] if right in SEES else MAY[right])
            try:
                with conn.transaction(force_rollback=True):
                    if statement.startswith("copy"):
                        with conn.cursor().copy(statement.encode()) as rows:
                            if statement.endswith("to stdout"):
                                list(rows)
                    else:
                        conn.execute(statement.encode())
                denied = False
            except errors.InsufficientPrivilege:
                denied = True
            assert denied != may, (name, statement)
        conn.execute("reset session authorization")


# --- a few roles


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(errors.InsufficientPrivilege) as caught:
        call()
    error = from_psycopg(caught.value)
    assert isinstance(error, PermissionDenied)
    return f"{error.message}\n{error.hint}"


@pytest.fixture
def session_of(roles: list[str], as_role: AsRole) -> Callable[[str], Connection]:
    return lambda name: as_role(role(name))


INSERT: LiteralString = "insert into pgq_queue.closed (ev_type) values ('x')"


def test_a_session_with_plans_notices_restriction_grant_and_revoke(
    conn: Connection, session_of: Callable[[str], Connection]
) -> None:
    """Prepared statements and cached plans as well."""
    member = session_of("member")
    ways: tuple[LiteralString, ...] = (
        INSERT,
        "select pgq.insert_event('closed', 't', 'x')",
        "select pgq.insert_events('closed', '{t}', '{x}')",
    )
    grant: LiteralString = "select pgq.{}_queue('closed', '{{insert}}', '{}')"
    for change, may in (
        ("select", True),
        ("select pgq.restrict_queue('closed')", False),
        (grant.format("grant", role("member")), True),
        (grant.format("revoke", role("member")), False),
        ("select pgq.restrict_queue('closed', false)", True),
    ):
        conn.execute(change.encode())
        for way in ways:
            for _ in range(6 if change == "select" else 1):
                if may:
                    member.execute(way, prepare=True)
                else:
                    refused(lambda way=way: member.execute(way, prepare=True))  # type: ignore[misc]
    conn.execute("select pgq.restrict_queue('closed')")
    said = refused(lambda: session_of("member").execute(ways[1]))
    assert said.startswith("role rights_test_member may not insert into queue 'closed'")
    assert said.endswith(": select pgq.grant_queue('closed', '{insert}', 'rights_test_member').")


def test_restricting_waits_for_transactions_that_have_inserted(
    conn: Connection, connect: Connect, calls: Calls, roles: list[str]
) -> None:
    producer = connect(autocommit=False)
    producer.execute(INSERT)
    restricting = calls.blocked(ops.value, connect(), "select pgq.restrict_queue('closed')")
    # the ticker is not held up meanwhile
    assert ops.value(conn, "select pgq.force_tick('closed')") is not None
    assert not restricting.done()
    producer.commit()
    restricting.result(PATIENCE)


@pytest.mark.parametrize("queue", [Q, "x" * 60])
@pytest.mark.parametrize("call", ["insert_event(%s, 't', 'x')", "insert_events(%s, '{t}', '{x}')"])
def test_an_insert_that_waits_for_the_restriction_takes_the_right(
    connect: Connect,
    session_of: Callable[[str], Connection],
    calls: Calls,
    call: str,
    queue: str,
) -> None:
    admin = connect(autocommit=False)
    admin.execute("select pgq.create_queue(%s)", [queue])
    admin.execute("select pgq.grant_queue(%s, '{insert}', %s)", [queue, role("inserts")])
    for name, snapshot, sqlstate in (
        ("member", "read committed", "42501"),
        ("inserts", "read committed", None),
        ("inserts", "repeatable read", "40001"),
    ):
        admin.execute("select pgq.restrict_queue(%s, false)", [queue])
        admin.commit()
        session = session_of(name)
        session.execute(f"begin isolation level {snapshot}".encode())
        session.execute("select from pgq.queue")
        admin.execute("select pgq.restrict_queue(%s)", [queue])
        done = calls.blocked(ops.value, session, f"select pgq.{call}", queue)
        admin.commit()
        if sqlstate is None:
            assert done.result()
        else:
            with ops.refused(sqlstate):
                done.result()
        session.rollback()


def test_explain_tells_no_content_of_what_is_hidden(
    conn: Connection, session_of: Callable[[str], Connection], named: dict[str, object]
) -> None:
    """Neither rows that are counted before they are hidden, nor estimates: a guess that is right
    has the plan of one that is wrong."""
    conn.execute("select pgq_task.create_queue('tasks'), pgq_task.push('tasks', '{}')")
    conn.execute("select pgq_task.restrict_queue('tasks')")
    conn.execute("update pgq_task.task set order_key = 'right', unique_key = 'right'")
    conn.execute("update pgq._dead_letter set ev_type = 'right'")
    conn.execute("update pgq._parked_key set parked_key = 'right'")
    conn.execute("update pgq._parked_event set ev_type = 'right'")
    conn.execute("update pgq.event set ev_type = 'right'")
    conn.execute("update pgq.consumer_failure set cf_error = e'right\\n\\nright'")
    conn.execute("analyze")
    for name in ("reader", "elsewhere", "consumes_other"):
        session = session_of(name)
        for scan in ("on", "off"):
            session.execute(f"set enable_seqscan = {scan}; set enable_bitmapscan = {scan}".encode())
            for relation, column in (
                ("pgq.event_template", "ev_type"),
                ("pgq.dead_letter", "ev_type"),
                ("pgq.parked_key", "parked_key"),
                ("pgq.parked_event", "ev_type"),
                ("pgq.failing_consumer", "error"),
                ("pgq.failing_consumer", "traceback"),
                ("pgq_task.tasks", "order_key"),
                ("pgq_task.tasks", "unique_key"),
            ):
                if name == "consumes_other" and relation == "pgq.event_template":
                    continue  # It may read these.
                right, wrong = (
                    str(
                        session.execute(
                            "explain (analyze, buffers off, timing off, summary off)"
                            f" select from {relation} where {column} = '{guess}'".encode()
                        ).fetchall()
                    ).replace(f"'{guess}'", "")
                    for guess in ("right", "wrong")
                )
                assert right == wrong, relation
                assert session.execute(f"select from {relation}".encode()).fetchall() == []


def test_while_all_queues_are_open_conditions_use_indexes(
    conn: Connection, session_of: Callable[[str], Connection]
) -> None:
    session = session_of("reader")
    session.execute("set enable_seqscan = off; set enable_bitmapscan = off")
    plan = "explain select from pgq_task.tasks where queue = 'tasks' and unique_key = 'a'"
    conn.execute("select pgq_task.create_queue('tasks')")
    for restricted in (False, True, False):
        conn.execute("select pgq_task.restrict_queue('tasks', %s)", [restricted])
        found = str(session.execute(plan.encode()).fetchall())
        assert bool(re.search("Index Cond: [^,]*unique_key = 'a'", found)) != restricted, found


def test_a_group_and_a_consumer_named_like_its_partition_have_letters_of_their_own(
    conn: Connection, session_of: Callable[[str], Connection], named: dict[str, object]
) -> None:
    conn.execute("select pgq.restrict_queue('closed', false)")
    mine: LiteralString = "select dl_reason from pgq.dead_letter where dl_consumer = 'c#0'"
    for name in ("c#0", "g"):
        conn.execute(
            "select pgq.grant_queue('closed', '{consume}', %s, %s)", [role("member"), name]
        )
    # Of the group "c", and then of a consumer when the group is gone.
    conn.execute("select pgq.give_up_parked('closed', 'c', parked_key) from pgq.parked_key")
    conn.execute("select pgq.drop_group('closed', 'c', true)")
    ops.register(conn, Q, "c#0")
    ops.insert_ticked(conn, Q, "x")
    batch = ops.next_batch(conn, Q, "c#0")
    conn.execute(
        "select pgq.event_dead_letter(%s, ev_id, 'the consumer') from pgq.get_batch_events(%s)",
        [batch, batch],
    )
    conn.execute("select pgq.restrict_queue('closed')")
    assert session_of("member").execute(mine).fetchall() == [("the consumer",)]
    assert session_of("consumes_c").execute(mine).fetchall() == [("a private failure",)]
    letters = conn.execute(
        "select array_agg(dl_id order by dl_id) from pgq.dead_letter where dl_consumer = 'c#0'"
    ).fetchall()[0][0]
    replay: LiteralString = "select pgq.replay_dead_letters(array[%s::bigint])"
    with ops.refused("PQ002"):
        session_of("consumes_c").execute(replay, [letters[0]])
    refused(lambda: session_of("consumes_c").execute(replay, [letters[1]]))
    assert ops.value(session_of("member"), replay, letters[1]) == 1


def test_rights_stay_when_a_queue_is_dropped_and_created(
    conn: Connection, session_of: Callable[[str], Connection]
) -> None:
    conn.execute("select pgq.restrict_queue('closed'), pgq.drop_queue('closed')")
    # Its tables have no grants when another queue gets them.
    conn.execute("select pgq.create_queue('next')")
    inserts = session_of("inserts")
    table = ops.value(conn, "select pgq.current_event_table('next')")
    for name in GRANTS:
        for action in ("insert", "select"):
            has: LiteralString = "select has_any_column_privilege(%s, %s, %s)"
            assert ops.value(conn, has, role(name), table, action), "as pgq_writer, pgq_reader"
            conn.execute("select pgq.restrict_queue('next')")
            assert not ops.value(conn, has, role(name), table, action)
            conn.execute("select pgq.restrict_queue('next', false)")
    conn.execute("select pgq.create_queue('closed')")
    inserts.execute(INSERT)
    inserts.execute("select pgq.insert_event('closed', 't', 'x')")
    refused(lambda: session_of("member").execute(INSERT))
    refused(lambda: session_of("member").execute("select pgq.insert_event('closed', 't', 'x')"))
    conn.execute("select pgq.restrict_queue('closed', false)")
    session_of("member").execute("select pgq.insert_event('closed', 't', 'x')")


def test_an_administrator_of_a_queue_drops_it_by_force(
    conn: Connection, queue: str, make_role: MakeRole, as_role: AsRole
) -> None:
    """The role need not be a pgq_writer. Captured tables are released by their owners."""
    name = make_role("administering", "pgq_reader")
    caller = as_role(name)
    with ops.refused("42501", "may not administer") as refusal:
        caller.execute("select pgq.drop_queue(%s, true)", [queue])
    assert "restricted" not in str(refusal.value.diag.message_hint)
    conn.execute("select pgq.grant_queue(%s, '{admin}', %s)", [queue, name])
    conn.execute("create table kept (id int primary key)")
    conn.execute("select pgq.capture_table('kept', %s)", [queue])
    with ops.refused("PQ007", "kept of postgres"):
        caller.execute("select pgq.drop_queue(%s, true)", [queue])
    conn.execute("select pgq.release_table('kept')")
    caller.execute("select pgq.drop_queue(%s, true)", [queue])


@pytest.mark.parametrize(
    "name", ["a.b", 'quote"', "x" * 59, "x" * 60, "ä" * 40, "queue", "event_1_id_seq", " "]
)
@pytest.mark.one_database
def test_queues_of_any_name_can_be_restricted(conn: Connection, name: str) -> None:
    conn.execute("select pgq.create_queue(%s)", [name])
    for restricted in (True, True, False, True):
        conn.execute("select pgq.restrict_queue(%s, %s)", [name, restricted])
        ops.insert(conn, name, "x")
        conn.execute(
            f"insert into {ops.value(conn, 'select pgq.queue_relation(%s)', name)}"
            " (ev_type) values ('y')".encode()
        )
        assert not restricted or not ops.value(
            conn, "select to_regclass('pgq_ids.' || quote_ident(%s)) is not null", name
        )
    conn.execute("select pgq.drop_queue(%s)", [name])
    assert ops.value(conn, "select to_regclass('pgq_slots.' || quote_ident(%s))", name) is None


def test_a_consumer_acts_on_no_other(
    conn: Connection, session_of: Callable[[str], Connection], named: dict[str, object]
) -> None:
    """Whichever name or number it gives."""
    other, mine = session_of("consumes_other"), session_of("consumes_c")
    own = ops.next_batch(other, Q, "other")
    attempts: tuple[LiteralString, ...] = (
        "select pgq.finish_batch(%(batch)s)",
        "select pgq.finish_group_batch(%(group_batch)s, %(generation)s)",
        "select pgq.next_group_batch(%(member)s, 1)",
        "select pgq.start_row_count('closed', 'c', 'pgq.tick', 1, txid_current_snapshot())",
        "select pgq.register_consumer('closed', 'third')",
        "select pgq.register_consumer('closed', 'c#0')",
        "select pgq.next_batch('closed', 'c#0')",
        "select pgq_coop.register_subconsumer('closed', 'c', 'm')",
        "select pgq.create_group('closed', 'third', 1, 'ev_type')",
        "select pgq.replay_dead_letters(array[%(letter)s])",
    )
    for attempt in attempts:
        refused(lambda attempt=attempt: other.execute(attempt, named))  # type: ignore[misc]
    # The name of a member or a partition is not that of its consumer.
    conn.execute("select pgq_coop.register_subconsumer('closed', 'other', 'x')")
    for name in ("other.x", "c#0"):
        conn.execute(
            "select pgq.grant_queue('closed', '{consume}', %s, %s)", [role("member"), name]
        )
    member = session_of("member")
    for call in (
        "pgq.unregister_consumer('closed', 'other.x')",
        "pgq_coop.register_subconsumer('closed', 'other.x', 'y')",
        "pgq.register_consumer_at('closed', 'c#0', 1)",
        "pgq.next_batch('closed', 'c#0')",
    ):
        refused(lambda call=call: member.execute(f"select {call}".encode()))  # type: ignore[misc]
    assert ops.value(other, "select pgq.finish_batch(%s)", own) == 1
    # A group gives up no other key's events, whatever their numbers.
    conn.execute("select pgq.create_group('closed', 'other', 1, 'ev_type', i_tick_id => 1)")
    joined = ops.value(other, "select member_id from pgq.join_group('closed', 'other', 'w')")
    [(batch, generation, event)] = other.execute(
        "select b.batch_id, b.generation, e.ev_id from pgq.next_group_batch(%s, null) b,"
        " pgq.group_batch_keys(b.batch_id) e limit 1",
        [joined],
    ).fetchall()
    other.execute(
        "select pgq.finish_group_batch(%s, %s, array[%s], '{bad}', '{0}')",
        [batch, generation, event],
    )
    parked = ops.value(
        conn,
        "select parked_id from pgq.parked_key join pgq.consumer_group on group_id = parked_group"
        " where group_name = 'other'",
    )
    foreign = ops.value(
        conn, "select pe_id from pgq.parked_event where pe_key = %s", named["parked"]
    )
    with ops.refused("PQ035"):
        other.execute(
            "select pgq.finish_parked(%s, %s, '{}', i_given_up => array[%s], i_reasons => '{x}',"
            " i_tracebacks => '{x}')",
            [parked, generation, foreign],
        )
    assert ops.value(mine, "select pgq.replay_dead_letters(array[%s])", named["letter"]) == 0
    # The roles in a registration are those of this cluster if their names fit.
    stale, right = "another", role("member")
    for known, may in (([stale], False), ([right], True), ([stale, right], True)):
        conn.execute(
            "update pgq.registration set reg_roles ="
            " (select array_agg(%s::regrole::oid || ' ' || name) from unnest(%s::text[]) name)"
            " where sub_consumer = (select co_id from pgq.consumer where co_name = 'other')",
            [role("member"), known],
        )
        if may:
            member.execute("select pgq.next_batch('closed', 'other')")
        else:
            refused(lambda: member.execute("select pgq.next_batch('closed', 'other')"))


def test_a_dead_letter_that_comes_while_rights_are_checked_is_left_alone(
    conn: Connection, connect: Connect, calls: Calls, session_of: Callable[[str], Connection]
) -> None:
    letter: LiteralString = (
        "insert into pgq._dead_letter"
        " (dl_queue, dl_consumer, dl_batch, dl_attempts, dl_reason, ev_id, ev_time, ev_data)"
        " values ('closed', %s, 1, 1, 'bad', %s, now(), '{}') returning dl_id"
    )
    ops.register(conn, Q, "other")
    ops.register(conn, Q, "c")
    session = session_of("consumes_other")
    holder = connect(autocommit=False)
    for event, call in enumerate(
        ("purge_dead_letters(%s", "replay_dead_letters(%s", "replay_dead_letters_patched(%s, '{}'")
    ):
        mine = ops.value(conn, letter, "other", event)
        holder.execute("lock table pgq.queue_grant in access exclusive mode")
        acting = calls.blocked(ops.value, session, f"select pgq.{call})", [mine, mine + 1])
        assert ops.value(conn, letter, "c", event) == mine + 1
        holder.rollback()
        assert acting.result(PATIENCE) == 1
        assert ops.value(conn, "select max(dl_id) from pgq.dead_letter") == mine + 1


def test_no_consumer_opens_a_batch_that_another_has(
    conn: Connection, connect: Connect, session_of: Callable[[str], Connection]
) -> None:
    """By its number, while it does not see it: then the other could not finish it."""
    ops.register(conn, Q, "c")
    ops.register(conn, Q, "other")
    ops.insert_ticked(conn, Q, "x")
    member = session_of("consumes_other")
    (begin, began), (end, ended) = conn.execute(
        "select tick_id, tick_time from pgq.tick join pgq.queue on queue_id = tick_queue"
        " where queue_name = %s order by tick_id",
        [Q],
    ).fetchall()[:2]
    reopen: LiteralString = "select pgq.reopen_batch(%s, 'other', %s, %s, %s, %s, %s)"
    owner = connect(autocommit=False)
    batch = ops.next_batch(owner, Q, "c")
    for level in ("read committed", "repeatable read"):
        member.execute(f"begin isolation level {level}".encode())
        member.execute("select from pgq.queue")
        if level == "repeatable read":
            owner.commit()
        with ops.refused("PQ043"):
            member.execute(reopen, [Q, batch, begin, began, end, ended])
        member.rollback()
    # Its own, which it has lost, however long ago.
    own = ops.next_batch(member, Q, "other")
    ops.value(member, "select pgq.register_consumer_at(%s, 'other', %s)", Q, begin)
    ops.rotate_logs(conn)
    ops.rotate_logs(conn)
    assert ops.value(member, reopen, Q, own, begin, began, end, ended) is True
    assert ops.next_batch(member, Q, "other") == own
    assert ops.value(owner, "select pgq.finish_batch(%s)", batch) == 1


def test_the_rights_are_those_of_the_current_role(
    conn: Connection, session_of: Callable[[str], Connection]
) -> None:
    conn.execute("select pgq.restrict_queue('closed')")
    call: LiteralString = "select pgq.insert_event('closed', 't', 'x')"
    conn.execute(f"grant {role('inserts')} to {role('member')}".encode())
    member = session_of("member")
    member.execute(call)
    conn.execute(f"grant {role('reads')} to {role('member')}".encode())
    member.execute(f"set role {role('reads')}".encode())
    refused(lambda: member.execute(call))
    refused(lambda: member.execute(INSERT))
    # A function of a role that may does not give its right to others by our functions.
    conn.execute(
        "create function public.lend() returns bigint language sql security definer return"
        " pgq.insert_event('closed', 't', 'x')"
    )
    conn.execute(f"alter function public.lend() owner to {role('inserts')}".encode())
    reads = session_of("reads")
    refused(lambda: reads.execute("select public.lend()"))
    # By a statement that PostgreSQL checks it does, as in any such function.
    conn.execute(
        "create or replace function public.lend() returns bigint language sql security definer"
        " begin atomic insert into pgq_queue.closed (ev_type) values ('x'); select 1; end"
    )
    assert ops.value(reads, "select public.lend()") == 1
    conn.execute("drop function public.lend()")


def test_maintenance_by_a_superuser_opens_nothing_to_the_owner_of_a_table(
    conn: Connection, session_of: Callable[[str], Connection], named: dict[str, object]
) -> None:
    conn.execute(f"create schema thief authorization {role('member')}".encode())
    thief = session_of("member")
    thief.execute("create table thief.bait (n int); insert into thief.bait values (1)")
    thief.execute("create table thief.loot (what text)")
    calls: tuple[LiteralString, ...] = (
        "pgq.insert_event('closed', 't', 'x')",
        "pgq.next_batch('closed', 'c')",
        "pgq.finish_batch({batch})",
        "pgq.restrict_queue('closed', false)",
        "(select ev_data from pgq.get_delayed_events('closed') limit 1)",
        "(select ev_data from pgq_queue.closed limit 1)",
        "(select dl_reason from pgq.dead_letter limit 1)",
    )
    tries = "".join(
        f" begin insert into thief.loot values (concat({call.format(**named)}, ''));"
        " exception when insufficient_privilege then null; end;"
        for call in calls
    )
    thief.execute(
        "create function thief.trap(n int) returns int language plpgsql immutable as $$ begin"
        f" if session_user <> '{role('member')}' then perform thief.take(); end if;"
        " return n; end $$;"
        " create function thief.take() returns void language plpgsql as $$ begin"
        f" insert into thief.loot values ('');{tries} end $$".encode()
    )
    thief.execute("create index on thief.bait (thief.trap(n))")
    thief.execute("create materialized view thief.seen as select thief.trap(n) from thief.bait")
    for maintenance in (
        "analyze thief.bait",
        "reindex table thief.bait",
        "refresh materialized view thief.seen",
    ):
        thief.execute("truncate thief.loot")
        conn.execute(maintenance)
        assert conn.execute("select distinct what from thief.loot").fetchall() == [("",)]
    conn.execute("drop schema thief cascade")


def test_a_captured_table_writes_with_the_right_of_its_owner(
    conn: Connection, session_of: Callable[[str], Connection]
) -> None:
    conn.execute("select pgq.restrict_queue('closed')")
    conn.execute(f"create schema shop authorization {role('inserts')}".encode())
    owner, writer = session_of("inserts"), session_of("member")
    owner.execute("create table shop.item (id int primary key)")
    owner.execute("select pgq.capture_table('shop.item', 'closed')")
    writer.execute("create temp table item (id int)")
    text = refused(lambda: writer.execute("select pgq.capture_table('item', 'closed')"))
    assert "may not insert into queue 'closed'" in text
    owner.execute("grant usage on schema shop to public; grant all on shop.item to public")
    for guarded in (False, True):
        if guarded:
            conn.execute("select pgq.set_queue_config('closed', 'per_tx_limit', '9')")
        writer.execute("insert into shop.item values (1)")
        writer.execute("truncate shop.item")
    assert ops.value(conn, "select count(*) from pgq_queue.closed") == 4
    refused(lambda: writer.execute("select pgq.insert_event('closed', 't', 'x')"))
    conn.execute("drop schema shop cascade")


def test_no_session_that_notes_an_action_makes_others_wait(
    conn: Connection, connect: Connect, session_of: Callable[[str], Connection]
) -> None:
    """Each removes notes that are too old."""
    conn.execute("select pgq.log_action('old')")
    conn.execute("update pgq.action_log set al_time = now() - interval '91 days'")
    reader = session_of("reader")
    reader.execute("begin")
    reader.execute("select pgq.log_action('nothing')")
    other = connect()
    other.execute("set lock_timeout = '1s'")
    other.execute("select pgq.log_action('replay')")
    reader.rollback()
    other.execute("select pgq.log_action('replay')")
    assert ops.value(conn, "select array_agg(al_action) from pgq.action_log") == ["replay"] * 2


def test_grants_are_listed_and_bad_ones_refused(conn: Connection, roles: list[str]) -> None:
    conn.execute("select pgq.grant_queue('closed', '{consume,read}', 'pgq_reader', 'a')")
    conn.execute("select pgq.restrict_queue('open')")
    found = conn.execute(
        "select queue_name, restricted, consumer, actions from pgq.get_queue_grants()"
        " where role = 'pgq_reader' or role like '%elsewhere'"
    ).fetchall()
    assert found == [
        (Q, False, None, ["read"]),
        (Q, False, "a", ["consume"]),
        (OPEN, True, None, sorted(ALL)),
    ]
    conn.execute("select pgq.revoke_queue('closed', '{consume,read}', 'pgq_reader')")
    mine: LiteralString = "select count(*) from pgq.get_queue_grants() where role = 'pgq_reader'"
    assert ops.value(conn, mine) == 0
    bad: dict[LiteralString, str] = {
        "select pgq.grant_queue('closed', '{fly}', 'pgq_reader')": "PQ011",
        "select pgq.grant_queue('closed', '{}', 'pgq_reader')": "PQ011",
        "select pgq.grant_queue('closed', null, 'pgq_reader')": "PQ011",
        "select pgq.grant_queue('closed', '{read}', 'nobody_at_all')": "PQ011",
        "select pgq.grant_queue('closed', '{read}', null)": "PQ011",
        "select pgq.grant_queue('closed', '{read}', 'pgq_owner')": "PQ011",
        "select pgq.revoke_queue('closed', '{insert}', 'pgq_owner')": "PQ011",
        "select pgq.grant_queue('closed', '{read}', 'pgq_reader', 'c')": "PQ011",
        "select pgq.grant_queue('closed', '{consume}', 'pgq_reader', '')": "PQ003",
        "select pgq.revoke_queue('closed', '{fly}', 'pgq_reader')": "PQ011",
        "select pgq.grant_queue('none', '{read}', 'pgq_reader')": "PQ001",
        "select pgq.restrict_queue('none')": "PQ001",
        "select pgq.restrict_queue('closed', null)": "PQ011",
        "select pgq.get_queue_grants('none')": "PQ001",
    }
    for call, sqlstate in bad.items():
        with ops.refused(sqlstate):
            conn.execute(call)
    with pytest.raises(errors.DependentObjectsStillExist):
        conn.execute(f"drop role {role('reads')}".encode())
