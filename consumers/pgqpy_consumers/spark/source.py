"""``format("pgq")``: who does what for Spark's data source."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pgqpy.errors import PgqError
from pgqpy_consumers.spark.batch_reader import PgqReader, Span, pin
from pgqpy_consumers.spark.event_rows import event_schema
from pgqpy_consumers.spark.options import (
    EventOptions,
    InvalidOption,
    ReadOptions,
    StreamOptions,
    StreamWriteOptions,
    WriteOptions,
)


class PgqDataSource(DataSource):
    """Queues as a data source of Spark.

    Register it, then ``pgq`` is a format for reading and writing, in batches and streams::

        spark.dataSource.register(PgqDataSource)
        df = spark.read.format("pgq").option("queue", "orders").load()
    """

    _span: Span | PgqError | None = None

    @classmethod
    def name(cls) -> str:
        """What ``format()`` is given."""
        return "pgq"

    def __getstate__(self) -> dict[str, Any]:
        """Pins the range, if it is read in batches.

        Spark pickles the source when it defines a DataFrame, and makes a new reader from that
        for each action. It pickles streams, too, of either direction.
        """
        if self._span is None:
            try:
                self._span = pin(ReadOptions.parse(self.options))
            except PgqError as error:
                # This may be a stream, which has nothing to pin: that has one of these.
                if not self.options.keys() & {"consumer", "writer"}:
                    raise
                self._span = error
        return self.__dict__

    def schema(self) -> StructType:
        """The columns of events: all of them, or those of option ``columns``."""
        return event_schema(EventOptions.pick(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = ReadOptions.parse(self.options)
        if isinstance(self._span, PgqError):
            raise self._span
        assert self._span is not None
        return PgqReader(options, schema, self._span)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For ``spark.readStream``."""
        from pgqpy_consumers.spark.stream_reader import PgqStreamReader

        return PgqStreamReader(StreamOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``."""
        from pgqpy_consumers.spark.sink import PgqWriter

        _append_only(overwrite)
        return PgqWriter(WriteOptions.parse(self.options), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """For ``df.writeStream``."""
        from pgqpy_consumers.spark.sink import PgqStreamWriter

        _append_only(overwrite)
        return PgqStreamWriter(StreamWriteOptions.parse(self.options), schema)


def _append_only(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("a queue cannot be overwritten", hint='Append to it: mode("append").')
