"""One logical queue over many databases: a shard map says which database has which keys."""

from pgqpy.shards._current import CurrentMap, MapSource
from pgqpy.shards._map import HASHES, Shard, ShardMap, shard_hash
from pgqpy.shards.sharded import ShardedConsumer
from pgqpy.shards.sharded_async import AsyncShardedConsumer

__all__ = [
    "HASHES",
    "AsyncShardedConsumer",
    "CurrentMap",
    "MapSource",
    "Shard",
    "ShardMap",
    "ShardedConsumer",
    "shard_hash",
]
