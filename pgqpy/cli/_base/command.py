"""The declaration of commands: click's classes, with examples, a role, and shared options."""

from __future__ import annotations

import inspect
import io
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, NoReturn, TypeVar

import click

import pgqpy.dsn
from pgqpy.cli._base.database import INTERRUPTED, connect
from pgqpy.cli._base.errors import Situation, explain, explain_usage
from pgqpy.cli._base.output import print_problem
from pgqpy.log import FORMATS, LEVELS, logger, setup

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """The settings of a run; filled while click parses, read when an error is explained."""

    dsn_argument: str | None = None
    dsn: str = ""
    role: str | None = None
    debug: bool = False


def _resolve(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if ctx.resilient_parsing:
        return value
    settings = ctx.ensure_object(Settings)
    dsn = pgqpy.dsn.resolve(value or settings.dsn_argument)
    pgqpy.dsn.parse(dsn)
    settings.dsn = dsn
    return dsn


class Command(click.Command):
    """A command with the database role that it needs, and with examples: the end of its help.

    If its function takes ``conn`` or ``dsn``, it has --dsn, and is called with a connection to that
    database, or with its name.
    """

    def __init__(
        self, *args: Any, role: str | None = None, names_of_users: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.help, _, examples = inspect.cleandoc(self.help or "").partition("\n\nExamples:\n")
        self.examples = tuple(line.strip() for line in examples.splitlines())
        self.role = role
        self.names_of_users = names_of_users
        assert self.callback is not None
        takes = inspect.signature(self.callback).parameters
        self.connects = "conn" in takes
        own = any(each.name == "dsn" for each in self.params)
        if self.connects or ("dsn" in takes and not own):
            about = "The database; default: PGQPY_DSN, then libpq's environment."
            option = click.Option(["--dsn"], metavar="DSN", callback=_resolve, help=about)
            self.params.insert(0, option)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples; they are commands to copy, so they must not be wrapped."""
        if self.examples:
            with formatter.section("Examples" if self.examples[1:] else "Example"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run, and record which role a permission error asks for."""
        ctx.ensure_object(Settings).role = self.role
        if not self.connects:
            return super().invoke(ctx)
        with connect(ctx.params.pop("dsn"), names_of_users=self.names_of_users) as conn:
            ctx.params["conn"] = conn
            return super().invoke(ctx)


class Group(click.Group):
    """A group whose commands are `Command`s."""

    command_class = Command
    group_class = type


class Program(Group):
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
            print_problem(*explain_usage(error))
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except Exception as error:
            if settings.debug:
                traceback.print_exc()
            print_problem(*explain(error, Situation(settings.dsn, settings.role)))
            sys.exit(1)
        sys.exit(outcome if isinstance(outcome, int) else 0)


def options(*declared: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Combine declarations of options and arguments, in their order, into one."""

    def decorate(function: Function) -> Function:
        for each in reversed(declared):
            function = each(function)
        return function

    return decorate


class Exclusive(click.Option):
    """An option of a command that takes at most one of these."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        of = [each for each in ctx.command.params if isinstance(each, Exclusive)]
        if sum(each.name in opts for each in of) > 1 and not ctx.resilient_parsing:
            names = [each.opts[0] for each in of]
            raise click.UsageError(f"{', '.join(names[:-1])} and {names[-1]} exclude each other.")
        return super().handle_parse_result(ctx, opts, args)


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only say how many it would be; change nothing."
)


def seconds_option(
    name: str, default: float, text: str, *, least: float = 0
) -> Callable[[Function], Function]:
    """Declare an option that takes a time."""
    return click.option(
        name,
        type=click.FloatRange(min=least),
        default=default,
        show_default=True,
        metavar="SECONDS",
        help=text,
    )


stuck_after_option = seconds_option(
    "--stuck-after",
    300,
    "How far behind a consumer, or how old a transaction, may be before it is reported.",
)
watch_options = options(
    click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C."),
    seconds_option("--every", 1, "With --watch: how often.", least=0.1),
)


@contextmanager
def log_to(stream: IO[str] | None, level: str, form: str) -> Iterator[None]:
    """Send the library's log to a stream inside the block, by default to standard error."""
    before = logger.handlers[:], logger.level, logger.propagate
    setup(logger.name, level, form, stream).setLevel(level.upper())
    try:
        yield
    finally:
        logger.handlers[:], logger.level, logger.propagate = before


log_options = options(
    click.option("--log-level", type=click.Choice(LEVELS), default="info"),
    click.option("--log-format", type=click.Choice(FORMATS), default="auto"),
)


def count_option(default: int) -> Callable[[Function], Function]:
    """Declare the limit of a list."""
    return click.option(
        "-n",
        "--count",
        # One more is asked for, to know whether there are more.
        type=click.IntRange(1, 2**31 - 2),
        default=default,
        show_default=True,
        metavar="N",
        help="The maximum number to show.",
    )
