"""A batch as one DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pgqpy_consumers.spark.reader import EventSource
from pgqpy_consumers.spark.schema import EVENT_SCHEMA
from pgqpy_consumers.spark.slices import Slice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def events_frame(spark: SparkSession, source: EventSource, slices: Sequence[Slice]) -> DataFrame:
    """The events of the source, one partition a slice. Lazy: each action reads again.

    The source travels in the pickled function, not in options of a data source: plans, event logs
    and the web interface show options, and it holds the password.
    """

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from source.read(slices[number])

    parts = len(slices)
    return spark.range(0, parts, 1, parts).mapInArrow(read, EVENT_SCHEMA)
