"""The root command."""

from __future__ import annotations

import click

from pgqpy.cli import (
    capture,
    consumer,
    dead_letter,
    demo,
    event,
    group,
    migrate,
    queue,
    replicate,
    run,
    spark,
    status,
    task,
    ticker,
)
from pgqpy.cli.command import Group, Settings
from pgqpy.cli.program import Program


class Root(Program, Group):
    """The top of the tree."""


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pgqpy", message="pgqpy %(version)s")
@click.option("--dsn", metavar="DSN", help="The database, for the command that follows.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error as well.")
@click.pass_obj
def main(settings: Settings, dsn: str | None, debug: bool) -> None:
    """An event log in PostgreSQL: queues that transactions write to and consumers read.

    The database is taken from --dsn, else from the environment variable PGQPY_DSN, else from
    libpq's own (PGHOST, PGPORT, PGDATABASE, PGUSER, PGSERVICE, ~/.pgpass).

    \b
    First steps:
      pgqpy demo                               see it all at work
      pgqpy migrate --dsn postgresql:///shop   install the schema
      pgqpy queue create orders                make a queue
      pgqpy ticker                             keep this running
      pgqpy status --watch                     watch it
    """
    settings.dsn_argument = dsn
    settings.debug = debug


for command in (
    migrate.migrate,
    queue.queue,
    consumer.consumer,
    group.group,
    event.event,
    dead_letter.dead_letter,
    task.task,
    capture.capture,
    ticker.ticker,
    status.status,
    run.run,
    replicate.replicate,
    spark.spark,
    demo.demo,
):
    main.add_command(command)
