"""``pgqpy replicate``: choose, list and compare the tables that `pgqpy run replicate` copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import click

from pgqpy.cli._base.arguments import FILE, LIST, TEXT
from pgqpy.cli._base.command import Function, Group, Settings, options
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.errors import CliError, first_line
from pgqpy.cli._base.output import (
    json_option,
    print_items,
    print_json,
    print_table,
    say,
    wants_json,
)
from pgqpy.errors import comes_from

if TYPE_CHECKING:
    from pgqpy_consumers.replicate._state import Replica
    from pgqpy_consumers.replicate.compare import Comparison
    from pgqpy_consumers.replicate.manage import Manager

#: The maximum number of differences shown for a table, unless --json asks for all.
SHOWN = 20

config_argument = click.argument("path", metavar="CONFIG.TOML", type=FILE)


wait_option = click.option(
    "--wait", default=60.0, metavar="SECONDS", help="For the target to follow; 60."
)


def tables_argument(*, required: bool) -> Callable[[Function], Function]:
    """Take any number of tables, before the configuration."""
    return click.argument("tables", metavar="TABLE...", type=TEXT, nargs=-1, required=required)


compare_options = options(
    tables_argument(required=False),
    config_argument,
    wait_option,
    json_option,
)


@click.group(cls=Group)
def replicate() -> None:
    """Keep tables of another database equal to this one's.

    `pgqpy run replicate CONFIG.TOML` does the work; these commands choose its tables, while it runs
    or not.
    """


@replicate.command("add", role="pgq_admin")
@tables_argument(required=True)
@config_argument
@click.option("--target", type=TEXT, metavar="NAME", help="The table's name in the target.")
@click.option("--columns", type=LIST, help="Only these, and the key.")
@click.option("--overwrite", is_flag=True, help="Replace what the target's table holds.")
def add(tables: tuple[str, ...], path: Path, **how: Any) -> None:
    """Add tables, or sequences, to be copied and then kept in step.

    A table needs a primary key, and must be there in the target with the same key. Its changes are
    captured into the queue from now on. Sequences of serial and identity columns come along.

    Examples:
      pgqpy replicate add public.flight public.airport replicate.toml
      pgqpy replicate add flight replicate.toml --target archive.flight
      pgqpy replicate add customer replicate.toml --columns name,country
      pgqpy replicate add invoice_number_seq replicate.toml
    """
    if len(tables) > 1 and (how["target"] or how["columns"]):
        raise click.UsageError("--target and --columns are for one table at a time")
    with _manager(path) as manager:
        for table in tables:
            added = manager.add(table, **how)
            what = "sequence" if added.kind == "S" else "table"
            say(f"{what} {added} is added; `pgqpy run replicate {path}` copies it")


@replicate.command("remove", role="pgq_admin")
@tables_argument(required=True)
@config_argument
def remove(tables: tuple[str, ...], path: Path) -> None:
    """Remove tables or sequences: the copies stay, and follow no more.

    The capture ends too, if the queue has no other consumers. Add them again to start over.

    Examples:
      pgqpy replicate remove public.flight replicate.toml
    """
    with _manager(path) as manager:
        for table in tables:
            ended = manager.remove(table)
            say(f"{table} is not replicated any more")
            if not ended:
                say(
                    "it is still captured, for the queue has other consumers; `pgqpy capture"
                    f" remove {table}` ends that"
                )


@replicate.command("copy", role="pgq_admin")
@tables_argument(required=True)
@config_argument
def copy(tables: tuple[str, ...], path: Path) -> None:
    """Copy tables once more, from the start.

    Readers of the target see the old rows until the copy is complete; then it catches up.

    Examples:
      pgqpy replicate copy public.flight replicate.toml
    """
    with _manager(path) as manager:
        for table in tables:
            manager.copy_again(table)
            say(f"table {table} is to be copied again")


@replicate.command("list", role="pgq_admin")
@config_argument
@json_option
def list_tables(path: Path) -> None:
    """List the tables and sequences, and how far each is.

    States: added, copying, catching_up, in_step; failed, with the reason: then the table's changes
    wait in the target until it is repaired, and applying them is retried.

    Examples:
      pgqpy replicate list replicate.toml --json
    """
    from pgqpy_consumers.replicate._sequences import sequences

    with _manager(path) as manager:
        tables = [_shown(manager, each) for each in manager.state.tables()]
        found = sequences(manager.state)
        if not tables and not found:
            manager.check_queue()
    if wants_json():
        print_json({"tables": tables, "sequences": found})
        return
    for each in found:
        names = {"source": str(each), "target": ".".join(each.target)}
        tables.append(names | {"state": "sequence"})
    print_items(
        tables,
        {
            "Source": "source",
            "Target": "target",
            "State": "state",
            "Since": "since",
            "Waiting": "waiting",
            "Error": lambda each: first_line(each.get("error") or ""),
        },
        empty=f"nothing is replicated; add a table: pgqpy replicate add TABLE {path}",
    )


@replicate.command("compare", role="pgq_admin")
@compare_options
def compare(path: Path, **which: Any) -> None:
    """Compare tables with their copies, while both change.

    Without names, all of them. Each is compared at one point in time, by checksums, and the keys
    of rows that differ are shown. The exit code is 1 if there are any.

    Examples:
      pgqpy replicate compare replicate.toml
      pgqpy replicate compare public.flight replicate.toml --json
    """
    compared = _compare(path, repair=False, **which)
    _print_comparisons(compared)
    if any(each.differences for each in compared):
        raise CliError("the copies differ", f"`pgqpy replicate repair ... {path}` sets them right")


@replicate.command("repair", role="pgq_admin")
@compare_options
def repair(path: Path, **which: Any) -> None:
    """Compare tables, and repair the rows of the copies that differ.

    Without names, all of them, while both change. Only rows that differ are written.

    Examples:
      pgqpy replicate repair public.flight replicate.toml
    """
    _print_comparisons(_compare(path, repair=True, **which))


@replicate.command("reverse", role="pgq_admin")
@config_argument
@wait_option
def reverse(path: Path, wait: float) -> None:
    """Have the source follow the target, if that is the root now.

    First `pgqpy node takeover`, with no writes to the tables from before it until this command has
    ended. `pgqpy run replicate CONFIG.TOML` must still run, to apply the last changes; end it
    afterwards. Nothing is copied. From then on the target's tables are captured, and a
    configuration with dsn and target_dsn exchanged keeps the source's equal.

    Examples:
      pgqpy replicate reverse replicate.toml
    """
    until = monotonic() + wait

    def go_on() -> None:
        if monotonic() > until:
            raise CliError(
                f"the target has not come to the end of the queue within {wait:g} s",
                f"keep `pgqpy run replicate {path}` running",
            )
        sleep(0.05)

    with _manager(path) as manager:
        tick = manager.reverse(go_on)
    say(f"from tick {tick} on the source follows: exchange dsn and target_dsn, and run replicate")


def _compare(path: Path, *, tables: Sequence[str], wait: float, repair: bool) -> list[Comparison]:
    from pgqpy_consumers.replicate.compare import Comparer

    config = _config(path)
    comparer = Comparer(config.dsn, config.target_dsn, config.queue, config.consumer, patience=wait)
    with _manager(path) as manager:
        replicas = (
            [manager.replica(table) for table in tables] if tables else manager.state.tables()
        )
        return [comparer.compare(each, repair=repair) for each in replicas]


def _print_comparisons(compared: list[Comparison]) -> None:
    found = [
        {
            "table": str(each.replica),
            "rows": each.rows,
            "tick": each.tick,
            "differences": each.differences,
            "repaired": each.repaired,
        }
        for each in compared
    ]
    if wants_json():
        print_json(found)
        return
    columns: dict[str, Any] = {"Table": "table", "Rows": "rows", "Tick": "tick"}
    columns |= {"Different": lambda each: len(each["differences"]), "Repaired": "repaired"}
    print_table(found, columns)
    for each in compared:
        for difference in each.differences[:SHOWN]:
            say(f"{each.replica} {difference.key} {difference.kind}")
        if len(each.differences) > SHOWN:
            say(f"{each.replica} ... {len(each.differences) - SHOWN} more; --json has them all")


def _shown(manager: Manager, replica: Replica) -> dict[str, Any]:
    [(waiting, source, target)] = manager.state.conn.execute(
        "select count(*), format('%%I.%%I', %s::text, %s::text),"
        "       format('%%I.%%I', %s::text, %s::text)"
        "  from pgq_ext.replica_event where rpe_table = %s",
        [*replica.source, *replica.target, replica.id],
    )
    return {
        "source": source,
        "target": target,
        "columns": replica.columns,
        "state": replica.state,
        "since": replica.since,
        "waiting": waiting,
        "error": replica.error or manager.what_is_wrong(replica),
    }


def _config(path: Path) -> Any:
    from pgqpy_consumers import settings as files
    from pgqpy_consumers.replicate import Replicate

    settings = click.get_current_context().ensure_object(Settings)
    overrides = {} if settings.dsn_argument is None else {"dsn": settings.dsn_argument}
    try:
        config = files.load(Replicate.Config, path, overrides)
    except files.ConfigError as error:
        raise click.UsageError(str(error)) from None
    settings.dsn = config.dsn
    return config


@contextmanager
def _manager(path: Path) -> Iterator[Manager]:
    from pgqpy_consumers.replicate.manage import Manager

    config = _config(path)
    with connect(config.dsn, names_of_users=True) as source, ExitStack() as stack:
        with comes_from(config.target_dsn):
            target = stack.enter_context(connect(config.target_dsn, names_of_users=True))
            target.execute("select from pgq_ext.replica_table limit 0")
        yield Manager(source, target, config.queue, config.consumer)
