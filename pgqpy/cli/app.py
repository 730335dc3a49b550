"""The root command and what all commands share at run time: the DSN, errors, the exit code."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from pgqpy.cli import capture, consumer, demo, event, migrate, queue, status, ticker
from pgqpy.cli.command import Group, Settings
from pgqpy.cli.errors import Situation, explain, explain_usage
from pgqpy.cli.interrupt import INTERRUPTED
from pgqpy.cli.output import print_problem


class Root(Group):
    """The top of the tree: nothing below it may show a traceback to its user."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; flush here, where a closed pipe can still be answered quietly."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            # Handled before click sees it, which would write an empty line.
            raise click.exceptions.Exit(INTERRUPTED) from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run, and end the process: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
        settings = Settings()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # An old locale cannot write everything that a name may hold.
                stream.reconfigure(errors="backslashreplace")
        try:
            outcome = super().main(
                args, prog_name, complete_var, standalone_mode=False, obj=settings, **extra
            )
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.UsageError as error:
            print_problem(explain_usage(error))
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except Exception as error:
            if settings.debug:
                traceback.print_exc()
            print_problem(explain(error, Situation(settings.dsn, settings.role)))
            sys.exit(1)
        sys.exit(outcome if isinstance(outcome, int) else 0)


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
    event.event,
    capture.capture,
    ticker.ticker,
    status.status,
    demo.demo,
):
    main.add_command(command)
