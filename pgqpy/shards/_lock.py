"""The advisory lock of a process that reads a shard for a consumer."""

LOCK = 0x70677174
"""In pg_locks: classid 1885827444, objsubid 2; objid is a hash of the queue and the consumer."""
