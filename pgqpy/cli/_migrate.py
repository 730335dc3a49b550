"""``pgqpy migrate``: upgrade, downgrade, show or print the schema."""

from __future__ import annotations

import click

from pgqpy.cli._base.command import Command, Exclusive
from pgqpy.cli._base.output import json_option, print_json, print_table, say, wants_json


@click.command(cls=Command, role="pgq_owner")
@click.option(
    "--to", "revision", cls=Exclusive, metavar="REVISION", help="Upgrade to this revision only."
)
@click.option(
    "--down",
    cls=Exclusive,
    metavar="REVISION",
    help="Go back to a revision; `base` removes the schema.",
)
@click.option("--force", is_flag=True, help="With --down: also if queues, tasks or notes are lost.")
@click.option(
    "--show", cls=Exclusive, is_flag=True, help="Show the revisions, and where the database is."
)
@click.option("--node", is_flag=True, help="Also install the part for cascaded queues, `pgq_node`.")
@click.option("--sql", is_flag=True, help="Print the SQL instead; needs no database.")
@click.option("--from", "start", metavar="REVISION", help="With --sql: the revision to start from.")
@json_option
def migrate(
    dsn: str,
    revision: str | None,
    down: str | None,
    force: bool,
    show: bool,
    node: bool,
    sql: bool,
    start: str | None,
) -> None:
    """Install or upgrade the pgq schema in a database.

    Run it once for a new database and after each upgrade of pgqpy. Running it again, or twice at
    once, is harmless: it is one transaction under a lock. It needs a superuser, or a user with the
    right to create roles and schemas.

    Examples:
      pgqpy migrate --dsn postgresql:///shop
      pgqpy migrate --node
      pgqpy migrate --show
      pgqpy migrate --sql > install.sql
      pgqpy migrate --down base --force
    """
    if force and not down:
        raise click.UsageError("--force goes with --down.")
    if node and (down or show):
        raise click.UsageError("--node goes with an upgrade.")
    if start and not sql:
        raise click.UsageError("--from goes with --sql.")
    if wants_json() and not show:
        raise click.UsageError("--json goes with --show.")
    from pgqpy import schema

    if sql:
        if show:
            raise click.UsageError("--sql does not go with --show.")
        if down is None:
            click.echo(schema.upgrade_sql(revision or "head", start=start, node=node), nl=False)
        elif start is None:
            raise click.UsageError("--down with --sql needs --from: no database is asked.")
        else:
            click.echo(schema.downgrade_sql(start, down), nl=False)
    elif show:
        _show(dsn)
    elif down is not None:
        at = schema.downgrade(dsn, down, force=force)
        say(f"the schema is at revision {at}" if at else "the schema is removed")
    else:
        at = schema.migrate(dsn, revision or "head", node=node)
        say(f"the schema is at revision {at}")


def _show(dsn: str) -> None:
    from pgqpy import schema

    at = schema.current(dsn)
    revisions = schema.history()
    if wants_json():
        print_json({"current": at, "revisions": revisions})
        return
    here = {"": lambda step: "*" if step.id == at else ""}
    print_table(revisions, {**here, "Revision": "id", "Description": "description"})
    if at is None:
        say("the schema is not installed; `pgqpy migrate` installs it")
