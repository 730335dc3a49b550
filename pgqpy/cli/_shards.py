"""``pgqpy shards``: one queue over many databases."""

from __future__ import annotations

from pathlib import Path

import click

from pgqpy._runtime.words import plural
from pgqpy.cli._base.arguments import FILE
from pgqpy.cli._base.command import Group
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import json_option, print_items, say
from pgqpy.errors import InvalidShardMap
from pgqpy.shards import ShardMap
from pgqpy.shards._apply import apply as apply_map
from pgqpy.shards._check import check as check_map


@click.group(cls=Group)
def shards() -> None:
    """One logical queue over many databases, by a shard map.

    A shard map says which database has which keys.
    """


@shards.command("check", role="pgq_reader")
@click.argument("path", metavar="FILE", type=FILE)
@json_option
@click.pass_context
def check(ctx: click.Context, path: Path) -> None:
    """Check a shard map, and show its shards.

    Lag and pending events are those of the consumer that is farthest behind. Waiting consumers
    have still to read keys in another shard before they begin with this one. The exit code is 1
    if there is a problem.

    Examples:
      pgqpy shards check shards.toml
    """
    if not path.exists():
        raise CliError(f"there is no file {path}", f"pgqpy shards apply WANTED {path} writes it")
    shard_map = ShardMap.load(path)
    if shard_map.queue is None:
        raise InvalidShardMap(f"{path} has no queue", hint='Write queue = "..." at the top.')
    states = check_map(shard_map, shard_map.queue)
    print_items(
        states,
        {
            "Shard": "shard",
            "Hashes": lambda state: f"{state.percent:.1f} %",
            "Version": "version",
            "Consumers": "consumers",
            "Lag": "lag",
            "Backlog": "pending_events",
            "Waiting": lambda state: ", ".join(state.waiting),
            "Problem": "problem",
        },
        empty="",
    )
    if any(state.problem for state in states):
        ctx.exit(1)


@shards.command("apply", role="pgq_admin")
@click.argument("wanted", metavar="WANTED", type=FILE)
@click.argument("path", metavar="FILE", type=FILE)
def apply(wanted: Path, path: Path) -> None:
    """Give each shard the keys that a map wants.

    WANTED is the map that you write. FILE is what producers and consumers read: it is written from
    WANTED, with a version of each shard, and with the ticks that order events of keys that have
    moved. Run it again if it was stopped, and to remove shards that are drained.

    While keys move, producers are refused in the shards that lose or get them, until they have the
    new FILE. Nothing else waits.

    Examples:
      pgqpy shards apply wanted.toml shards.toml
    """
    shard_map = apply_map(wanted, path, say)
    waiting = sum(bool(shard.after) for shard in shard_map.shards.values())
    if waiting:
        say(f"{plural(waiting, 'shard')} after others; see: pgqpy shards check {path}")
