"""Typed columns of a DataFrame of events, whatever its source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from pyspark.sql.types import StructType

from pgqpy_consumers.spark.options import EventOptions
from pgqpy_consumers.spark.payload import Decoder
from pgqpy_consumers.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def decode_payload(
    df: DataFrame,
    schema: StructType | str,
    payload: str,
    *,
    malformed: str = "fail",
    optional: str | None = None,
) -> DataFrame:
    """Decode ev_data into columns, like ``option("payload", ...)`` in reading.

    For DataFrames of events: those of a `SparkConsumer`, or an archive. Lazy; streams, too.

    Args:
        df: events, with columns of `EVENT_SCHEMA`.
        schema: as for ``.schema(...)`` in reading: a StructType, or DDL.
        payload: json, urlencoded or row, like the option.
        malformed: fail, column or drop, like the option.
        optional: columns that a payload may lack, separated by commas, like the option.

    Raises InvalidOption if the options or the schema do not fit a payload. Reading the
    result raises MalformedPayload like reading a queue.
    """
    # The queue does not matter here.
    given = {"queue": "-", "payload": payload, "malformed": malformed}
    options = EventOptions.parse(given if optional is None else given | {"optional": optional})
    if isinstance(schema, str):
        schema = cast("StructType", StructType.fromDDL(schema))
    decoder = Decoder.for_options(options, schema)
    return df.select(*decoder.columns).mapInArrow(partial(_decode, decoder), schema)


def _decode(decoder: Decoder, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # Times come in the session's zone, and strings possibly with long offsets.
    wanted = arrow_schema(decoder.columns)
    return (decoder.decode(events.cast(wanted)) for events in batches)
