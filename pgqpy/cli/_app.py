"""The root command, which imports the module of a command when that is run."""

from __future__ import annotations

import os
from importlib import import_module

import click

from pgqpy import telemetry
from pgqpy.cli._base.command import Program, Settings
from pgqpy.cli._base.errors import CliError

#: Where the commands are, and the first lines of their help: to list them imports none.
COMMANDS = {
    "capture": ("_events.capture:capture", "Turn the changes of tables into events."),
    "consumer": (
        "_events.consumer:consumer",
        "Register and unregister consumers, list, pause and move them.",
    ),
    "contract": (
        "_events.contract:contract",
        "Contracts: schemas that the payloads of a queue must fit.",
    ),
    "dead-letter": (
        "_events.dead_letter:dead_letter",
        "Look at events that consumers have given up, and replay them.",
    ),
    "doctor": ("_doctor:doctor", "Check everything: what is wrong, why, and what mends it."),
    "event": ("_events.event:event", "Insert events, and look at them without consuming them."),
    "group": ("_events.group:group", "Consumer groups: events in order by key, in parallel."),
    "migrate": ("_migrate:migrate", "Install or upgrade the pgq schema in a database."),
    "node": (
        "_events.node:node",
        "Cascaded queues: exact copies in other databases, and which is the root.",
    ),
    "queue": ("_events.queue:queue", "Create, drop, list and configure queues."),
    "replicate": (
        "_consumers.replicate:replicate",
        "Keep tables of another database equal to this one's.",
    ),
    "run": ("_consumers.run:run", "Run a ready-made consumer, or a class of yours."),
    "shards": ("_shards:shards", "One logical queue over many databases, by a shard map."),
    "spark": (
        "_consumers.spark:spark",
        "Compute in Spark (needs pgqpy[spark] and Java 17 or newer).",
    ),
    "status": ("_status:status", "Show how queues and consumers are doing, and what is wrong."),
    "task": ("_tasks:task", "Push tasks, work on them, look at them, and repair them."),
    "ticker": ("_ticker:ticker", "Run the ticker in the foreground until SIGTERM or Ctrl-C."),
    "top": ("_top:top", "Watch queues, consumers, tasks, workers and problems on a full screen."),
    "ui": ("_ui:ui", "Serve the console: queues, consumers and tasks in the browser."),
}


class Root(Program):
    """The root of the tree."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            module, _, name = COMMANDS[cmd_name][0].partition(":")
            self.add_command(getattr(import_module(f"pgqpy.cli.{module}"), name))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            # Click proposes those that are imported.
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=COMMANDS, ctx=ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


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
      pgqpy migrate --dsn postgresql:///shop   install the schema
      pgqpy queue create orders                make a queue
      pgqpy ticker                             keep this running
      pgqpy status --watch                     watch it
    """
    settings.dsn_argument = dsn
    settings.debug = debug
    if wanted := os.environ.get("PGQPY_TELEMETRY"):
        try:
            telemetry.instrument(each=wanted == "each")
        except ImportError as error:
            raise CliError(f"PGQPY_TELEMETRY is set, and {error}") from None
