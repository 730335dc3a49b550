"""``pgqpy contract``: schemas for the payloads of a queue's events."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from psycopg import sql

from pgqpy._runtime.contracts import Contracts
from pgqpy._runtime.words import plural
from pgqpy.admin import Admin
from pgqpy.cli._base.arguments import MOMENT, TEXT, any_queue_argument, queue_argument
from pgqpy.cli._base.command import Group
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import json_option, print_items, print_json, say
from pgqpy.connection import Connection
from pgqpy.errors import ContractNotFound, ContractViolation

type_option = click.option(
    "--type",
    "ev_type",
    type=TEXT,
    help="The type of events; without it all types that have no contract of their own.",
)


@click.group(cls=Group)
def contract() -> None:
    """Contracts: schemas that the payloads of a queue must fit."""


@contract.command("set", role="pgq_admin")
@queue_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@type_option
@click.option(
    "--compatibility",
    type=click.Choice(("none", "backward", "full")),
    help="The rule for new versions; without it that of the last one, at first backward.",
)
@click.option(
    "--enforced/--not-enforced",
    default=None,
    help="Whether PostgreSQL checks every insert; without it as before, at first not.",
)
def set_contract(
    conn: Connection, queue: str, file: Path, ev_type: str | None, **rules: Any
) -> None:
    """Add a version to a contract, from a file with a JSON Schema.

    With the schema of the last version only the rules are changed.

    Examples:
      pgqpy contract set orders order.json --type order --enforced
      pgqpy contract set orders order.json --type order --compatibility none
    """
    try:
        schema = json.loads(file.read_text())
    except ValueError as error:
        raise CliError(f"{file} is not JSON: {error}") from error
    version = Admin(conn).set_contract(queue, ev_type, schema, **rules)
    say(f"version {version} of the contract of queue {queue} is in force")


@contract.command("drop", role="pgq_admin")
@queue_argument
@type_option
def drop(conn: Connection, queue: str, ev_type: str | None) -> None:
    """Drop a contract with all its versions.

    Its events are then checked by the contract for all types, if there is one.

    Examples:
      pgqpy contract drop orders --type order
    """
    Admin(conn).drop_contract(queue, ev_type)
    say(f"dropped the contract of queue {queue}")


@contract.command("list", role="pgq_reader")
@any_queue_argument
@json_option
def list_contracts(conn: Connection, queue: str | None) -> None:
    """List the contracts, with their versions in force.

    The keys of the JSON objects are the columns of pgq.get_contract_info().

    Examples:
      pgqpy contract list orders --json
    """
    print_items(
        Admin(conn).get_contract_info(queue),
        {
            "Queue": "queue_name",
            "Type": "ev_type",
            "Version": "version",
            "Compatibility": "compatibility",
            "Enforced": "enforced",
            "Added": "added",
        },
        empty="no contracts; add one: pgqpy contract set QUEUE FILE",
    )


@contract.command("show", role="pgq_reader")
@queue_argument
@type_option
@click.option(
    "--version", type=click.IntRange(min=1), help="This version, instead of the one in force."
)
def show(conn: Connection, queue: str, ev_type: str | None, version: int | None) -> None:
    """Print the schema that holds for a type of events.

    That is the type's own contract, or else the one for all types.

    Examples:
      pgqpy contract show orders --type order
    """
    found = Admin(conn).get_contract(queue, ev_type, version)
    if found is None:
        raise ContractNotFound(f"queue {queue} has no contract for these events")
    print_json(found.schema)


@contract.command("check", role="pgq_reader")
@queue_argument
@click.option("--since", type=MOMENT, help="Only events since then (ISO 8601).")
@json_option
def check(conn: Connection, queue: str, since: datetime | None) -> None:
    """Check the events that are stored in a queue against its contracts.

    Prints for each type and path how many events do not fit, and the first of them. The exit status
    is 1 if there are any.

    Examples:
      pgqpy contract check orders --since 2026-11-21
    """
    [(view,)] = conn.execute("select pgq.queue_relation(%s)", [queue]).fetchall()
    statement = sql.SQL(
        "select ev_id, ev_type, ev_data from {}"
        " where ev_time >= coalesce(%s::timestamptz, '-infinity')"
    )
    events = 0
    counts: Counter[tuple[str | None, str]] = Counter()
    first: dict[tuple[str | None, str], tuple[int, str]] = {}
    with conn.transaction(), conn.cursor("pgqpy_contract") as cursor:
        validators = Contracts(queue).read(conn)
        cursor.execute(statement.format(sql.SQL(view.replace("%", "%%"))), [since])
        for ev_id, ev_type, data in cursor:
            events += 1
            try:
                validators.check(ev_type, data)
            except ContractViolation as error:
                place = ev_type, re.sub(r"/\d+", "/*", error.path)
                counts[place] += 1
                first.setdefault(place, (ev_id, error.message))
    found = [
        {"type": place[0], "path": place[1], "events": n, "id": first[place][0]}
        | {"error": first[place][1].partition(" at ")[2]}
        for place, n in counts.most_common()
    ]
    columns = {"Type": "type", "Path": "path", "Events": "events", "First": "id", "Error": "error"}
    print_items(found, columns, empty=f"{plural(events, 'event')}: all fit, or have no contract")
    if found:
        raise SystemExit(1)
