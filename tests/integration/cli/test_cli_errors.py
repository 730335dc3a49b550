"""Whatever goes wrong, the command line says what and what to do, and never shows a traceback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqpy.embedded import Server
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_db import Connect, Connection, MakeRole

COMMANDS = [
    *("queue list", "queue create q", "queue show q", "queue config q", "queue drop q"),
    *("consumer list", "consumer register q c", "consumer seek q c --start"),
    *("consumer unregister q c", "event insert q t d", "event peek q", "capture list", "status"),
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


def test_nothing_is_called_in_a_schema_that_another_role_has_made(
    make_role: MakeRole, empty_cli: Cli, connect: Connect
) -> None:
    """Any role may make it that may create schemas, and the user may be a superuser."""
    planter, conn = make_role("planter"), connect(empty_cli.dsn)
    conn.execute("create table ran (); grant insert on ran to public")
    conn.execute(f"create schema pgq authorization {planter}; set role {planter}".encode())
    conn.execute(PLANTED)
    conn.execute("reset role")
    for command in COMMANDS:
        result = empty_cli(*command.split())
        assert result.exit_code != 0
        assert f"schema pgq belongs to role {planter}" in result.stderr
        assert conn.execute("select from ran").fetchall() == []


def test_a_console_that_cannot_be_served_says_what_to_do(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = cli.fails("ui", "--port", str(taken.getsockname()[1]))
    assert "already in use" in told
    assert "--port 0 takes a free one" in told
    assert "exclude each other" in cli.fails("ui", "--password", "--user-header", "X", exit_code=2)


def test_every_command_says_what_its_database_lacks(empty_cli: Cli) -> None:
    for command in COMMANDS:
        said = empty_cli.fails(*command.split())
        assert "no pgq schema" in said
        assert "pgqpy migrate --dsn" in said
        # A server that is not there is named without the password.
        nowhere = "postgresql://ann:secret@127.0.0.1:1/shop"
        said = empty_cli.fails(*command.split(), "--dsn", nowhere)
        assert 'cannot connect to 127.0.0.1:1, database "shop", user "ann"' in said
        assert "PGQPY_DSN" in said
        assert "secret" not in said


def test_a_database_or_user_that_is_not_there_says_how_to_make_it(cli: Cli, server: Server) -> None:
    assert "createdb" in cli.fails("queue", "list", "--dsn", server.dsn_of("nosuch"))
    unknown = server.dsn_of("postgres", "unknown")
    assert "createuser" in cli.fails("queue", "list", "--dsn", unknown)


@pytest.mark.one_database
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


def test_a_missing_right_names_the_role_and_granting_it_helps(
    cli: Cli, server: Server, conn: Connection, queue: str, make_role: MakeRole
) -> None:
    user = make_role('"odd" user')
    dsn = server.dsn_of(conn.info.dbname, user)
    # Any role may ask for the status.
    assert cli.json("status", "--dsn", dsn)["queues"][0]["retry_events"] is None
    for role, command in (
        ("pgq_reader", f"consumer register {queue} c"),
        ("pgq_reader", f"event peek {queue}"),
        ("pgq_writer", f"event insert {queue} t d"),
        ("pgq_admin", "queue create other"),
        ("pgq_admin", "queue drop other"),
    ):
        said = cli.fails(*command.split(), "--dsn", dsn)
        quoted = user.replace('"', '""')
        assert f'grant {role} to "{quoted}"' in said
        names = [sql.Identifier(name) for name in (role, user)]
        conn.execute(sql.SQL("grant {} to {}").format(*names))
        cli.ok(*command.split(), "--dsn", dsn)
        conn.execute(sql.SQL("revoke {} from {}").format(*names))


def test_debug_shows_the_traceback_before_the_error(cli: Cli) -> None:
    result = cli("--debug", "queue", "show", "nosuch")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-2].startswith("error: queue 'nosuch'")
    # Control characters are shown as escapes.
    assert r"\x1b[31m" in cli.fails("queue", "show", "\x1b[31m")


def test_wrong_usage_names_the_help_and_ends_with_2(cli: Cli) -> None:
    for words in (
        "nosuch",
        "queue nosuch",
        "queue create",
        "queue list --x",
        "ui --database x",
        "ui --user-header X --trusted-proxy nonsense",
    ):
        assert "--help" in cli.fails(*words.split(), exit_code=2)


def watched(spawn: Spawn) -> subprocess.Popen[str]:
    """A status that has been shown once, and is shown again and again."""
    watch = spawn("status", "--watch", "--every", "0.1")
    assert watch.stdout is not None
    assert watch.stdout.readline() != ""
    return watch


def test_ctrl_c_ends_a_watch_quietly_with_130(cli: Cli, spawn: Spawn) -> None:
    watch = watched(spawn)
    watch.send_signal(signal.SIGINT)
    _, complaints = watch.communicate()
    assert (watch.returncode, complaints) == (130, "")


def test_a_reader_that_goes_away_is_no_error_to_talk_about(cli: Cli, spawn: Spawn) -> None:
    watch = watched(spawn)
    assert watch.stdout is not None
    watch.stdout.close()
    watch.wait()
    assert watch.stderr is not None
    assert watch.stderr.read() == ""
    # Nor is a pipe that was closed before.
    read, write = os.pipe()
    os.close(read)
    closed = spawn("queue", "list", stdout=write)
    os.close(write)
    closed.wait()
    assert closed.stderr is not None
    assert closed.stderr.read() == ""


def test_a_session_that_the_server_ends_is_called_lost(
    cli: Cli, conn: Connection, spawn: Spawn
) -> None:
    watch = watched(spawn)
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    _, complaints = watch.communicate()
    assert watch.returncode == 1
    assert complaints.startswith("error: ")
    assert "Traceback" not in complaints


def test_what_is_piped_has_no_colours_and_nothing_cut_off(
    cli: Cli, conn: Connection, spawn: Spawn
) -> None:
    name = "q" * 200
    conn.execute("select pgq.create_queue(%s)", [name])
    status = spawn("status", env={k: v for k, v in os.environ.items() if k != "NO_COLOR"})
    shown, _ = status.communicate()
    assert status.returncode == 0
    assert "\x1b" not in shown
    assert name in shown
