"""Maintenance runs with the ticker's rights, often a superuser's. What other roles have put in its
way is not run, is said, and stops nothing else.
"""

from __future__ import annotations

import json
import re
from typing import LiteralString

import pytest
from psycopg import errors

from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import AsRole, Connect, Connection, MakeRole
from tests.fixtures.fix_ticker import StartTicker, eventually

Operations = list[tuple[str, str | None]]

EVIL_NODE = """
create schema {schema};
create function {schema}.evil() returns text language plpgsql as $$ begin
    insert into public.ran values (current_user);
    return 'root';
end $$;
create function {schema}.{function} returns int language sql as $$ select 1 from {schema}.evil() $$;
create view {schema}.node_info as select 'q'::text as queue_name, {schema}.evil() as node_type;
"""


EVIL = "language sql as $$ insert into public.ran values (current_user) returning {} $$"
WATERMARK = "create function pgq_node.maint_watermark(text) returns int language sql as 'select 0'"


@pytest.fixture
def attacker(conn: Connection, make_role: MakeRole, as_role: AsRole) -> Connection:
    """A role that may create schemas in the database, and nothing else. `public.ran` says which
    roles ran its code."""
    conn.execute("create table public.ran (actor text)")
    conn.execute("grant insert on public.ran to public")
    role = make_role("attacker")
    conn.execute(f"grant create on database {conn.info.dbname} to {role}".encode())
    return as_role(role)


def listed(conn: Connection) -> Operations:
    return conn.execute("select * from pgq.maint_operations()").fetchall()


def refused(conn: Connection) -> list[str]:
    return [str(argument) for name, argument in listed(conn) if name == "pgq.maint_refused"]


def run_all(conn: Connection) -> None:
    """The work of a ticker, as the role of this connection."""
    for name, argument in listed(conn):
        if name == "vacuum":
            conn.execute(f"vacuum {argument}".encode())
        elif name == "pgq.maint_refused":
            with pytest.raises(errors.ObjectNotInPrerequisiteState):
                conn.execute("select pgq.maint_refused(%s)", [argument])
        else:
            given = "" if argument is None else "%s"
            conn.execute(f"select {name}({given})".encode(), [argument] if given else [])


def ran(conn: Connection) -> list[tuple[str]]:
    return conn.execute("select actor from public.ran").fetchall()


def name_extra(conn: Connection, queue: str, *functions: str) -> None:
    conn.execute(
        "update pgq.queue set queue_extra_maint = %s where queue_name = %s",
        [list(functions), queue],
    )


@pytest.mark.parametrize(
    ("schema", "function", "arguments"),
    [
        ("pgq_node", "maint_watermark", "(text)"),
        ("londiste", "root_check_seqs", "(text)"),
        ("londiste", "periodic_maintenance", "()"),
    ],
)
def test_a_schema_that_any_role_has_made_is_not_run_but_named(
    conn: Connection, attacker: Connection, schema: str, function: str, arguments: str
) -> None:
    attacker.execute(EVIL_NODE.format(schema=schema, function=function + arguments).encode())
    run_all(conn)
    assert ran(conn) == []
    (reason,) = refused(conn)
    assert reason.startswith(f"{schema}.{function}: ")


def test_a_view_in_a_schema_that_others_may_write_into_is_not_read(
    conn: Connection, attacker: Connection
) -> None:
    conn.execute("create schema pgq_node")
    conn.execute("grant create, usage on schema pgq_node to test_attacker")
    conn.execute(WATERMARK)
    attacker.execute(
        "create function pgq_node.evil() returns text " + EVIL.format("'root'") + ";"
        "create view pgq_node.node_info as select 'q'::text queue_name, pgq_node.evil() node_type"
    )
    run_all(conn)
    assert ran(conn) == []
    (reason,) = refused(conn)
    assert "its schema lets create test_attacker" in reason


def test_a_part_of_the_family_that_cannot_be_read_stops_nothing_else(
    conn: Connection, as_role: AsRole, queue: str
) -> None:
    conn.execute("create schema pgq_node")
    conn.execute("create table pgq_node.node_info (queue_name text, node_type text)")
    conn.execute(WATERMARK)
    conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '0 seconds')", [queue])
    admin = as_role("pgq_admin")
    assert ("pgq.maint_rotate_tables_step1", queue) in listed(admin)
    (reason,) = refused(admin)
    assert reason == "pgq_node.maint_watermark: permission denied for schema pgq_node"


