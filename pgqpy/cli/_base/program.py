"""Common behaviour of all programs: errors without tracebacks, exit codes."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from pgqpy.cli._base.command import Settings
from pgqpy.cli._base.errors import Situation, explain, explain_usage
from pgqpy.cli._base.interrupt import INTERRUPTED
from pgqpy.cli._base.output import print_problem


class Program(click.Command):
    """The root of a command line: nothing below it may show a traceback to its user."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; flush here, where a closed pipe can still be answered quietly."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            # Handled before click, which would write an empty line.
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
                # An old locale cannot write every character that a name may hold.
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
