"""Whatever goes wrong, the command line says what and what to do, and never shows a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqpy.embedded import Server
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_db import Connection

COMMANDS = [
    ("queue", "list"),
    ("queue", "create", "q"),
    ("queue", "show", "q"),
    ("queue", "config", "q"),
    ("queue", "drop", "q"),
    ("consumer", "list"),
    ("consumer", "register", "q", "c"),
    ("consumer", "seek", "q", "c", "--start"),
    ("consumer", "unregister", "q", "c"),
    ("event", "insert", "q", "t", "d"),
    ("event", "peek", "q"),
    ("capture", "list"),
    ("status",),
]
PLANTED = """
create function pgq.evil() returns text language sql as
    'insert into public.ran default values returning null::text';
create function pgq.get_queue_info() returns text language sql as 'select pgq.evil()';
create function pgq.get_queue_info(text) returns text language sql as 'select pgq.evil()';
create function pgq.get_consumer_info() returns text language sql as 'select pgq.evil()';
create function pgq.create_queue(text) returns text language sql as 'select pgq.evil()';
create function pgq.drop_queue(text, boolean) returns text language sql as 'select pgq.evil()';
create function pgq.insert_event(text, text, text) returns text language sql as
    'select pgq.evil()';
create function pgq.capture_info() returns text language sql as 'select pgq.evil()';
create function pgq.version() returns text language sql as 'select pgq.evil()';
create view pgq.queue as select pgq.evil() as queue_name;
"""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_is_called_in_a_schema_that_another_role_has_made(
    empty_cli: Cli, empty_dsn: str, command: tuple[str, ...]
) -> None:
    """Any role may make it that may create schemas, and the user may be a superuser."""
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("create role test_planter; create table ran (); grant insert on ran to public")
        conn.execute("create schema pgq authorization test_planter")
        try:
            conn.execute("set role test_planter")
            conn.execute(PLANTED)
            conn.execute("reset role")
            result = empty_cli(*command)
            assert result.exit_code != 0
            assert "schema pgq belongs to role test_planter" in result.stderr
            assert conn.execute("select from ran").fetchall() == []
        finally:
            conn.execute("reset role; drop owned by test_planter cascade; drop role test_planter")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_the_schema_every_command_says_to_migrate(
    empty_cli: Cli, command: tuple[str, ...]
) -> None:
    said = empty_cli.fails(*command)
    assert "no pgq schema" in said
    assert "pgqpy migrate --dsn" in said


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_server_that_is_not_there_is_named_without_the_password(
    cli: Cli, command: tuple[str, ...]
) -> None:
    said = cli.fails(*command, "--dsn", "postgresql://ann:secret@127.0.0.1:1/shop")
    assert 'cannot connect to 127.0.0.1:1, database "shop", user "ann"' in said
    assert "PGQPY_DSN" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("part", "remedy"),
    [("/nosuch?", "createdb"), ("unknown@", "createuser")],
    ids=["database", "role"],
)
def test_a_database_or_user_that_is_not_there_says_how_to_make_it(
    cli: Cli, server: Server, part: str, remedy: str
) -> None:
    dsn = server.dsn_of("nosuch") if "/" in part else server.dsn_of("postgres", "unknown")
    assert part in dsn
    assert remedy in cli.fails("queue", "list", "--dsn", dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:sec%zzret@localhost/shop",
        "postgresql://ann:secret@word@localhost/shop",
        "host=localhost secret",
    ],
)
def test_a_connection_string_that_cannot_be_read_is_not_quoted(cli: Cli, dsn: str) -> None:
    said = cli.fails("queue", "list", "--dsn", dsn)
    assert "connection string" in said
    assert "sec" not in said


def test_the_option_wins_over_the_environment_and_the_root_takes_it_too(
    cli: Cli, empty_dsn: str
) -> None:
    assert "no pgq schema" in cli.fails("queue", "list", "--dsn", empty_dsn)
    assert "no pgq schema" in cli.fails("--dsn", empty_dsn, "queue", "list")


def test_what_is_wrong_with_a_rewind_is_said_of_the_database_that_it_is_wrong_with(
    cli: Cli, queue: str, empty_dsn: str
) -> None:
    def fails(consumer: str, in_queue: str, target: str) -> str:
        return cli.fails("consumer", "rewind", in_queue, consumer, "--target-dsn", target)

    cli.ok("consumer", "register", queue, "copy")
    assert "'cpy' is not registered" in fails("cpy", queue, empty_dsn)
    assert "queue 'x' does not exist" in fails("copy", "x", empty_dsn)
    empty = conninfo_to_dict(empty_dsn)["dbname"]
    said = fails("copy", queue, empty_dsn)
    assert f'database "{empty}" has no pgq schema' in said
    assert f"/{empty}?" in said
    said = fails("copy", queue, make_conninfo(empty_dsn, dbname="nowhere"))
    assert 'database "nowhere" does not exist' in said
    assert "target_dsn" in said


@pytest.mark.parametrize(
    ("role", "command"),
    [
        ("pgq_admin", ("queue", "create", "other")),
        ("pgq_admin", ("queue", "drop", "test_queue")),
        ("pgq_reader", ("consumer", "register", "test_queue", "c")),
        ("pgq_writer", ("event", "insert", "test_queue", "t", "d")),
        ("pgq_reader", ("event", "peek", "test_queue")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_missing_right_names_the_role_and_granting_it_helps(
    cli: Cli, server: Server, conn: Connection, queue: str, role: str, command: tuple[str, ...]
) -> None:
    user = f'the "{conn.info.dbname}" user'
    conn.execute(sql.SQL("create role {} login").format(sql.Identifier(user)))
    try:
        dsn = server.dsn_of(conn.info.dbname, user)
        said = cli.fails(*command, "--dsn", dsn)
        quoted = user.replace('"', '""')
        assert f'grant {role} to "{quoted}"' in said
        conn.execute(sql.SQL("grant {} to {}").format(*map(sql.Identifier, (role, user))))
        cli.ok(*command, "--dsn", dsn)
    finally:
        conn.execute(sql.SQL("drop role {}").format(sql.Identifier(user)))


def test_anybody_may_ask_for_the_status(cli: Cli, server: Server, conn: Connection) -> None:
    user = f"{conn.info.dbname}_anybody"
    cli.ok("queue", "create", "flights")
    conn.execute(sql.SQL("create role {} login").format(sql.Identifier(user)))
    try:
        dsn = server.dsn_of(conn.info.dbname, user)
        assert cli.json("status", "--dsn", dsn)["queues"][0]["retry_events"] is None
    finally:
        conn.execute(sql.SQL("drop role {}").format(sql.Identifier(user)))


def test_debug_shows_the_traceback_before_the_error(cli: Cli) -> None:
    result = cli("--debug", "queue", "show", "nosuch")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-2].startswith("error: queue 'nosuch'")


@pytest.mark.parametrize(
    "words", [("nosuch",), ("queue", "nosuch"), ("queue", "create"), ("queue", "list", "--x")]
)
def test_wrong_usage_names_the_help_and_ends_with_2(cli: Cli, words: tuple[str, ...]) -> None:
    assert "--help" in cli.fails(*words, exit_code=2)


def test_control_characters_in_an_error_are_shown_as_escapes(cli: Cli) -> None:
    assert r"\x1b[31m" in cli.fails("queue", "show", "\x1b[31m")


def test_ctrl_c_ends_a_watch_quietly_with_130(cli: Cli, spawn: Spawn) -> None:
    cli.ok("queue", "create", "flights")
    watch = spawn("status", "--watch", "--json", "--every", "0.1")
    assert watch.stdout is not None
    assert "flights" in watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    _, complaints = watch.communicate()
    assert (watch.returncode, complaints) == (130, "")


def test_a_reader_that_goes_away_is_no_error_to_talk_about(cli: Cli, spawn: Spawn) -> None:
    cli.ok("queue", "create", "flights")
    watch = spawn("status", "--watch", "--every", "0.1")
    assert watch.stdout is not None
    assert watch.stdout.readline() != ""
    watch.stdout.close()
    watch.wait()
    assert watch.stderr is not None
    assert watch.stderr.read() == ""


def test_output_to_a_closed_pipe_is_not_reported_as_an_error(cli: Cli) -> None:
    cli.ok("queue", "create", "flights")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "pgqpy", "queue", "list"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert done.stderr == b""


def test_a_session_that_the_server_ends_is_called_lost(
    cli: Cli, conn: Connection, spawn: Spawn
) -> None:
    watch = spawn("status", "--watch", "--every", "0.1")
    assert watch.stdout is not None
    watch.stdout.readline()
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    _, complaints = watch.communicate()
    assert watch.returncode == 1
    assert complaints.startswith("error: ")
    assert "Traceback" not in complaints


def test_what_is_piped_has_no_colours_and_nothing_cut_off(cli: Cli, conn: Connection) -> None:
    name = "q" * 200
    conn.execute("select pgq.create_queue(%s)", [name])
    done = subprocess.run(
        [sys.executable, "-m", "pgqpy", "status"],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if k != "NO_COLOR"},
    )
    assert "\x1b" not in done.stdout
    assert name in done.stdout
