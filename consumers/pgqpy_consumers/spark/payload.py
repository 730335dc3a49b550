"""Payloads as typed columns: ``option("payload", ...)`` with ``.schema(...)``.

Beside the columns of the payload, a schema may have columns of the event (`EVENT_SCHEMA`) and
those of `CHANGE_SCHEMA`, which describe the change of a captured table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from pgqpy.errors import PgqError
from pgqpy.formats import OPERATIONS, operation_and_key
from pgqpy_consumers.spark._events import (
    EVENT_COLUMNS,
    EVENT_SCHEMA,
    SHARD,
    SHARDS_SCHEMA,
    arrow_schema,
)
from pgqpy_consumers.spark._options import EventOptions, InvalidOption
from pgqpy_consumers.spark._payload_json import check_members, read_objects
from pgqpy_consumers.spark._payload_texts import (
    Row,
    any_row,
    check_row,
    columns_of,
    json_row,
    urlencoded_row,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGE_SCHEMA = (
    T.StructType()
    .add("ev_operation", "string")
    .add("ev_table", "string")
    .add("ev_key", T.ArrayType(T.StringType()))
)
"""INSERT, UPDATE, DELETE or TRUNCATE; ``schema.table``; the columns of the table's key.

Null for events that neither a capture nor a trigger wrote.
"""

MALFORMED = T.StructField("ev_malformed", T.StringType())
"""The text of a malformed payload."""

RESERVED = {column.name: column for column in [*EVENT_SCHEMA, *CHANGE_SCHEMA, MALFORMED]}

_ROWS = {"json": json_row, "urlencoded": urlencoded_row, "row": any_row}

ANY = "*"
"""Option ``optional``: all columns."""

# The number of payloads read one by one if one of them differs.
_PIECE = 256


class MalformedPayload(PgqError, ValueError):
    """A payload is not in the format that was asked for, or does not fit the schema."""

    default_hint = (
        'option("malformed", "drop") leaves such events out; "column" keeps their payloads, in a '
        "column ev_malformed of the schema."
    )


@dataclass(frozen=True)
class Decoder:
    """Converts events to rows with the user's schema. Goes to the executors, pickled."""

    payload: str
    """json, urlencoded or row."""
    malformed: str
    """fail, drop or column."""
    schema: pa.Schema
    """The user's schema, for Arrow."""
    optional: tuple[str, ...] | None = None
    """The columns that a payload may lack; see `EventOptions`."""

    @classmethod
    def for_options(cls, options: EventOptions, schema: T.StructType) -> Self:
        """The decoder for options with a ``payload``.

        Raises InvalidOption if no payload can fill a column of the schema.
        """
        assert options.payload is not None
        reserved = RESERVED if options.shards is None else RESERVED | {SHARD.name: SHARD}
        for column in schema:
            check_column(column, reserved)
        if not set(schema.names) - set(reserved):
            raise InvalidOption(
                "option payload needs columns in .schema(...) to decode from ev_data",
                hint="table_schema(dsn, table) has those of a table.",
            )
        if options.malformed == "column" and MALFORMED.name not in schema.names:
            raise InvalidOption(
                "option malformed is 'column', and the schema has no column ev_malformed",
                hint='Add it: schema.add("ev_malformed", "string").',
            )
        if unknown := set(options.optional or ()) - set(schema.names) - {ANY}:
            raise InvalidOption(
                f"option optional names {min(unknown)!r}, which is no column of the schema",
                hint="It takes names of columns with commas between them, or * for all.",
            )
        arrow = to_arrow_schema(schema, timezone="UTC")
        return cls(options.payload, options.malformed, arrow, options.optional)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of events that it needs."""
        needed = {"ev_id", "ev_data", *self.schema.names}
        if needed & set(CHANGE_SCHEMA.names):
            needed.add("ev_extra1")
        if needed & set(CHANGE_SCHEMA.names) or self.optional != (ANY,):
            needed.add("ev_type")
        return tuple(name for name in EVENT_COLUMNS if name in needed)

    def decode(self, events: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, with the user's schema, of a batch of events with `columns`, and their shard.

        Raises MalformedPayload, which names the event, if a payload is malformed and option
        ``malformed`` is ``fail``.
        """
        payloads = events.column("ev_data")
        known = {*RESERVED, *events.schema.names}
        fields = pa.schema([f for f in self.schema if f.name not in known])
        found, wrong = self.parse(payloads, fields, self._complete(events))
        if wrong and self.malformed == "fail":
            position, reason = next(iter(wrong.items()))
            event = events.column("ev_id")[position].as_py()
            raise MalformedPayload(f"payload of event {event} is malformed: {reason[:300]}")

        is_wrong = pc.is_in(
            pa.array(range(len(payloads)), pa.int64()), value_set=pa.array(list(wrong), pa.int64())
        )
        found[MALFORMED.name] = pc.if_else(is_wrong, payloads, pa.scalar(None, pa.string()))
        if set(self.schema.names) & set(CHANGE_SCHEMA.names):
            found |= _change(events)
        rows = pa.RecordBatch.from_arrays(
            [found[name] if name in found else events.column(name) for name in self.schema.names],
            schema=self.schema,
        )
        return rows.filter(pc.invert(is_wrong)) if self.malformed == "drop" else rows

    def _complete(self, events: pa.RecordBatch) -> pa.Array | None:
        """A mask of the payloads that may lack only optional columns; None if there are none."""
        if self.optional == (ANY,):
            return None
        payloads, (operations, _) = events.column("ev_data"), _operations_and_keys(events)
        # A TRUNCATE has no row.
        some = pc.and_(
            pc.not_equal(payloads, ""), pc.fill_null(pc.not_equal(operations, "TRUNCATE"), True)
        )
        if self.optional is None:
            # Applications leave out nulls, captures and triggers do not.
            is_row = pc.is_valid(operations)
            if self.payload != "json":
                is_row = pc.or_(is_row, pc.invert(pc.starts_with(payloads, "{")))
            some = pc.and_(some, is_row)
        return pc.fill_null(some, False)

    def parse(
        self, payloads: pa.Array, fields: pa.Schema, complete: pa.Array | None = None
    ) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """The columns of payloads, and the errors of malformed ones by position.

        ``complete`` marks the payloads that must have all columns that are not optional.
        """
        optional = self.optional or ()
        required = (
            [] if ANY in optional else [each for each in fields.names if each not in optional]
        )
        if complete is None or not pc.any(complete).as_py():
            complete = pa.nulls(len(payloads), pa.bool_())
        parser = _Parser(self.payload, fields, required)
        pieces = list(parser.pieces(payloads, complete, 0))
        found = {
            name: pa.concat_arrays([piece[at] for piece in pieces])
            for at, name in enumerate(fields.names)
        }
        return found, parser.wrong