def test_a_part_of_the_family_that_a_superuser_installed_is_served(
    conn: Connection, as_role: AsRole, queue: str
) -> None:
    conn.execute("create schema pgq_node")
    conn.execute("grant usage on schema pgq_node to public")
    conn.execute("create table pgq_node.node_info (queue_name text, node_type text)")
    conn.execute("grant select on pgq_node.node_info to pgq_admin")
    conn.execute("insert into pgq_node.node_info values ('a', 'root'), ('b', 'branch')")
    conn.execute(WATERMARK)
    admin = as_role("pgq_admin")
    for session in (conn, admin):
        assert ("pgq_node.maint_watermark", "a") in listed(session)
        assert ("pgq_node.maint_watermark", "b") not in listed(session)
        assert refused(session) == []


def test_an_admin_cannot_make_a_superuser_run_a_function_of_his_own(
    conn: Connection, attacker: Connection, queue: str
) -> None:
    conn.execute("grant pgq_admin to test_attacker")
    attacker.execute("create schema mine")
    attacker.execute("create function mine.evil(text) returns int " + EVIL.format(1))
    name_extra(conn, queue, "mine.evil", "pg_catalog.lower")
    run_all(conn)
    assert ran(conn) == []
    # Last, for tickers that do not go on after an operation that fails.
    assert listed(conn)[-1][0] == "pgq.maint_refused"
    (reason,) = refused(conn)
    assert reason.startswith(f"mine.evil of queue '{queue}': mine.evil could make postgres do")
    assert "it belongs to test_attacker" in reason
    # As that admin there is nothing to gain by it.
    run_all(attacker)
    assert ran(conn) == [("test_attacker",)]


def test_an_admin_does_not_choose_what_the_ticker_calls_with_a_text_of_his_own(
    conn: Connection, attacker: Connection
) -> None:
    """Also functions of PostgreSQL's run what they are given: ts_stat() a query, and a queue's name
    may be one."""
    conn.execute("grant pgq_admin to test_attacker")
    attacker.execute("create schema mine")
    attacker.execute("create function mine.evil() returns tsvector " + EVIL.format("''::tsvector"))
    attacker.execute("select pgq.create_queue('select mine.evil()')")
    with pytest.raises(errors.InsufficientPrivilege):
        name_extra(attacker, "select mine.evil()", "pg_catalog.ts_stat")
    run_all(conn)
    assert ran(conn) == []


@pytest.mark.parametrize(
    "planted",
    [
        "create function shared.job(varchar) returns int return shared.evil($1)::int",
        "create function shared.job(anyelement) returns int language sql as 'select 1'",
        "create function shared.job(text, int default 1) returns int return shared.evil($1)::int",
        "create domain shared.job as text check (shared.evil(value))",
    ],
)
def test_all_that_a_functions_name_may_mean_counts(
    conn: Connection, attacker: Connection, queue: str, planted: str
) -> None:
    """Created while the schema still let him."""
    conn.execute("create schema shared")
    conn.execute("grant create, usage on schema shared to test_attacker")
    attacker.execute("create function shared.evil(text) returns bool " + EVIL.format(True))
    attacker.execute(planted)
    conn.execute("revoke create on schema shared from test_attacker")
    if "domain" in planted:
        conn.execute("create function shared.job(text) returns int return 1")
    name_extra(conn, queue, "shared.job")
    run_all(conn)
    assert ran(conn) == []
    (reason,) = refused(conn)
    assert "it belongs to test_attacker" in reason


def test_a_role_that_may_act_as_the_tickers_is_trusted_by_it(
    conn: Connection, as_role: AsRole, attacker: Connection, queue: str
) -> None:
    """An application's role that runs the ticker itself, by a role which it is a member of."""
    conn.execute("grant pgq_admin to test_attacker")
    attacker.execute("create schema mine")
    attacker.execute("grant usage on schema mine to public")
    attacker.execute("create function mine.job(text) returns int language sql as 'select 1'")
    name_extra(conn, queue, "mine.job")
    admin = as_role("pgq_admin")
    assert ("mine.job", queue) in listed(admin)
    conn.execute("revoke pgq_admin from test_attacker")
    assert ("mine.job", queue) not in listed(admin)
    assert len(refused(admin)) == 1


