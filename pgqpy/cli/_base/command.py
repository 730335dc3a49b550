"""The declaration of commands: click's classes with examples and the role that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

import pgqpy.dsn

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """The settings of a run; filled while click parses, read when an error is explained."""

    dsn_argument: str | None = None
    dsn: str = ""
    role: str | None = None
    debug: bool = False


class Command(click.Command):
    """A command with examples under its help, and the database role that it needs."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        role: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.role = role

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples; they are commands to copy, so they must not be wrapped."""
        if self.examples:
            heading = "Example" if len(self.examples) == 1 else "Examples"
            with formatter.section(heading):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run, and record which role a permission error asks for."""
        ctx.ensure_object(Settings).role = self.role
        return super().invoke(ctx)


class Group(click.Group):
    """A group whose commands are `Command`s."""

    command_class = Command
    group_class = type


def dsn_option(function: Function) -> Function:
    """Add ``--dsn``, and pass the connection string from it or from the environment."""
    return click.option(
        "--dsn",
        metavar="DSN",
        callback=_resolve,
        help="The database; default: PGQPY_DSN, then libpq's environment.",
    )(function)


def _resolve(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if ctx.resilient_parsing:
        return value
    settings = ctx.ensure_object(Settings)
    dsn = pgqpy.dsn.resolve(value or settings.dsn_argument)
    pgqpy.dsn.parse(dsn)
    settings.dsn = dsn
    return dsn


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for scripts, instead of text."
)
