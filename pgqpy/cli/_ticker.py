"""``pgqpy ticker``: the daemon, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

import pgqpy.dsn
from pgqpy.cli._base.command import Command, Settings
from pgqpy.log import FORMATS, LEVELS


@click.command(cls=Command, role="pgq_admin")
@click.option(
    "--dsn", "dsns", multiple=True, metavar="DSN", help="A database; may be given several times."
)
@click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file with databases and settings; read again on SIGHUP.",
)
@click.option("--http", metavar="HOST:PORT", help="Serve /healthz and /metrics there.")
@click.option("--log-level", type=click.Choice(LEVELS))
@click.option("--log-format", type=click.Choice(FORMATS))
@click.pass_obj
def ticker(
    settings: Settings,
    dsns: tuple[str, ...],
    path: Path | None,
    http: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run the ticker in the foreground until SIGTERM or Ctrl-C.

    Without a ticker consumers get nothing: it cuts the stream of events into ticks, rotates the
    event tables, returns due retries to their queues, and wakes consumers. Run one for each
    database, or one for many. A second one for the same database stands by and takes over if the
    first is gone.

    Examples:
      pgqpy ticker --dsn postgresql:///shop
      pgqpy ticker --dsn postgresql:///shop --dsn postgresql:///stock
      pgqpy ticker --config /etc/pgqpy/ticker.toml --http :9187
    """
    from pgqpy_ticker import Config, ConfigError, run

    if not dsns and path is None:
        dsns = (pgqpy.dsn.resolve(settings.dsn_argument),)
    try:
        config = Config.load(path, *dsns) if path else Config.from_dsns(*dsns)
        run(config.overridden(http=http, log_level=log_level, log_format=log_format))
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
