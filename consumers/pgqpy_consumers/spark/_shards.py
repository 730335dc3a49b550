"""A logical queue in one database, or in several: what is asked of each of them at the same time.

Each shard is read as a single database is, which has no name here: None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TypeVar

from pyspark.sql.datasource import InputPartition

from pgqpy.errors import PgqError
from pgqpy.shards import ShardMap
from pgqpy_consumers.spark._events import EventPartition, patiently
from pgqpy_consumers.spark._options import EventOptions

K = TypeVar("K", bound=str | None)
O = TypeVar("O", bound=EventOptions)  # noqa: E741
T = TypeVar("T")


def databases(options: O) -> dict[str | None, O]:
    """The options to read each of the databases with, by the name of its shard."""
    if options.shards is None:
        return {None: options}
    shard_map = ShardMap.load(options.shards)
    shard_map.check_queue(options.queue)
    return {
        name: options.with_values(dsn=each.dsn) for name, each in sorted(shard_map.shards.items())
    }


@contextmanager
def named(shard: str | None) -> Iterator[None]:
    """Errors name the shard."""
    try:
        yield
    except PgqError as error:
        if shard is not None:
            error.message = f"shard {shard!r}: {error.message}"
        raise


def for_each(
    calls: Mapping[K, Callable[[], T]], pool: ThreadPoolExecutor | None = None
) -> dict[K, T]:
    """Call the function of each shard at the same time. Raises the error of one of them."""
    if pool is None:
        with ThreadPoolExecutor(max(len(calls), 1)) as pool:
            return for_each(calls, pool)

    def call(shard: K) -> T:
        with named(shard):
            return calls[shard]()

    return dict(zip(calls, pool.map(call, calls), strict=True))


def waiting(
    options: EventOptions, calls: Mapping[K, Callable[[], T]]
) -> Mapping[K, Callable[[], T]]:
    """The calls, which by option wait for a shard that cannot be reached."""
    if not options.waits:
        return calls
    return {shard: partial(patiently, call) for shard, call in calls.items()}


def shares(events: Mapping[K, int], most: int) -> dict[K, int]:
    """The slices of each shard, at least one, in proportion to its events."""
    total = max(sum(events.values()), 1)
    return {shard: max(round(most * each / total), 1) for shard, each in events.items()}


def dealt(options: EventOptions, slices: Mapping[K, list[EventPartition]]) -> list[InputPartition]:
    """The slices of all shards; those that tasks read at the same time are of different servers."""
    return [
        EventPartition(replace(each.source, patient=options.waits), each.part, shard)
        for group in zip_longest(*([(shard, each) for each in of] for shard, of in slices.items()))
        for shard, each in filter(None, group)
    ]
