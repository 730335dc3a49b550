"""What the shards of a map are doing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from pgqpy import dsn as dsns
from pgqpy._runtime.fetch import fetch
from pgqpy.admin import Admin
from pgqpy.connection import connect
from pgqpy.errors import PgqError
from pgqpy.shards._map import HASHES, Shard, ShardMap


@dataclass(slots=True, kw_only=True)
class ShardState:
    """A shard, and what its database says."""

    shard: str
    database: str
    """The connection string without secrets."""
    percent: float
    """The share of the hashes."""
    version: int
    consumers: int = 0
    lag: timedelta | None = None
    """Of the consumer that is farthest behind."""
    pending_events: int = 0
    """Those of this consumer."""
    waiting: list[str] = field(default_factory=list)
    """Consumers that have not finished the ticks of other shards that come before this one."""
    problem: str | None = None


def check(shard_map: ShardMap, queue: str) -> list[ShardState]:
    """Ask the database of each shard. A shard that is down has a problem."""
    return [_state(shard_map, shard, queue) for shard in shard_map.shards.values()]


def _state(shard_map: ShardMap, shard: Shard, queue: str) -> ShardState:
    state = ShardState(
        shard=shard.name,
        database=dsns.redact(shard.dsn),
        percent=100 * sum(stop - start for start, stop in shard.hashes) / HASHES,
        version=shard.version,
    )
    try:
        with connect(shard.dsn, autocommit=True) as conn:
            Admin(conn).get_queue_info(queue)
            found = fetch(conn, b"select * from pgq.get_shard_info(%s)", [queue])
            state.problem = _problem(shard, *found[0][1:3]) if found else "not applied"
            consumers = Admin(conn).get_consumer_info(queue)
        state.consumers = len(consumers)
        if consumers:
            last = max(consumers, key=lambda each: each.lag or timedelta())
            state.lag, state.pending_events = last.lag, last.pending_events or 0
        for name, tick in shard.after.items():
            with connect(shard_map.shards[name].dsn, autocommit=True) as conn:
                state.waiting += [
                    each.consumer_name
                    for each in Admin(conn).get_consumer_info(queue)
                    # None: a member of a cooperating consumer that has no batch.
                    if each.last_tick is not None and each.last_tick < tick
                ]
    except PgqError as error:
        state.problem = error.message.partition("\n")[0]
    return state


def _problem(shard: Shard, name: str, version: int) -> str | None:
    if name != shard.name:
        return f"its database is that of shard {name}"
    if version != shard.version:
        return f"the map has version {shard.version}, the database {version}: apply again"
    return None
