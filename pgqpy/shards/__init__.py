"""One logical queue over many databases: a shard map says which database has which keys."""

from pgqpy.shards._map import HASHES, Shard, ShardMap, shard_hash

__all__ = ["HASHES", "Shard", "ShardMap", "shard_hash"]