def test_the_schema_of_a_function_counts_as_its_owner_does(
    conn: Connection, attacker: Connection, queue: str
) -> None:
    """Its owner may drop the function between the list and the call, and put another one there. A
    type with the function's name turns the call into a cast, which runs the checks of a domain."""
    job = "create function {}.job(text) returns int language sql as 'select 1'"
    attacker.execute("create schema mine")
    conn.execute(job.format("mine").encode())
    conn.execute("create schema shared")
    conn.execute("grant create, usage on schema shared to test_attacker")
    conn.execute(job.format("shared").encode())
    attacker.execute("create function shared.evil(text) returns bool " + EVIL.format(True))
    attacker.execute("create domain shared.job as text check (shared.evil(value))")
    name_extra(conn, queue, "mine.job", "shared.job")
    run_all(conn)
    assert ran(conn) == []
    mine, shared = refused(conn)
    assert "its schema belongs to test_attacker" in mine
    assert "its schema lets create test_attacker" in shared


@pytest.mark.one_database
@pytest.mark.parametrize(
    "name",
    ["public.missing", "missing", "missing.f", "public.f(x)", "f'); drop table public.ran; --"],
)
def test_a_name_that_only_trusted_roles_could_give_a_meaning_is_listed_as_it_is(
    conn: Connection, queue: str, name: str
) -> None:
    """PgQ does so too; its tickers report it when they run it."""
    name_extra(conn, queue, name, "pg_catalog.lower")
    assert (name, queue) in listed(conn)
    assert ("pg_catalog.lower", queue) in listed(conn)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        # Between the list and the call there is time to create it.
        ("missing.f", "create schema missing"),
        # PgQ's ticker takes a name as it is, up to the first dot.
        ('"Odd".f', 'create schema """Odd"""'),
        ("Trusted.f", 'create schema "Trusted"'),
        ("'.f; x", 'create schema "\'"'),
        # The database's name may stand before it.
        ("{database}.mine.f", "create schema mine"),
    ],
)
def test_a_name_that_others_could_give_a_meaning_is_refused(
    conn: Connection, attacker: Connection, queue: str, name: str, code: str
) -> None:
    function = "create function {}.f(text) returns int language sql as 'select 1'"
    for schema in ('"Odd"', "trusted"):
        conn.execute(f"create schema {schema}".encode())
        conn.execute(function.format(schema).encode())
    name_extra(conn, queue, name.format(database=conn.info.dbname), "pg_catalog.lower")
    for attack in ("select 'nothing yet'", code):
        attacker.execute(attack.encode())
        assert len(refused(conn)) == 1
        assert ("pg_catalog.lower", queue) in listed(conn)


@pytest.mark.any_pg
def test_a_function_without_schema_is_not_looked_for_on_the_tickers_search_path(
    start_ticker: StartTicker, dsn: str, conn: Connection, attacker: Connection, queue: str
) -> None:
    attacker.execute("create schema mine")
    attacker.execute("create function mine.job(text) returns int " + EVIL.format(1))
    database = conn.info.dbname
    conn.execute(f"alter database {database} set search_path = mine, public".encode())
    name_extra(conn, queue, "job")
    daemon = start_ticker(dsn, maintenance_period=0.05)
    line = daemon.hear("maintenance failed", operation="job")
    assert "public.job" in line["message"]
    assert daemon.stop() == 0
    assert ran(conn) == []


@pytest.mark.any_pg
def test_no_operator_on_the_search_path_is_called_by_the_tickers_own_queries(
    start_ticker: StartTicker, dsn: str, conn: Connection, connect: Connect, attacker: Connection
) -> None:
    """One for text and int fits better than PostgreSQL's, which is for text and anything."""
    conn.execute("grant create on schema public to test_attacker")
    attacker.execute(
        "create function public.joined(text, int) returns text language sql as"
        " $$ insert into public.ran values (current_user) returning 'x' $$;"
        "create operator public.|| (function = public.joined, leftarg = text, rightarg = int)"
    )
    writer = connect(dsn, autocommit=False)
    writer.execute("select txid_current()")
    daemon = start_ticker(dsn, old_transaction=0.001, observe_period=0.05)
    daemon.hear("an old transaction holds up")
    assert daemon.stop() == 0
    assert ran(conn) == []


