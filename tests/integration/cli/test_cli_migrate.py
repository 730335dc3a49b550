"""`pgqpy migrate`: the command around pgqpy.schema."""

from __future__ import annotations

from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection


def test_migrating_installs_the_schema_and_again_changes_nothing(empty_cli: Cli) -> None:
    before = empty_cli.json("migrate", "--show")
    assert before["current"] is None
    assert "`pgqpy migrate` installs it" in empty_cli.ok("migrate", "--show")
    said = empty_cli.ok("migrate")
    assert "the schema is at revision" in said
    assert empty_cli.ok("migrate") == said
    after = empty_cli.json("migrate", "--show")
    assert after["current"] == after["revisions"][-1]["id"]
    assert list(after["revisions"][0]) == ["id", "description", "is_head"]
    assert empty_cli.ok("queue", "create", "flights") == "created queue flights\n"


def test_the_part_for_cascaded_queues_is_there_if_it_was_asked_for(
    cli: Cli, conn: Connection
) -> None:
    there = "select to_regnamespace('pgq_node') is not null"
    cli.ok("migrate")
    assert conn.execute(there.encode()).fetchall() == [(False,)]
    assert cli.ok("migrate", "--node") == cli.ok("migrate")
    assert conn.execute(there.encode()).fetchall() == [(True,)]
    assert "pgq_node.create_node" in cli.ok("migrate", "--sql", "--node")
    assert "pgq_node.create_node" not in cli.ok("migrate", "--sql")


def test_the_schema_is_removed_only_by_force_when_something_is_lost(
    cli: Cli, conn: Connection
) -> None:
    # Consumers of other databases would forget what they have done.
    conn.execute("select pgq_ext.set_batch_done('loader', 'flights', 1)")
    assert "loader" in cli.fails("migrate", "--down", "base")
    conn.execute("select pgq_ext.forget_consumer('loader', 'flights')")
    cli.ok("queue", "create", "a\nb")
    cli.ok("queue", "create", "flights")
    assert "would lose 2 queues (a\\nb, flights)" in cli.fails("migrate", "--down", "base")
    assert cli.ok("migrate", "--down", "base", "--force") == "the schema is removed\n"
    assert "no pgq schema" in cli.fails("queue", "list")
    cli.ok("migrate")
    assert cli.ok("migrate", "--down", "base") == "the schema is removed\n"


def test_the_sql_needs_no_database_and_an_unknown_revision_names_those_there_are(cli: Cli) -> None:
    nowhere = ("--dsn", "postgresql://127.0.0.1:1/nowhere")
    assert "create table pgq.queue" in cli.ok("migrate", "--sql", *nowhere)
    revision = cli.json("migrate", "--show")["current"]
    assert "drop schema pgq" in cli.ok(
        "migrate", "--sql", "--from", revision, "--down", "base", *nowhere
    )
    said = cli.fails("migrate", "--to", "nosuch")
    assert "nosuch" in said
    assert revision in said


def test_options_that_do_not_go_together_are_wrong_usage(cli: Cli) -> None:
    for options in (
        *("--to head --down base", "--show --down base", "--show --sql", "--force"),
        *("--from base", "--sql --down base", "--json", "--node --show", "--node --down base"),
    ):
        cli.fails("migrate", *options.split(), exit_code=2)
