"""Converting the columns of events to the columns of the requested DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pgqpy_consumers.spark.options import EventOptions, InvalidOption
from pgqpy_consumers.spark.schema import EVENT_COLUMNS, EVENT_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa


class Decoding(Protocol):
    """Converts events to rows of a DataFrame."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of events that it needs."""

    def decode(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, with the user's schema, from a batch of `columns`."""


@dataclass(frozen=True)
class Plain:
    """Returns the events themselves as rows."""

    schema: StructType

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the schema."""
        return tuple(self.schema.names)

    def decode(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """The rows unchanged; Spark also requires equal nullability of columns."""
        return events.cast(to_arrow_schema(self.schema, timezone="UTC"))


def decoding(options: EventOptions, schema: StructType) -> Decoding:
    """The decoding that the options ask for.

    Raises InvalidOption if events cannot have the schema.
    """
    if options.columns is not None and list(options.columns) != schema.names:
        raise InvalidOption("option columns and .schema(...) disagree", hint="Give one of them.")
    if options.payload is not None:
        from pgqpy_consumers.spark.payload import Decoder

        return Decoder.for_options(options, schema)
    for field in schema:
        if field.name not in EVENT_COLUMNS or field.dataType != EVENT_SCHEMA[field.name].dataType:
            raise InvalidOption(
                f"events have no column {field.simpleString()}",
                hint=f"They have {', '.join(f.simpleString() for f in EVENT_SCHEMA)}. Others"
                " come out of ev_data with option payload.",
            )
    return Plain(schema)


def event_schema(options: EventOptions) -> StructType:
    """The default schema: the columns of events, or those named in option columns.

    Raises InvalidOption if there is no such column, or if option payload needs other columns.
    """
    if options.payload is not None:
        raise InvalidOption(
            "option payload needs .schema(...): the columns to decode from ev_data",
            hint="table_schema(dsn, table) has those of a table.",
        )
    columns = options.columns or EVENT_COLUMNS
    unknown = [name for name in columns if name not in EVENT_COLUMNS]
    if unknown:
        raise InvalidOption(
            f"option columns names {unknown[0]!r}", hint=f"Events have {', '.join(EVENT_COLUMNS)}."
        )
    return StructType([EVENT_SCHEMA[name] for name in columns])