class _Parser:
    """Parses payloads into columns; ``wrong`` has the errors of malformed ones, by position."""

    def __init__(self, payload: str, fields: pa.Schema, required: list[str]) -> None:
        self._payload = payload
        self._fields = fields
        self._required = required
        self.wrong: dict[int, str] = {}

    def pieces(
        self, payloads: pa.Array, complete: pa.Array, first: int
    ) -> Iterator[list[pa.Array]]:
        """The columns, in pieces; ``first`` is the position of the first payload."""
        if len(payloads) <= _PIECE or self._payload == "urlencoded":
            yield self._one_by_one(payloads, complete, first)
            return
        try:
            columns = read_objects(payloads, self._fields)
            self._check_complete(payloads, complete, columns)
            yield columns
        except ValueError:
            size = max(len(payloads) // 8, _PIECE)
            for at in range(0, len(payloads), size):
                piece = slice(at, at + size)
                yield from self.pieces(payloads[piece], complete[piece], first + at)

    def _check_complete(
        self, payloads: pa.Array, complete: pa.Array, columns: list[pa.Array]
    ) -> None:
        """Raises ValueError if a payload lacks a column: Arrow also reads a missing one as null."""
        if complete.null_count == len(complete):
            return
        for name in self._required:
            column = columns[self._fields.get_field_index(name)]
            absent = pc.and_(complete, pc.is_null(column))
            if pc.any(absent).as_py():
                check_members(payloads.filter(absent), name)

    def _one_by_one(self, payloads: pa.Array, complete: pa.Array, first: int) -> list[pa.Array]:
        to_row = _ROWS[self._payload]
        rows: list[Row] = []
        texts = zip(payloads.to_pylist(), complete.to_pylist(), strict=True)
        for position, (payload, is_complete) in enumerate(texts, first):
            try:
                row = {} if payload is None else to_row(payload)
                if is_complete:
                    check_row(row, self._required)
            except ValueError as error:
                self.wrong[position] = str(error)
                row = {}
            rows.append(row)
        try:
            return columns_of(rows, self._fields)
        except ValueError:
            alone = []
            for position, row in enumerate(rows, first):
                try:
                    alone.append(columns_of([row], self._fields))
                except ValueError as error:
                    self.wrong[position] = str(error)
                    alone.append(columns_of([{}], self._fields))
            # Arrow reads some texts only if all are as it likes them: so what could be read alone
            # may be refused together.
            return [pa.concat_arrays(each) for each in zip(*alone, strict=True)]


def _change(events: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns of `CHANGE_SCHEMA`."""
    operation, key = _operations_and_keys(events)
    tables = pc.if_else(
        operation.is_null(), pa.scalar(None, pa.string()), events.column("ev_extra1")
    )
    return {"ev_operation": operation, "ev_table": tables, "ev_key": key}


def _operations_and_keys(events: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    # There are many events, but few types.
    types = events.column("ev_type").dictionary_encode()
    described = [_operation_and_key(type_) for type_ in types.dictionary.to_pylist()]
    operations = pa.array([operation for operation, _ in described], pa.string())
    element = pa.field("element", pa.string())
    keys = pa.array([key for _, key in described], pa.list_(element))
    return operations.take(types.indices), keys.take(types.indices)


def _operation_and_key(type_: str) -> tuple[str | None, list[str] | None]:
    try:
        operation, key = operation_and_key(type_)
        "".join(key).encode()
    except (TypeError, ValueError):
        # An application may have JSON of its own for types.
        return None, None
    return (operation, list(key)) if operation in OPERATIONS.values() else (None, None)


_TYPES = (
    T.ArrayType, T.BinaryType, T.BooleanType, T.ByteType, T.DateType, T.DecimalType, T.DoubleType,
    T.FloatType, T.IntegerType, T.LongType, T.ShortType, T.StringType, T.StructType,
    T.TimestampNTZType, T.TimestampType,
)  # fmt: skip


def check_column(column: T.StructField, reserved: Mapping[str, T.StructField] = RESERVED) -> None:
    """Raise InvalidOption if no payload can give such a column."""
    known = reserved.get(column.name)
    if known is not None and known.dataType != column.dataType:
        raise InvalidOption(
            f"column {column.name} is of type {column.dataType.simpleString()}",
            hint=f"It must be of type {known.dataType.simpleString()}.",
        )
    if known is not None and column.name in SHARDS_SCHEMA.names:
        return
    for type_, nullable in _parts(column.dataType, column.nullable):
        if not nullable:
            raise InvalidOption(
                f"column {column.name} is not nullable, or something in it is not",
                hint="Any can be null: a payload may lack it, and that of a TRUNCATE is empty.",
            )
        if not isinstance(type_, _TYPES):
            raise InvalidOption(
                f"column {column.name} cannot be decoded as {type_.simpleString()}",
                hint="Decode it as string.",
            )


def _parts(type_: T.DataType, nullable: bool) -> Iterator[tuple[T.DataType, bool]]:
    """A type and the types nested in it, and whether they may be null."""
    yield type_, nullable
    if isinstance(type_, T.ArrayType):
        yield from _parts(type_.elementType, type_.containsNull)
    elif isinstance(type_, T.StructType):
        for column in type_:
            yield from _parts(column.dataType, column.nullable)


def decode_payload(
    df: DataFrame,
    schema: T.StructType | str,
    payload: str,
    *,
    malformed: str = "fail",
    optional: str | None = None,
) -> DataFrame:
    """Decode ev_data into columns, like ``option("payload", ...)`` in reading.

    For DataFrames with columns of `EVENT_SCHEMA`: those of a `SparkConsumer`, or an archive. Lazy;
    streams, too. ``schema`` is a StructType or DDL, as for ``.schema(...)`` in reading.
    ``payload``, ``malformed`` and ``optional`` are like the options.

    Raises InvalidOption if the options or the schema do not fit a payload. Reading the
    result raises MalformedPayload like reading a queue.
    """
    # The queue does not matter here.
    given = {"queue": "-", "payload": payload, "malformed": malformed}
    options = EventOptions.parse(given if optional is None else given | {"optional": optional})
    if isinstance(schema, str):
        schema = cast("T.StructType", T.StructType.fromDDL(schema))
    decoder = Decoder.for_options(options, schema)
    return df.select(*decoder.columns).mapInArrow(partial(_decode, decoder), schema)


def _decode(decoder: Decoder, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # Times come in the session's zone, and strings possibly with long offsets.
    wanted = arrow_schema(decoder.columns)
    return (decoder.decode(events.cast(wanted)) for events in batches)
