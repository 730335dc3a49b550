"""`pgqpy migrate`: the command around pgqpy.schema."""

from __future__ import annotations

import pytest

from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connect


def test_migrating_installs_the_schema_and_again_changes_nothing(empty_cli: Cli) -> None:
    said = empty_cli.ok("migrate")
    assert "the schema is at revision" in said
    assert empty_cli.ok("migrate") == said
    assert empty_cli.ok("queue", "create", "flights") == "created queue flights\n"


def test_show_tells_the_revisions_and_where_the_database_is(empty_cli: Cli) -> None:
    before = empty_cli.json("migrate", "--show")
    assert before["current"] is None
    assert "`pgqpy migrate` installs it" in empty_cli.ok("migrate", "--show")
    empty_cli.ok("migrate")
    after = empty_cli.json("migrate", "--show")
    assert after["current"] == after["revisions"][-1]["id"]
    assert list(after["revisions"][0]) == ["id", "description", "is_head"]


def test_the_schema_is_removed_only_by_force_when_queues_are_lost(empty_cli: Cli) -> None:
    empty_cli.ok("migrate")
    empty_cli.ok("queue", "create", "flights")
    assert "flights" in empty_cli.fails("migrate", "--down", "base")
    assert empty_cli.ok("migrate", "--down", "base", "--force") == "the schema is removed\n"
    assert "no pgq schema" in empty_cli.fails("queue", "list")


def test_nor_when_consumers_of_other_databases_would_forget_what_they_have_done(
    empty_cli: Cli, empty_dsn: str, connect: Connect
) -> None:
    empty_cli.ok("migrate")
    connect(empty_dsn).execute("select pgq_ext.set_batch_done('loader', 'flights', 1)")
    assert "loader" in empty_cli.fails("migrate", "--down", "base")
    connect(empty_dsn).execute("select pgq_ext.forget_consumer('loader', 'flights')")
    assert empty_cli.ok("migrate", "--down", "base") == "the schema is removed\n"


def test_the_sql_needs_no_database(cli: Cli) -> None:
    nowhere = ("--dsn", "postgresql://127.0.0.1:1/nowhere")
    assert "create table pgq.queue" in cli.ok("migrate", "--sql", *nowhere)
    revision = cli.json("migrate", "--show")["current"]
    assert "drop schema pgq" in cli.ok(
        "migrate", "--sql", "--from", revision, "--down", "base", *nowhere
    )


def test_an_unknown_revision_names_those_there_are(cli: Cli) -> None:
    known = cli.json("migrate", "--show")["current"]
    said = cli.fails("migrate", "--to", "nosuch")
    assert "nosuch" in said
    assert known in said


@pytest.mark.one_database
@pytest.mark.parametrize(
    "options",
    [
        ("--to", "head", "--down", "base"),
        ("--show", "--down", "base"),
        ("--show", "--sql"),
        ("--force",),
        ("--from", "base"),
        ("--sql", "--down", "base"),
        ("--json",),
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together_are_wrong_usage(
    cli: Cli, options: tuple[str, ...]
) -> None:
    cli.fails("migrate", *options, exit_code=2)
