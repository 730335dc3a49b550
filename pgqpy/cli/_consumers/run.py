"""``pgqpy run``: ready-made consumers, and subclasses of them."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pgqpy import dsn as dsns
from pgqpy.cli._base.arguments import FILE, TEXT
from pgqpy.cli._base.command import Command, Settings, log_options
from pgqpy.cli._base.errors import CliError, first_line
from pgqpy.cli._base.load_class import load_class
from pgqpy.cli._base.output import print_table
from pgqpy.cli._consumers.batch_log import batch_log
from pgqpy.errors import PgqError
from pgqpy.log import logger


@click.command(cls=Command, role="pgq_reader")
@click.argument("name", metavar="NAME", type=TEXT, required=False)
@click.argument("path", metavar="CONFIG.TOML", required=False, type=FILE)
@click.option("--list", "listing", is_flag=True, help="Show what there is to run, and end.")
@click.option("--example", is_flag=True, help="Print a configuration for NAME, and end.")
@click.option("--dsn", metavar="DSN", help="The database with the queue, instead of the file's.")
@click.option(
    "--shards",
    metavar="FILE",
    type=FILE,
    help="Read all databases of this shard map, or share them with other processes.",
)
@click.option(
    "--until-empty", is_flag=True, help="Process what is there now, and end; for schedulers."
)
@click.option(
    "--with-ticker", is_flag=True, help="Make the ticks, too, while no other ticker does."
)
@log_options
@click.pass_obj
def run(
    settings: Settings,
    name: str | None,
    path: Path | None,
    listing: bool,
    example: bool,
    dsn: str | None,
    shards: Path | None,
    until_empty: bool,
    with_ticker: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Run a ready-made consumer, or a class of yours.

    NAME is one of those that --list shows, or FILE.py:CLASS, or MODULE:CLASS. It runs until
    SIGTERM or Ctrl-C, which end it after the current batch. The consumer is registered if it is
    not. With --until-empty nothing is retried: the next run does that. With --with-ticker the role
    must be a member of pgq_admin.

    Exit codes: 0 when it was stopped or is done, 1 when it failed, 2 when the command or the
    configuration is wrong.

    Examples:
      pgqpy run --list
      pgqpy run row_counter --example > row_counter.toml
      pgqpy run row_counter row_counter.toml
      pgqpy run shop.py:OurMails mails.toml --until-empty
      pgqpy run shop.py:OurMails mails.toml --shards shards.toml
    """
    from pgqpy_consumers import settings as files

    if listing:
        _list()
        return
    if name is None:
        raise click.UsageError("Missing argument 'NAME'; `pgqpy run --list` shows what there is")
    if dsn is not None and shards is not None:
        raise click.UsageError("--dsn and --shards exclude each other.")
    try:
        made = _find(name)
        if example:
            click.echo(f"# {_summary(made)}\n# pgqpy run {name} {name.rpartition(':')[2]}.toml\n")
            click.echo(files.example(made.Config), nl=False)
            return
        if path is None and (needed := files.required(made.Config)):
            raise click.UsageError(
                f"Missing argument 'CONFIG.TOML': {name} needs {', '.join(needed)}; "
                "--example prints one"
            )
        given = {"dsn": dsn or settings.dsn_argument}
        overrides = {key: value for key, value in given.items() if value is not None}
        config = (
            files.build(made.Config, overrides)
            if path is None
            else files.load(made.Config, path, overrides)
        )
        settings.dsn = dsns.resolve(getattr(config, "dsn", None))
        if shards is not None and getattr(config, "read_dsn", None) is not None:
            raise click.UsageError("read_dsn is one server's standby: leave it out with --shards.")
        consumer = made.from_config(config) if shards is None else _sharded(made, config, shards)
    except files.ConfigError as error:
        raise click.UsageError(f"{error}; --example prints all settings") from None
    except PgqError:
        raise
    except (TypeError, ValueError) as error:
        raise CliError(
            f"{name} cannot be made: {type(error).__name__}: {first_line(str(error))}",
            "a class with a constructor of its own needs Config and from_config",
        ) from error
    with batch_log(name.rpartition(":")[2], log_level, log_format):
        try:
            ticker: Any = {"ticker": "auto"} if with_ticker else {}
            ended = consumer.run(until_empty=until_empty, **ticker)
            if inspect.iscoroutine(ended):
                asyncio.run(ended)
        except (PgqError, click.ClickException):
            raise
        except Exception as error:
            # The author of the class needs the whole traceback.
            logger.error("%s failed", name, exc_info=error)
            raise CliError(
                f"{name} failed: {type(error).__name__}: {first_line(str(error))}",
                "the batch was rolled back; the next run gets it again",
            ) from error


def _sharded(made: Any, config: Any, shards: Path) -> Any:
    """Return what runs the consumers of all shards."""
    import pgqpy

    def make(dsn: str) -> Any:
        return made.from_config(replace(config, dsn=dsn))

    if issubclass(made, pgqpy.AsyncConsumer):
        return pgqpy.AsyncShardedConsumer(make, shards)
    return pgqpy.ShardedConsumer(make, shards)


def _find(name: str) -> Any:
    """Return the class, with a ``Config`` and ``from_config``."""
    from pgqpy_consumers.ready import configured, ready

    try:
        if ":" not in name:
            return ready(name)
    except ImportError as error:
        raise CliError(str(error)) from error
    _, found = load_class(
        name,
        _runnable,
        what="consumer",
        advice="subclass one of pgqpy_consumers, or pgqpy.Consumer",
    )
    return configured(found)


def _runnable(cls: type) -> bool:
    import pgqpy

    plain = (pgqpy.Consumer, pgqpy.AsyncConsumer)
    return cls not in plain and (issubclass(cls, plain) or hasattr(cls, "from_config"))


def _summary(made: type) -> str:
    return first_line(made.__doc__ or made.__name__)


def _list() -> None:
    from pgqpy_consumers.ready import READY, ready

    rows = []
    for name in sorted(READY):
        try:
            summary = _summary(ready(name))
        except ImportError as error:
            summary = f"cannot run here: {error}"
        rows.append({"name": name, "summary": summary})
    print_table(rows, {"name": "name", "what it does": "summary"})
