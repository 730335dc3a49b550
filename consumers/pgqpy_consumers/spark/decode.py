"""Typed columns of a DataFrame of events, wherever it comes from."""

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
    """Make columns of what is in ev_data, as ``option("payload", ...)`` does it in reading.

    For DataFrames that are events: those of a `SparkConsumer`, or an archive. Lazy; streams, too.

    Args:
        df: events, with columns of `EVENT_SCHEMA`.
        schema: as for ``.schema(...)`` in reading: a StructType, or DDL.
        payload: as the option: json, urlencoded or row.
        malformed: as the option: fail, column or drop.
        optional: as the option: columns that a payload may lack, with commas between them.

    Raises InvalidOption if the options or the schema are not those of a payload. Reading the
    result raises MalformedPayload as reading a queue does.
    """
    # Which queue the events are of is no matter here.
    given = {"queue": "-", "payload": payload, "malformed": malformed}
    options = EventOptions.parse(given if optional is None else given | {"optional": optional})
    if isinstance(schema, str):
        schema = cast("StructType", StructType.fromDDL(schema))
    decoder = Decoder.for_options(options, schema)
    return df.select(*decoder.columns).mapInArrow(partial(_decode, decoder), schema)


def _decode(decoder: Decoder, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # Times come in the session's zone, and strings perhaps with long offsets.
    wanted = arrow_schema(decoder.columns)
    return (decoder.decode(events.cast(wanted)) for events in batches)
