"""Queues in Spark: `PgqDataSource` is the format ``pgq``, `SparkConsumer` a class to subclass."""

from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise ImportError(
        'pgqpy_consumers.spark needs Spark: pip install "pgqpy[spark]"', name="pyspark"
    )

from pgqpy_consumers.spark.consumer import SparkConsumer
from pgqpy_consumers.spark.java import JavaMissingError, require_java
from pgqpy_consumers.spark.latest import latest_rows
from pgqpy_consumers.spark.payload_schema import table_schema
from pgqpy_consumers.spark.reader import EventsGoneError
from pgqpy_consumers.spark.schema import EVENT_SCHEMA
from pgqpy_consumers.spark.session import get_session, local_session
from pgqpy_consumers.spark.source import PgqDataSource

__all__ = [
    "EVENT_SCHEMA",
    "EventsGoneError",
    "JavaMissingError",
    "PgqDataSource",
    "SparkConsumer",
    "get_session",
    "latest_rows",
    "local_session",
    "require_java",
    "table_schema",
]