@pytest.mark.any_pg
def test_the_ticker_runs_nothing_of_a_schema_pgq_that_another_role_has_made(
    start_ticker: StartTicker, empty_dsn: str, connect: Connect
) -> None:
    """Made where pgqpy is not installed yet, and a ticker waits for it."""
    conn = connect(empty_dsn)
    conn.execute("create table public.ran (actor text)")
    conn.execute("create role test_planter")
    conn.execute("create schema pgq authorization test_planter")
    conn.execute("grant insert on public.ran to public")
    conn.execute("set role test_planter")
    conn.execute(
        "create function pgq.ticker_round(boolean, integer, integer[], bigint[]) returns int"
        " language sql as $$ insert into public.ran values (current_user) returning 1 $$"
    )
    conn.execute("reset role")
    daemon = start_ticker(empty_dsn)
    daemon.hear("the schema pgq belongs to role test_planter", level="warning")
    assert daemon.stop() == 0
    assert ran(conn) == []
    conn.execute("drop owned by test_planter cascade")
    conn.execute("drop role test_planter")


@pytest.mark.any_pg
def test_what_any_role_can_plant_is_shown_but_makes_no_ticker_unhealthy(
    conn: Connection, attacker: Connection, start_ticker: StartTicker, queue: str, cli: Cli
) -> None:
    """A superuser's ticker, which runs none of it."""
    conn.execute("select pgq.set_queue_config(%s, 'rotation_period', '1 millisecond')", [queue])
    attacker.execute(EVIL_NODE.format(schema="pgq_node", function="maint_watermark(text)").encode())
    daemon = start_ticker(
        cli.dsn,
        top='http = "127.0.0.1:0"',
        maintenance_period=0.05,
        # A rotation that waits for a session that gets no processor time has not failed.
        maintenance_lock_timeout=60,
    )
    line = daemon.hear("maintenance does not run pgq_node.maint_watermark")
    assert line["level"] == "warning"
    assert "test_attacker" in line["message"]
    eventually(conn, "select queue_rotations > 2 from pgq.queue where queue_name = %s", queue)
    eventually(conn, "select count(*) = 1 from pgq.ticker_failure")
    status, body = daemon.get("/healthz")
    [report] = json.loads(body)["databases"].values()
    assert (status, report["healthy"]) == (200, True)
    assert "failing" not in report
    [reason] = report["refused"]
    assert "test_attacker" in reason
    metrics = daemon.get("/metrics")[1]
    assert re.search(r"^pgqpy_ticker_refused_operations\{.*\} 1.0$", metrics, re.MULTILINE)
    assert "maint_refused" not in metrics
    [alert] = [each for each in cli.json("status")["alerts"] if "pgq_node" in each["message"]]
    assert alert["message"].startswith("maintenance does not run pgq_node.maint_watermark: ")

    # A failing operation that is ours to run is reported as a failure beside it.
    conn.execute(
        "create function public.breaks(q text) returns int language plpgsql as"
        " $$ begin raise exception 'broken'; end $$"
    )
    name_extra(conn, queue, "public.breaks")
    daemon.hear("maintenance failed", operation="public.breaks")
    status, body = daemon.get("/healthz")
    [report] = json.loads(body)["databases"].values()
    assert (status, len(report["failing"]), report["refused"]) == (503, 1, [reason])

    name_extra(conn, queue)
    attacker.execute("drop schema pgq_node cascade")
    eventually(conn, "select count(*) = 0 from pgq.ticker_failure")
    assert "refused" not in daemon.get("/healthz")[1]
    assert len(daemon.said("maintenance does not run")) == 1
    assert ran(conn) == []


def test_any_number_of_staging_tables_takes_a_limited_number_of_locks(conn: Connection) -> None:
    for _ in range(105):
        conn.execute("select pgq.create_staging('job')")
    drop: LiteralString = "select pgq.maint_staging('0')"
    assert [conn.execute(drop).fetchall() for _ in range(3)] == [[(100,)], [(5,)], [(0,)]]
