"""``format("pgq")``: the entry point of Spark's data source."""

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
from pgqpy_consumers.spark._options import (
    EventOptions,
    InvalidOption,
    ReadOptions,
    StreamOptions,
    StreamWriteOptions,
    WriteOptions,
    carried,
    carrying,
    check_no_password,
    options_of_table,
)
from pgqpy_consumers.spark._reader import PgqReader, Spans, event_schema, pin


class PgqDataSource(DataSource):
    """Queues as a data source of Spark.

    Register it, then ``pgq`` is a format for reading and writing, in batches and streams::

        spark.dataSource.register(PgqDataSource)
        df = spark.read.format("pgq").option("queue", "orders").load()
    """

    _spans: Spans | PgqError | None = None
    """What batch reads read, or the error that prevents it."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "pgq"

    def __getstate__(self) -> dict[str, Any]:
        """Pin the range when Spark pickles the source for a DataFrame, which keeps it from then on.

        Spark also pickles streams, of either direction, which have no range: so an error is
        left to the reader.
        """
        self._pin()
        return self.__dict__

    def schema(self) -> StructType:
        """The columns of events: all of them, or those of option ``columns``.

        For a table of Spark's catalog they carry its options.
        """
        of_table = options_of_table(self.options)
        if of_table is not None:
            options = _checked(of_table)
            check_no_password(options)
            return carrying(event_schema(options), of_table)
        schema = event_schema(EventOptions.pick(self.options))
        self._pin()
        # Every stream that is read has a consumer.
        if isinstance(self._spans, PgqError) and "consumer" not in self.options:
            raise self._spans
        return schema

    def _pin(self) -> None:
        if self._spans is None:
            try:
                self._spans = pin(ReadOptions.parse(self.options))
            except PgqError as error:
                self._spans = error

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of ``spark.read``."""
        schema, of_table = carried(schema)
        if of_table:
            self.options, self._spans = {**of_table, **self.options}, None
        self._pin()
        if isinstance(self._spans, PgqError):
            raise self._spans
        assert self._spans is not None
        return PgqReader(ReadOptions.parse(self.options), schema, self._spans)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of ``spark.readStream``."""
        schema, of_table = carried(schema)
        options = StreamOptions.parse({**of_table, **self.options})
        if options.shards is not None:
            from pgqpy_consumers.spark._shards_stream import ShardsStreamReader

            return ShardsStreamReader(options, schema)
        from pgqpy_consumers.spark._stream_reader import PgqStreamReader

        return PgqStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of ``df.write``."""
        from pgqpy_consumers.spark._sink import PgqWriter

        _append_only(overwrite)
        return PgqWriter(WriteOptions.parse(self.options), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """The writer of ``df.writeStream``."""
        from pgqpy_consumers.spark._sink import PgqStreamWriter

        _append_only(overwrite)
        return PgqStreamWriter(StreamWriteOptions.parse(self.options), schema)


def _checked(options: dict[str, str]) -> EventOptions:
    """Parse the options of a table, which may be read or streamed from."""
    try:
        return ReadOptions.parse(options)
    except InvalidOption:
        if "consumer" not in map(str.lower, options):
            raise
        return StreamOptions.parse(options)


def _append_only(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("a queue cannot be overwritten", hint='Append to it: mode("append").')
